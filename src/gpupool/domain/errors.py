"""Errors of the pool: a stable code, one sentence, and a hint what to do next."""

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
    UNKNOWN_WORKSPACE = "UNKNOWN_WORKSPACE"
    UNKNOWN_SERVICE = "UNKNOWN_SERVICE"
    ALREADY_BOOKED = "ALREADY_BOOKED"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    IMPOSSIBLE_REQUEST = "IMPOSSIBLE_REQUEST"
    OVER_LIMIT = "OVER_LIMIT"
    QUEUE_LIMIT = "QUEUE_LIMIT"
    WRONG_STATE = "WRONG_STATE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    TOO_MANY_ATTEMPTS = "TOO_MANY_ATTEMPTS"
    RATE_LIMITED = "RATE_LIMITED"
    OVERLOADED = "OVERLOADED"
    NO_CAPACITY = "NO_CAPACITY"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    ENVIRONMENT_FAILED = "ENVIRONMENT_FAILED"
    POOL_UNREACHABLE = "POOL_UNREACHABLE"
    POOL_ALREADY_RUNNING = "POOL_ALREADY_RUNNING"
    POOL_START_FAILED = "POOL_START_FAILED"
    POOL_STARTING = "POOL_STARTING"
    PORT_TAKEN = "PORT_TAKEN"
    DISK_FULL = "DISK_FULL"
    DATABASE_CORRUPT = "DATABASE_CORRUPT"
    DATABASE_NEWER = "DATABASE_NEWER"
    DATABASE_UNWRITABLE = "DATABASE_UNWRITABLE"
    DATABASE_FOREIGN = "DATABASE_FOREIGN"
    DATABASE_OTHER_POOL = "DATABASE_OTHER_POOL"
    DATABASE_UNREACHABLE = "DATABASE_UNREACHABLE"
    NOT_LEADING = "NOT_LEADING"
    STALE_WRITE = "STALE_WRITE"
    PRECONDITION_FAILED = "PRECONDITION_FAILED"
    REQUEST_SEEN = "REQUEST_SEEN"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    NODE_UNREACHABLE = "NODE_UNREACHABLE"
    NODE_REMOVED = "NODE_REMOVED"
    PROVIDER_UNREACHABLE = "PROVIDER_UNREACHABLE"
    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    SERVICE_NOT_READY = "SERVICE_NOT_READY"
    REPLICA_FAILED = "REPLICA_FAILED"
    REPLICA_TIMEOUT = "REPLICA_TIMEOUT"
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
    ErrorCode.UNKNOWN_WORKSPACE: 404,
    ErrorCode.UNKNOWN_SERVICE: 404,
    ErrorCode.ALREADY_BOOKED: 409,
    ErrorCode.IMPOSSIBLE_REQUEST: 422,
    ErrorCode.OVER_LIMIT: 422,
    ErrorCode.QUEUE_LIMIT: 429,
    ErrorCode.WRONG_STATE: 409,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NODE_REMOVED: 403,
    ErrorCode.TOO_MANY_ATTEMPTS: 429,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.NO_CAPACITY: 409,
    ErrorCode.WAIT_EXPIRED: 409,
    ErrorCode.STALE_WRITE: 409,
    ErrorCode.PRECONDITION_FAILED: 412,
    ErrorCode.REQUEST_SEEN: 409,
    ErrorCode.REQUEST_ID_REUSED: 409,
    ErrorCode.NODE_UNREACHABLE: 503,
    ErrorCode.PROVIDER_UNREACHABLE: 503,
    ErrorCode.POOL_UNREACHABLE: 503,
    ErrorCode.POOL_STARTING: 503,
    ErrorCode.DATABASE_UNREACHABLE: 503,
    ErrorCode.NOT_LEADING: 503,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.SERVICE_NOT_READY: 503,
    ErrorCode.REPLICA_FAILED: 502,
    ErrorCode.REPLICA_TIMEOUT: 504,
    ErrorCode.DISK_FULL: 507,
    ErrorCode.INTERNAL: 500,
}

# The codes of a control plane that does not lead, or does not lead yet.
NO_LEADER_CODES = frozenset({ErrorCode.NOT_LEADING, ErrorCode.POOL_STARTING})

# Exit statuses that the command line itself uses, not the job's (125 as in `docker run` and `timeout`).
EXIT_POOL_ERROR = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class GpupoolError(Exception):
    """An error that the command line, the API, pages and logs show in the same way.

    ``message`` is one sentence; ``hint`` says what to do next. The hint is empty only when nothing helps.
    """

    def __init__(self, code: ErrorCode, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def http_status(self) -> int:
        """Return the HTTP status for this error."""
        return HTTP_STATUS.get(self.code, 400)

    def to_dict(self) -> dict[str, str]:
        """Return the error as API answers and ``--json`` output contain it."""
        return {"code": str(self.code), "message": self.message, "hint": self.hint}

    @classmethod
    def from_dict(cls, body: dict[str, str]) -> GpupoolError:
        """Rebuild an error received from a peer; an unknown code of a newer server becomes ``INTERNAL``."""
        code = body.get("code", "")
        known = ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.INTERNAL
        return cls(known, body.get("message", "unknown error"), body.get("hint", ""))

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f"\n  {self.hint}" if self.hint else "")
