"""The little HTTP/1.1 that a command needs on the pool's unix socket.

``http.client`` imports the email package and ``socket`` builds dozens of enums: together 30 ms, more than a launch may
take. The server is our own, so only what it sends is understood: a length or chunks.
"""

from __future__ import annotations

import select
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket  # the C half: a tenth of the import time of ``socket``
from time import monotonic

from gpupool.cli.fast import lightjson
from gpupool.client.locate import connect_unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONNECT_TIMEOUT_S = 10.0
RECEIVE_BYTES = 1 << 18


class Answer:
    """A whole response: ``status`` and the JSON ``body`` (None when empty)."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body

    @property
    def ok(self) -> bool:
        """Whether the pool did what it was asked."""
        return 200 <= self.status < 300


def connect(path: str) -> socket:
    """A stream connection to a unix socket; raises ``OSError`` when nobody listens."""
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    sock.settimeout(CONNECT_TIMEOUT_S)
    try:
        connect_unix(sock, path)  # type: ignore[arg-type]  # the C socket has the same connect
    except BaseException:
        sock.close()
        raise
    return sock


class Exchange:
    """One request on its own connection; ``receive`` is called whenever ``fileno`` is readable."""

    def __init__(self, socket_path: str, method: str, target: str, body: object = None) -> None:
        payload = b"" if body is None else lightjson.dumps(body)
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: gpupool\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        self._received = bytearray()
        self._sock = connect(socket_path)
        try:
            self._sock.sendall(head.encode() + payload)
        except BaseException:
            self._sock.close()
            raise

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._sock.fileno()

    def close(self) -> None:
        """Hang up; the pool sees a client that went away."""
        self._sock.close()

    def receive(self) -> Answer | None:
        """Read once; the answer when it is whole, None before. Raises ``ConnectionError`` when it is cut off."""
        data = self._sock.recv(RECEIVE_BYTES)
        self._received += data
        answer = parse(bytes(self._received), ended=not data)
        if answer is None and not data:
            raise ConnectionResetError("the pool hung up before it had answered")
        return answer


def parse(data: bytes, *, ended: bool) -> Answer | None:
    """The answer in ``data`` if it is whole; ``ended``: nothing will follow. Raises ``ConnectionError`` on nonsense."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    try:
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        body = _whole_body(rest, headers, ended=ended)
        return None if body is None else Answer(status, lightjson.loads(body) if body.strip() else None)
    except (ValueError, IndexError) as error:
        raise ConnectionAbortedError("what answered is not a gpupool API") from error


def _whole_body(rest: bytes, headers: dict[str, str], *, ended: bool) -> bytes | None:
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
    """Ask and wait for the answer; raises ``OSError`` when nobody answers in time."""
    exchange = Exchange(socket_path, method, target, body)
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
