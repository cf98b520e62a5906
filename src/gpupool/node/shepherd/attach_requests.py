"""Requests of a program's clients to its shepherd: streams, signals, and binding the program to a client."""

from __future__ import annotations

import contextlib
import json
import select
import time
from typing import Protocol

from gpupool.domain.protocol import frames
from gpupool.domain.work.program.supervision import ExitReason, ProcessSpec, Stdio
from gpupool.node.host.records import ShepherdRecord
from gpupool.node.shepherd.attach import AttachConnection, AttachConnections, Hello
from gpupool.node.shepherd.attach_resume import ResumeState
from gpupool.node.shepherd.stdio import StdioRelay

CLIENT_TIMEOUT_S = 60.0  # for the client of a client-bound program; clients wait 30 s for a pool that does not answer


class SupervisedProgram(Protocol):
    """The shepherd, as seen by the requests of its clients."""

    spec: ProcessSpec
    record: ShepherdRecord
    program: int | None
    relay: StdioRelay | None
    farewell: bytes

    def start_program(self, rows: int, columns: int) -> None:
        """Start the program, with a terminal of this size if it has one."""

    def end(self, reason: ExitReason, grace_s: float) -> None:
        """Ask the whole process tree to end."""

    def client_left(self) -> None:
        """Handle the loss of the client that the program is bound to."""

    def signal_foreground(self, signum: int) -> None:
        """Signal the foreground process group, as a terminal would."""


class AttachRequests:
    """The attached clients. A client-bound program starts with its client, and ends when the client does not return."""

    def __init__(self, host: SupervisedProgram, connections: AttachConnections, resume: ResumeState) -> None:
        self._host = host
        self.connections = connections
        self.resume = resume
        self.deadline: float | None = None  # monotonic: until then the first has to come

    def await_first(self) -> None:
        """Wait for the client before the program is started."""
        self.deadline = time.monotonic() + CLIENT_TIMEOUT_S

    def deadlines(self) -> tuple[float | None, float | None]:
        """Return the times at which ``on_time`` has to be called."""
        return self.deadline, self.resume.deadline

    def on_time(self, now: float) -> None:
        """End the program if its client did not come, or did not return, in time."""
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self._host.end(ExitReason.CLIENT_GONE, 0)
        if self.resume.expired(now):
            self._host.client_left()

    def on_event(self, connection: AttachConnection, events: int) -> None:
        """Handle poll events of a connection."""
        if events & select.POLLOUT:
            connection.flush()
        if events & select.POLLIN:
            for kind, payload in connection.receive():
                with contextlib.suppress(ValueError):
                    self._on_frame(connection, kind, payload)
        elif events & (select.POLLHUP | select.POLLERR):
            connection.gone = True

    def _on_frame(self, connection: AttachConnection, kind: int, payload: bytes) -> None:
        if kind == frames.SIGNAL and len(payload) == 1:
            self._host.signal_foreground(payload[0])
        elif kind == frames.NOTE:
            self.connections.send(frames.NOTE, payload)
        elif kind == frames.HELLO and connection.hello is None:
            self._on_hello(connection, Hello.parse(payload))
        elif connection.hello is None:
            connection.gone = True
        elif kind == frames.DETACH:
            connection.left = connection.gone = True
        elif kind == frames.GONE:
            connection.hello, connection.gone = connection.hello.after(payload), True
        elif self._host.relay is not None:
            self.resume.input_bytes += len(payload) * (connection.bound and kind == frames.STDIN)
            _pass_on(self._host.relay, connection.hello, kind, payload)

    def _on_hello(self, connection: AttachConnection, hello: Hello) -> None:
        connection.hello, host = hello, self._host
        connection.skips = host.spec.stdio is Stdio.TTY and not (host.spec.client_bound or hello.returns_s)
        if self.deadline is not None:
            connection.bound, self.deadline = True, None
            host.start_program(hello.rows or host.spec.rows, hello.columns or host.spec.columns)
            return
        if hello.seen is not None and hello.returns_s and host.spec.client_bound:
            self._bind_again(connection)
        if host.record.started_at is not None:
            started = {"pid": host.program, "stdin": self.resume.input_bytes}
            connection.send(frames.STARTED, json.dumps(started).encode())
        if host.relay is not None:
            if hello.seen is not None:
                self.resume.replay(connection, hello.seen)
            elif host.relay.replay:
                connection.send(frames.STDOUT, bytes(host.relay.replay))
            host.relay.resize(hello.rows, hello.columns)
        if host.farewell:
            connection.send(frames.EXIT, host.farewell)

    def _bind_again(self, connection: AttachConnection) -> None:
        """Bind the program to its returned client; the old connection may not have been noticed as lost yet."""
        for other in self.connections:
            if other.bound:
                other.left = other.gone = True
        connection.bound, self.resume.deadline = True, None

    def on_gone(self, connection: AttachConnection) -> None:
        """Handle a lost connection. A bound program ends now, or when its client does not return in time."""
        if not connection.bound or connection.left:
            return
        if connection.hello is not None and connection.hello.returns_s:
            self.resume.wait_for(connection.hello.returns_s)
        else:
            self._host.client_left()


def _pass_on(relay: StdioRelay, hello: Hello, kind: int, payload: bytes) -> None:
    if kind == frames.STDIN and hello.stdin:
        relay.give_input(payload)
    elif kind == frames.STDIN_EOF and hello.stdin:
        relay.end_input()
    elif kind == frames.RESIZE:
        relay.resize(*frames.unpack_size(payload))
