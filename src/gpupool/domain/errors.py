"""Errors as part of the interface: a stable code, one sentence, and what to do next."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Stable codes; the same one appears on the command line, in the API, on a page and in the log."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_FRACTION = "INVALID_FRACTION"
    INVALID_COUNT = "INVALID_COUNT"
    INVALID_DURATION = "INVALID_DURATION"
    INVALID_SIZE = "INVALID_SIZE"
    INVALID_NAME = "INVALID_NAME"
    INVALID_FILE = "INVALID_FILE"
    TOO_LARGE = "TOO_LARGE"
    UNSUPPORTED = "UNSUPPORTED"
    NAME_TAKEN = "NAME_TAKEN"
    NOT_FOUND = "NOT_FOUND"
    UNKNOWN_WORKLOAD = "UNKNOWN_WORKLOAD"
    UNKNOWN_PROJECT = "UNKNOWN_PROJECT"
    UNKNOWN_DEPARTMENT = "UNKNOWN_DEPARTMENT"
    UNKNOWN_USER = "UNKNOWN_USER"
    UNKNOWN_NODE = "UNKNOWN_NODE"
    UNKNOWN_TOKEN = "UNKNOWN_TOKEN"
    UNKNOWN_BOOKING = "UNKNOWN_BOOKING"
    ALREADY_BOOKED = "ALREADY_BOOKED"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    IMPOSSIBLE_REQUEST = "IMPOSSIBLE_REQUEST"
    OVER_LIMIT = "OVER_LIMIT"
    WRONG_STATE = "WRONG_STATE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    TOO_MANY_ATTEMPTS = "TOO_MANY_ATTEMPTS"
    NO_CAPACITY = "NO_CAPACITY"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    POOL_UNREACHABLE = "POOL_UNREACHABLE"
    POOL_ALREADY_RUNNING = "POOL_ALREADY_RUNNING"
    POOL_START_FAILED = "POOL_START_FAILED"
    PORT_TAKEN = "PORT_TAKEN"
    DISK_FULL = "DISK_FULL"
    DATABASE_CORRUPT = "DATABASE_CORRUPT"
    DATABASE_NEWER = "DATABASE_NEWER"
    DATABASE_UNWRITABLE = "DATABASE_UNWRITABLE"
    DATABASE_FOREIGN = "DATABASE_FOREIGN"
    DATABASE_UNREACHABLE = "DATABASE_UNREACHABLE"
    NOT_LEADING = "NOT_LEADING"
    STALE_WRITE = "STALE_WRITE"
    REQUEST_SEEN = "REQUEST_SEEN"
    NODE_UNREACHABLE = "NODE_UNREACHABLE"
    PROVIDER_UNREACHABLE = "PROVIDER_UNREACHABLE"
    INTERNAL = "INTERNAL"


# The HTTP status that carries each code; anything not named is 400.
HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.NAME_TAKEN: 409,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.UNKNOWN_WORKLOAD: 404,
    ErrorCode.UNKNOWN_PROJECT: 404,
    ErrorCode.UNKNOWN_DEPARTMENT: 404,
    ErrorCode.UNKNOWN_USER: 404,
    ErrorCode.UNKNOWN_NODE: 404,
    ErrorCode.UNKNOWN_TOKEN: 404,
    ErrorCode.UNKNOWN_BOOKING: 404,
    ErrorCode.ALREADY_BOOKED: 409,
    ErrorCode.IMPOSSIBLE_REQUEST: 422,
    ErrorCode.OVER_LIMIT: 422,
    ErrorCode.WRONG_STATE: 409,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.TOO_MANY_ATTEMPTS: 429,
    ErrorCode.NO_CAPACITY: 409,
    ErrorCode.WAIT_EXPIRED: 409,
    ErrorCode.STALE_WRITE: 409,
    ErrorCode.REQUEST_SEEN: 409,
    ErrorCode.NODE_UNREACHABLE: 503,
    ErrorCode.PROVIDER_UNREACHABLE: 503,
    ErrorCode.POOL_UNREACHABLE: 503,
    ErrorCode.DATABASE_UNREACHABLE: 503,
    ErrorCode.NOT_LEADING: 503,
    ErrorCode.DISK_FULL: 507,
    ErrorCode.INTERNAL: 500,
}

# Exit statuses of the command line that are the pool's own and not the job's (125 as `docker run` and `timeout` do).
EXIT_POOL_ERROR = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class GpupoolError(Exception):
    """What went wrong, said once and the same way on every surface.

    ``message`` is one sentence; ``hint`` says what to do next (it may be empty only when nothing helps).
    """

    def __init__(self, code: ErrorCode, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def http_status(self) -> int:
        """The HTTP status that carries this error."""
        return HTTP_STATUS.get(self.code, 400)

    def to_dict(self) -> dict[str, str]:
        """The body of the error as every API answer and ``--json`` listing gives it."""
        return {"code": str(self.code), "message": self.message, "hint": self.hint}

    @classmethod
    def from_dict(cls, body: dict[str, str]) -> GpupoolError:
        """Rebuild an error that crossed the wire; a code of a newer server becomes ``INTERNAL``."""
        code = body.get("code", "")
        known = ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.INTERNAL
        return cls(known, body.get("message", "unknown error"), body.get("hint", ""))

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f"\n  {self.hint}" if self.hint else "")
