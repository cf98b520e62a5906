"""Who is attached to a shepherd: connections, their frames, and how far behind each is."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain import frames

VIEWER_BEHIND_LIMIT = 8 << 20  # bytes: a mere viewer further behind is dropped
BOUND_BEHIND_LIMIT = 1 << 20  # bytes: a client-bound program waits, as it would before a full pipe
VIEWERS_LIMIT = 64
LONGEST_RETURN_S = 600.0  # how long a lost client may be waited for
LAST_WORDS_S = 30.0  # how long a client may take nothing of what is left to send
_READ = 256 << 10
_CREDENTIALS = struct.Struct("3i")


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of a unix socket, as the kernel says. Raises OSError."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    return int(uid)


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client says first; zero rows mean that it has no terminal.

    ``returns_s`` is for how long a client whose connection is lost may be expected back, ``seen`` what one that is back
    has had of the program's output and errors; None: it is new.
    """

    rows: int = 0
    columns: int = 0
    stdin: bool = True
    returns_s: float = 0.0
    seen: tuple[int, int] | None = None

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """Raises ``ValueError`` for anything but a JSON object of this version."""
        data = _object_of(payload)
        if data.get("version") != frames.VERSION:
            raise ValueError("not a HELLO of this version")
        seen = data.get("seen")
        return cls(
            int(_number(data, "rows", 0xFFFF)),
            int(_number(data, "columns", 0xFFFF)),
            bool(data.get("stdin", True)),
            _number(data, "returns_s", LONGEST_RETURN_S),
            None if not isinstance(seen, list) or len(seen) != 2 else (_count(seen[0]), _count(seen[1])),
        )

    def after(self, farewell: bytes) -> Hello:
        """What still holds once GONE was said with this payload. Raises ``ValueError`` for anything but its JSON."""
        data = _object_of(farewell) if farewell else {}
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


class Viewer:
    """One connection. ``hello`` is None until the client has said it; only then does it count as attached."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self.sock = sock
        self.hello: Hello | None = None
        self.bound = False
        self.left = False
        self.gone = False
        self._in = bytearray()
        self._out = bytearray()

    def fileno(self) -> int:
        """The descriptor, for poll."""
        return self.sock.fileno()

    @property
    def behind(self) -> int:
        """Bytes that it has not taken yet."""
        return len(self._out)

    def interest(self, *, may_read: bool) -> int:
        """What to poll for; a hang-up is always reported."""
        return (select.POLLIN if may_read else 0) | (select.POLLOUT if self._out else 0)

    def send(self, kind: int, payload: bytes) -> None:
        """Queue one frame (several for much output) and send what goes at once."""
        if self.gone:
            return
        for at in range(0, len(payload) or 1, frames.LIMIT):
            self._out += frames.encode(kind, payload[at : at + frames.LIMIT])
        self.flush()
        if not self.bound and len(self._out) > VIEWER_BEHIND_LIMIT:
            self.gone = True

    def flush(self) -> None:
        """Send what goes without waiting."""
        try:
            while self._out:
                sent = self.sock.send(memoryview(self._out)[:_READ])
                del self._out[:sent]
        except BlockingIOError:
            return
        except OSError:
            self.gone = True

    def receive(self) -> list[tuple[int, bytes]]:
        """The frames that have come in whole; sets ``gone`` at the end or on nonsense."""
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

    def hear_late_hello(self) -> None:
        """A client that came just before the end still wants to hear it."""
        for kind, payload in [] if self.hello is not None else self.receive():
            if kind == frames.HELLO:
                with contextlib.suppress(ValueError):
                    self.hello = Hello.parse(payload)

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self.sock.close()


class Viewers:
    """All connections of one shepherd, and the door where they come in."""

    def __init__(self, listener: socket.socket, allowed: frozenset[int]) -> None:
        listener.settimeout(0)
        self.listener = listener
        self._allowed = allowed
        self._all: dict[int, Viewer] = {}

    def __iter__(self) -> Iterator[Viewer]:
        return iter(list(self._all.values()))

    def get(self, fd: int) -> Viewer | None:
        """The viewer with this descriptor."""
        return self._all.get(fd)

    def accept(self) -> None:
        """Let in who is waiting, if the kernel says that it is somebody who may."""
        with contextlib.suppress(OSError):
            sock, _address = self.listener.accept()
            if peer_uid(sock) in self._allowed and len(self._all) < VIEWERS_LIMIT:
                viewer = Viewer(sock)
                self._all[viewer.fileno()] = viewer
                return
            with contextlib.suppress(OSError):
                sock.send(frames.encode(frames.NOTE, b"permission denied"))
            sock.close()

    def send(self, kind: int, payload: bytes) -> None:
        """To everybody attached."""
        for viewer in self._all.values():
            if viewer.hello is not None:
                viewer.send(kind, payload)

    def sweep(self, on_gone: Callable[[Viewer], None]) -> None:
        """Tell about those that are gone, while their descriptors still are theirs, and hang up on them."""
        for fd, viewer in list(self._all.items()):
            if viewer.gone:
                del self._all[fd]
                on_gone(viewer)
                viewer.close()

    @property
    def congested(self) -> bool:
        """Whether the client that the program is bound to is too far behind."""
        return any(viewer.bound and viewer.behind > BOUND_BEHIND_LIMIT for viewer in self._all.values())

    @property
    def pending(self) -> int:
        """Bytes that somebody still has to take."""
        return sum(viewer.behind for viewer in self._all.values())

    def farewell(self, report: bytes) -> None:
        """Tell everybody the end, and give slow ones time for what is left to send as long as they take it."""
        for _ in range(VIEWERS_LIMIT):
            if not _ready([self.listener.fileno()], select.POLLIN, 0):
                break
            self.accept()
        for viewer in self:
            viewer.hear_late_hello()
        self.send(frames.EXIT, report)
        deadline = time.monotonic() + LAST_WORDS_S
        while (before := self.pending) and time.monotonic() < deadline:
            _ready([viewer.fileno() for viewer in self if viewer.behind], select.POLLOUT, 1000)
            for viewer in self:
                viewer.flush()
            self.sweep(lambda _viewer: None)
            if self.pending < before:
                deadline = time.monotonic() + LAST_WORDS_S
        self.close()

    def close(self) -> None:
        """Hang up on everybody."""
        for viewer in self._all.values():
            viewer.close()
        self._all.clear()
        self.listener.close()


def _ready(fds: list[int], events: int, timeout_ms: int) -> bool:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, events)
    return bool(poll.poll(timeout_ms))


def unlink_quietly(path: str) -> None:
    """Remove a socket's name if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - plain strings keep the shepherd cheap
