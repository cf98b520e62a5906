"""What a program's clients ask of its shepherd: streams, signals, and that the program waits for one of them."""

from __future__ import annotations

import contextlib
import json
import select
import time
from typing import Protocol

from gpupool.domain import frames
from gpupool.domain.supervision import ExitReason, ProcessSpec
from gpupool.node.plumbing import Plumbing
from gpupool.node.record import ShepherdRecord
from gpupool.node.returning import Returning
from gpupool.node.viewers import Hello, Viewer, Viewers

CLIENT_WAIT_S = 20.0  # a client-bound program's client has to come within this


class Host(Protocol):
    """A shepherd, as the clients of its program know it."""

    spec: ProcessSpec
    record: ShepherdRecord
    program: int | None
    plumbing: Plumbing | None

    def start_program(self, rows: int, columns: int) -> None:
        """Start it, with a terminal of this size if it has one."""

    def end(self, reason: ExitReason, grace_s: float) -> None:
        """Ask the whole tree to end."""

    def signal_foreground(self, signum: int) -> None:
        """As a terminal would, to what runs in its foreground."""


class Clients:
    """Those who are attached, and the one that a bound program lives and dies with: awaited, here, or expected back."""

    def __init__(self, host: Host, viewers: Viewers, returning: Returning) -> None:
        self._host = host
        self.viewers = viewers
        self.returning = returning
        self.deadline: float | None = None  # monotonic: until then the first has to come

    def await_first(self) -> None:
        """The program is started when its client comes."""
        self.deadline = time.monotonic() + CLIENT_WAIT_S

    def deadlines(self) -> tuple[float | None, float | None]:
        """When ``on_time`` has to be called."""
        return self.deadline, self.returning.deadline

    def on_time(self, now: float) -> None:
        """End what nobody came for, or came back to."""
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self._host.end(ExitReason.CLIENT_GONE, 0)
        if self.returning.passed(now):
            self._host.end(ExitReason.CLIENT_GONE, self._host.spec.grace_s)

    def on_event(self, viewer: Viewer, events: int) -> None:
        """Something happened on a connection."""
        if events & select.POLLOUT:
            viewer.flush()
        if events & select.POLLIN:
            for kind, payload in viewer.receive():
                with contextlib.suppress(ValueError):
                    self._on_frame(viewer, kind, payload)
        elif events & (select.POLLHUP | select.POLLERR):
            viewer.gone = True

    def _on_frame(self, viewer: Viewer, kind: int, payload: bytes) -> None:
        if kind == frames.SIGNAL and len(payload) == 1:
            self._host.signal_foreground(payload[0])
        elif kind == frames.HELLO and viewer.hello is None:
            self._on_hello(viewer, Hello.parse(payload))
        elif viewer.hello is None:
            viewer.gone = True
        elif kind == frames.DETACH:
            viewer.left = viewer.gone = True
        elif kind == frames.GONE:
            viewer.hello, viewer.gone = viewer.hello.after(payload), True
        elif self._host.plumbing is not None:
            self.returning.input_bytes += len(payload) * (viewer.bound and kind == frames.STDIN)
            _pass_on(self._host.plumbing, viewer.hello, kind, payload)

    def _on_hello(self, viewer: Viewer, hello: Hello) -> None:
        viewer.hello, host = hello, self._host
        if self.deadline is not None:
            viewer.bound, self.deadline = True, None
            host.start_program(hello.rows or host.spec.rows, hello.columns or host.spec.columns)
            return
        if hello.seen is not None and hello.returns_s and host.spec.client_bound:
            self._bind_again(viewer)
        if host.record.started_at is not None:
            started = {"pid": host.program, "stdin": self.returning.input_bytes}
            viewer.send(frames.STARTED, json.dumps(started).encode())
        if host.plumbing is not None:
            if hello.seen is not None:
                self.returning.welcome(viewer, hello.seen)
            elif host.plumbing.replay:
                viewer.send(frames.STDOUT, bytes(host.plumbing.replay))
            host.plumbing.resize(hello.rows, hello.columns)

    def _bind_again(self, viewer: Viewer) -> None:
        """The client that was lost is back; an older connection of it may not have been missed yet."""
        for other in self.viewers:
            if other.bound:
                other.left = other.gone = True
        viewer.bound, self.returning.deadline = True, None

    def on_gone(self, viewer: Viewer) -> None:
        """A connection is over: without its client a bound program ends, now or when nobody comes back."""
        if not viewer.bound or viewer.left:
            return
        if viewer.hello is not None and viewer.hello.returns_s:
            self.returning.wait_for(viewer.hello.returns_s)
        else:
            self._host.end(ExitReason.CLIENT_GONE, self._host.spec.grace_s)


def _pass_on(plumbing: Plumbing, hello: Hello, kind: int, payload: bytes) -> None:
    if kind == frames.STDIN and hello.stdin:
        plumbing.give_input(payload)
    elif kind == frames.STDIN_EOF and hello.stdin:
        plumbing.end_input()
    elif kind == frames.RESIZE:
        plumbing.resize(*frames.unpack_size(payload))
