"""Connections to a shepherd: their frames and how much output each has not yet received."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.protocol import frames

MAX_UNSENT_BYTES = 8 << 20  # bytes: a client further behind is dropped, unless the program is bound to it
MAX_TERMINAL_UNSENT_BYTES = 1 << 20  # bytes: a terminal further behind gets only the latest output
KEPT_UNSENT_BYTES = 1 << 17  # bytes of the latest output for such a terminal
MAX_BOUND_UNSENT_BYTES = 1 << 20  # bytes: a client-bound program waits, as with a full pipe
MAX_CONNECTIONS = 64
MAX_RESUME_WAIT_S = 600.0
FAREWELL_TIMEOUT_S = 30.0  # a client that takes nothing for so long is dropped
_READ = 256 << 10
_CREDENTIALS = struct.Struct("3i")


def peer_uid(sock: socket.socket) -> int:
    """Return the user at the other end of a unix socket, from the kernel. Raises OSError."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    return int(uid)


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a client; zero rows mean that it has no terminal.

    ``returns_s`` is how long to wait for the client if its connection is lost. ``seen`` is how many bytes of output and
    errors a returning client has received; None for a new client.
    """

    rows: int = 0
    columns: int = 0
    stdin: bool = True
    returns_s: float = 0.0
    seen: tuple[int, int] | None = None

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """Parse a JSON object of this protocol version. Raises ``ValueError`` for anything else."""
        data = _object_of(payload)
        if data.get("version") != frames.VERSION:
            raise ValueError("not a HELLO of this version")
        seen = data.get("seen")
        return cls(
            int(_number(data, "rows", 0xFFFF)),
            int(_number(data, "columns", 0xFFFF)),
            bool(data.get("stdin", True)),
            _number(data, "returns_s", MAX_RESUME_WAIT_S),
            None if not isinstance(seen, list) or len(seen) != 2 else (_count(seen[0]), _count(seen[1])),
        )

    def after(self, send_exit: bytes) -> Hello:
        """Return this with the values of a GONE frame. Raises ``ValueError`` if the payload is not its JSON."""
        data = _object_of(send_exit) if send_exit else {}
        return replace(self, returns_s=_number(data, "returns_s", self.returns_s))


def _object_of(payload: bytes) -> dict[str, Any]:
    try:
        data: Any = json.loads(payload)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if isinstance(data, dict):
        return data
    raise ValueError("not a JSON object")


def _number(data: dict[str, Any], name: str, most: float) -> float:
    value = data.get(name) or 0
    if not isinstance(value, int | float) or (isinstance(value, float) and math.isnan(value)):
        raise ValueError(f"{name} is not a number")
    return float(min(max(value, 0), most))


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("not a count of bytes")
    return value


class AttachConnection:
    """One connection. ``hello`` is None until the client has sent it; only then is it attached."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self.sock = sock
        self.hello: Hello | None = None
        self.bound = False
        self.left = False
        self.gone = False
        self.skips = False  # a terminal that need not get all output
        self._in = bytearray()
        self._out = bytearray()  # whole frames that are being sent
        self._waiting: deque[bytes] = deque()  # frames after those
        self._waiting_bytes = 0

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self.sock.fileno()

    @property
    def unsent_bytes(self) -> int:
        """Return the number of bytes that the client has not taken yet."""
        return len(self._out) + self._waiting_bytes

    def interest(self, *, may_read: bool) -> int:
        """Return the events to poll for; a hang-up is always reported."""
        return (select.POLLIN if may_read else 0) | (select.POLLOUT if self.unsent_bytes else 0)

    def send(self, kind: int, payload: bytes) -> None:
        """Queue one frame (several for much output) and send what is possible without blocking."""
        if self.gone:
            return
        for at in range(0, len(payload) or 1, frames.MAX_PAYLOAD_BYTES):
            frame = frames.encode(kind, payload[at : at + frames.MAX_PAYLOAD_BYTES])
            self._waiting.append(frame)
            self._waiting_bytes += len(frame)
        self.flush()
        if self.skips and self._waiting_bytes > MAX_TERMINAL_UNSENT_BYTES:
            self._skip()
        if not self.bound and self.unsent_bytes > MAX_UNSENT_BYTES:
            self.gone = True

    def _skip(self) -> None:
        """Drop the oldest output, so that what a user types is answered soon, and say how much is missing."""
        others, skipped = [], 0
        while self._waiting_bytes > KEPT_UNSENT_BYTES and len(self._waiting) > 1:
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            if frame[0] == frames.STDOUT:
                skipped += len(frame) - frames.HEADER.size
            else:
                others.append(frame)
        others.append(frames.encode(frames.NOTE, f"{skipped} bytes of output are omitted here; see the log".encode()))
        self._waiting.extendleft(reversed(others))
        self._waiting_bytes += sum(map(len, others))

    def flush(self) -> None:
        """Send what is possible without blocking."""
        try:
            while self._out or self._waiting:
                while self._waiting and len(self._out) < _READ:
                    self._waiting_bytes -= len(self._waiting[0])
                    self._out += self._waiting.popleft()
                sent = self.sock.send(memoryview(self._out)[:_READ])
                del self._out[:sent]
        except BlockingIOError:
            return
        except OSError:
            self.gone = True

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the complete frames received; set ``gone`` at the end or on an invalid frame."""
        try:
            data = self.sock.recv(_READ)
            if not data:
                self.gone = True
            self._in += data
            return frames.decode(self._in)
        except BlockingIOError:
            return []
        except (OSError, ValueError):
            self.gone = True
            return []

    def receive_late_hello(self) -> None:
        """Read the hello of a client that connected just before the program ended."""
        for kind, payload in [] if self.hello is not None else self.receive():
            if kind == frames.HELLO:
                with contextlib.suppress(ValueError):
                    self.hello = Hello.parse(payload)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.sock.close()


class AttachConnections:
    """All connections of one shepherd, and the socket that accepts them."""

    def __init__(self, listener: socket.socket, allowed: frozenset[int]) -> None:
        listener.settimeout(0)
        self.listener = listener
        self._allowed = allowed
        self._all: dict[int, AttachConnection] = {}

    def __iter__(self) -> Iterator[AttachConnection]:
        return iter(list(self._all.values()))

    def get(self, fd: int) -> AttachConnection | None:
        """Return the connection with this descriptor."""
        return self._all.get(fd)

    def accept(self) -> None:
        """Accept a connection if its user, as reported by the kernel, is allowed."""
        with contextlib.suppress(OSError):
            sock, _address = self.listener.accept()
            if peer_uid(sock) in self._allowed and len(self._all) < MAX_CONNECTIONS:
                connection = AttachConnection(sock)
                self._all[connection.fileno()] = connection
                return
            with contextlib.suppress(OSError):
                sock.send(frames.encode(frames.NOTE, b"permission denied"))
            sock.close()

    def send(self, kind: int, payload: bytes) -> None:
        """Send to all attached clients."""
        for connection in self._all.values():
            if connection.hello is not None:
                connection.send(kind, payload)

    def remove_gone(self, on_gone: Callable[[AttachConnection], None]) -> None:
        """Call ``on_gone`` for lost connections while their descriptors are still open, then close them."""
        for fd, connection in list(self._all.items()):
            if connection.gone:
                del self._all[fd]
                on_gone(connection)
                connection.close()

    @property
    def congested(self) -> bool:
        """Return True if the client that the program is bound to is too far behind."""
        return any(
            connection.bound and connection.unsent_bytes > MAX_BOUND_UNSENT_BYTES for connection in self._all.values()
        )

    @property
    def unsent_bytes(self) -> int:
        """Return the number of bytes not yet taken by all clients."""
        return sum(connection.unsent_bytes for connection in self._all.values())

    def send_exit(self, report: bytes) -> None:
        """Send the exit report to all, and give slow clients time as long as they make progress."""
        for _ in range(MAX_CONNECTIONS):
            if not _ready([self.listener.fileno()], select.POLLIN, 0):
                break
            self.accept()
        for connection in self:
            connection.receive_late_hello()
        self.send(frames.EXIT, report)
        deadline = time.monotonic() + FAREWELL_TIMEOUT_S
        while (before := self.unsent_bytes) and time.monotonic() < deadline:
            _ready([connection.fileno() for connection in self if connection.unsent_bytes], select.POLLOUT, 1000)
            for connection in self:
                connection.flush()
            self.remove_gone(lambda _viewer: None)
            if self.unsent_bytes < before:
                deadline = time.monotonic() + FAREWELL_TIMEOUT_S
        self.close()

    def close(self) -> None:
        """Close all connections and the listener."""
        for connection in self._all.values():
            connection.close()
        self._all.clear()
        self.listener.close()


def _ready(fds: list[int], events: int, timeout_ms: int) -> bool:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, events)
    return bool(poll.poll(timeout_ms))


def unlink_quietly(path: str) -> None:
    """Remove a socket file if it exists."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - plain strings keep the shepherd cheap
