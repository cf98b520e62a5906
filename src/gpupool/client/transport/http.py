"""A minimal HTTP/1.1 client for the pool's unix socket.

``http.client`` imports the email package and ``socket`` builds dozens of enums: together 30 ms, more than a launch may
take. It reads only answers of gpupool's own server: with a length or in chunks.
"""

from __future__ import annotations

import select
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket  # the C part: a tenth of the import time of ``socket``
from time import monotonic

from gpupool import unix_sockets
from gpupool.client.transport import light_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpupool.domain.errors import GpupoolError

CONNECT_TIMEOUT_S = 10.0
REATTACH_TIMEOUT_S = 60.0  # how long a program waits for its client after the connection breaks
RATE_LIMIT_DELAY_S = 1.0  # before a request that exceeded the rate limit, and was not executed, is sent again
SERVICE_UNAVAILABLE = 503
RECEIVE_BYTES = 1 << 18


class Answer:
    """A complete response: ``status`` and the JSON ``body`` (None when empty)."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body

    @property
    def ok(self) -> bool:
        """Return whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def error_code(self) -> str:
        """Return the code of the error in the body; empty when there is none."""
        error = self.body.get("error") if not self.ok and isinstance(self.body, dict) else None
        return str(error.get("code")) if isinstance(error, dict) else ""


def connect(path: str) -> socket:
    """Connect to a unix socket. Raises ``OSError`` when no process listens."""
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    sock.settimeout(CONNECT_TIMEOUT_S)
    try:
        unix_sockets.connect(sock, path)  # type: ignore[arg-type]  # the C socket has the same connect
    except BaseException:
        sock.close()
        raise
    return sock


class HttpExchange:
    """One request on its own connection, which has been sent. Call ``receive`` whenever ``fileno`` is readable.

    ``received``: what arrived before.
    """

    def __init__(self, sock: socket, received: bytes = b"") -> None:
        self._received = bytearray(received)
        self._sock = sock

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection; the pool treats it as a client that disconnected."""
        self._sock.close()

    def receive(self) -> Answer | None:
        """Read once and return the answer if it is complete, else None. Raises ``ConnectionError`` if it is cut off."""
        data = self._sock.recv(RECEIVE_BYTES)
        self._received += data
        answer = parse_answer(bytes(self._received), ended=not data)
        if answer is None and not data:
            raise ConnectionResetError("the pool closed the connection before it answered")
        return answer


def send_request(socket_path: str, method: str, target: str, body: object = None) -> HttpExchange:
    """Send a request on a new connection and return at once. Raises ``OSError``."""
    payload = b"" if body is None else light_json.dumps(body)
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: gpupool\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    sock = connect(socket_path)
    try:
        sock.sendall(head.encode() + payload)
    except BaseException:
        sock.close()
        raise
    return HttpExchange(sock)


def parse_answer(data: bytes, *, ended: bool) -> Answer | None:
    """Return the answer in ``data`` if it is complete. ``ended``: no more data follows.

    Raises ``ConnectionError`` for data that is not an answer.
    """
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    try:
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        body = _complete_body(rest, headers, ended=ended)
        return None if body is None else Answer(status, light_json.loads(body) if body.strip() else None)
    except (ValueError, IndexError) as error:
        raise ConnectionAbortedError("the answer is not from a gpupool API") from error


def _complete_body(rest: bytes, headers: dict[str, str], *, ended: bool) -> bytes | None:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _dechunk(rest)
    if "content-length" in headers:
        length = int(headers["content-length"])
        return rest[:length] if len(rest) >= length else None
    return rest if ended else None


def _dechunk(rest: bytes) -> bytes | None:
    parts: list[bytes] = []
    while True:
        line, separator, rest = rest.partition(b"\r\n")
        if not separator:
            return None
        size = int(line.split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        if len(rest) < size + 2:
            return None
        parts.append(rest[:size])
        rest = rest[size + 2 :]


def call(socket_path: str, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
    """Send a request and wait for the answer. Raises ``OSError`` when none arrives in time."""
    exchange = send_request(socket_path, method, target, body)
    deadline = monotonic() + timeout_s
    poller = select.poll()
    poller.register(exchange.fileno(), select.POLLIN)
    try:
        while (left := deadline - monotonic()) > 0:
            if poller.poll(left * 1000) and (answer := exchange.receive()) is not None:
                return answer
        raise TimeoutError("the pool did not answer in time")
    finally:
        exchange.close()


def error_of_answer(answer: Answer) -> GpupoolError:
    """Return the error in an answer that is not ``ok``."""
    from gpupool.domain.errors import ErrorCode, GpupoolError

    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    if isinstance(error, dict):
        return GpupoolError.from_dict(error)
    code = ErrorCode.POOL_UNREACHABLE if answer.status == SERVICE_UNAVAILABLE else ErrorCode.INTERNAL
    message = f"The server answered {answer.status} without an error message."
    return GpupoolError(code, message, "Check that the address is that of a pool.")


def is_untrusted(error: Exception) -> bool:
    """Return whether the certificate of a server is not trusted here: a retry does not help.

    By name: ``ssl`` takes long to import.
    """
    return type(error).__name__ == "SSLCertVerificationError"


def untrusted_error() -> GpupoolError:
    """Return the error for a certificate that is not trusted here."""
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        "The pool's certificate is not trusted here.",
        "Copy <state>/tls/cert.pem from the pool's machine and set GPUPOOL_CA to the path of the copy.",
    )


def with_query(path: str, query: Mapping[str, Any] | None) -> str:
    """Return a target; values of None and empty lists are left out, lists are repeated."""
    from urllib.parse import urlencode

    wanted = {name: _text(value) for name, value in (query or {}).items() if value not in (None, [], ())}
    return path + (f"?{urlencode(wanted, doseq=True)}" if wanted else "")


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
