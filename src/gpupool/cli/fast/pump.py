"""Bytes between the user's descriptors and a program's shepherd, until one of them has had enough.

One loop, nothing blocks: a program that reads slowly stops us from reading the keyboard, a pager that reads slowly
stops us from reading the program, and signals get through all the same.
"""

from __future__ import annotations

import os
import select
from _socket import socket
from stat import S_ISREG

from gpupool.cli.fast import lightjson
from gpupool.cli.fast.signals import CONTINUED, PIPE, WINDOW, Inbox
from gpupool.cli.fast.terminal import STDERR, STDIN, STDOUT, Keys, RawMode, in_foreground, is_terminal, size
from gpupool.domain import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 1 << 16
PENDING_BYTES = 1 << 18  # held in memory in either direction before we stop reading
WRITE_BYTES = select.PIPE_BUF  # what a descriptor that polls as writable takes without blocking
BACKGROUND_CHECK_MS = 1000
INPUT_KEPT_BYTES = 4 << 20  # of input, to be sent again where a connection broke: more than may be on its way


class Outcome:
    """How an attachment ended: the program's ``exit`` (the EXIT frame), or ``detached``, or ``broken``."""

    __slots__ = ("detached", "exit", "output_closed")

    def __init__(self) -> None:
        self.exit: dict[str, Any] | None = None
        self.detached = False
        self.output_closed = False

    @property
    def broken(self) -> bool:
        """Whether the connection ended and nobody said how the program did."""
        return not (self.exit or self.detached or self.output_closed)


class Sink:
    """One of our own output descriptors with what it has not taken yet."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = bytearray()
        self.closed = False
        self._regular = _is_regular(fd)

    def add(self, data: bytes) -> None:
        """Keep output for the descriptor, or drop it when nobody reads there any more."""
        if not self.closed:
            self.pending += data

    def write(self) -> None:
        """As much as goes without blocking; ``closed`` is set when the reader has gone."""
        while self.pending:
            try:
                written = os.write(self.fd, self.pending if self._regular else self.pending[:WRITE_BYTES])
            except BlockingIOError:
                return
            except OSError:
                self.pending.clear()
                self.closed = True
                return
            del self.pending[:written]
            if not self._regular:
                return


class Pump:
    """This terminal (or these pipes) attached to a program; ``run`` once, and ``again`` where the connection broke.

    ``returns_s``: the program is to wait so long for another connection before it takes us for gone.
    """

    def __init__(
        self,
        sock: socket,
        inbox: Inbox,
        *,
        tty: bool,
        stdin: bool = True,
        detachable: bool = False,
        returns_s: float = 0.0,
    ) -> None:
        self._sock = sock
        self._returns_s = returns_s
        self.seen = {frames.STDOUT: 0, frames.STDERR: 0}  # bytes that the program's side has delivered
        self.frames_heard = 0
        self._input = bytearray()  # the last of what was sent as input
        self._input_bytes = 0
        self._back = False  # connected again, and not told yet how much of the input has arrived
        self._inbox = inbox
        self._tty = tty
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._sinks = {frames.STDOUT: Sink(STDOUT), frames.STDERR: Sink(STDERR)}
        self._keys = Keys(detachable=detachable and tty)
        self._raw = RawMode(STDIN)
        self._wants_input = stdin
        self._input_open = stdin
        self._hung_up = False
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Pump until the program has ended and its output is written, or until somebody leaves."""
        self._sock.setblocking(False)  # noqa: FBT003 - the C socket takes it by position only
        self._say_hello()
        if not self._tty:
            return self._loop()
        with self._raw:
            return self._loop()

    def again(self, sock: socket) -> Outcome:
        """Go on over another connection, from where the one before broke."""
        self._sock, self._hung_up, self.outcome, self._back = sock, False, Outcome(), True
        self._outgoing.clear()
        self._incoming.clear()
        return self.run()

    def _say_hello(self) -> None:
        rows, columns = size()
        hello: dict[str, Any] = {"version": frames.VERSION, "rows": rows, "columns": columns}
        hello["stdin"] = self._wants_input
        if self._returns_s:
            hello["returns_s"] = self._returns_s
        if self._back:
            hello["seen"] = [self.seen[frames.STDOUT], self.seen[frames.STDERR]]
        self._send(frames.HELLO, lightjson.dumps(hello))
        if not self._wants_input:
            self._send(frames.STDIN_EOF)

    def _send(self, kind: int, payload: bytes = b"") -> None:
        self._outgoing += frames.encode(kind, payload)

    def _loop(self) -> Outcome:
        while not self._finished():
            poller = select.poll()
            timeout = self._register(poller)
            for fd, events in poller.poll(timeout):
                self._handle(fd, events)
        return self.outcome

    def _finished(self) -> bool:
        if self._sinks[frames.STDOUT].closed and not self.outcome.output_closed:
            self.outcome.output_closed = True
            self._send(frames.SIGNAL, bytes([PIPE]))
            self._flush()
        if self.outcome.output_closed:
            return True
        if self.outcome.detached:
            return self._hung_up or not self._outgoing
        return (self._hung_up or self.outcome.exit is not None) and not any(s.pending for s in self._sinks.values())

    def _register(self, poller: select.poll) -> int | None:
        """Say what we can use now; returns how long to wait at most (ms), None for ever."""
        poller.register(self._inbox.fd, select.POLLIN)
        pending = sum(len(sink.pending) for sink in self._sinks.values())
        wanted = select.POLLIN if pending < PENDING_BYTES else 0
        wanted |= select.POLLOUT if self._outgoing else 0
        if wanted and not self._hung_up:
            poller.register(self._sock.fileno(), wanted)
        for sink in self._sinks.values():
            if sink.pending:
                poller.register(sink.fd, select.POLLOUT)
        if not self._input_open or self._back or len(self._outgoing) >= PENDING_BYTES:
            return None
        if is_terminal(STDIN) and not in_foreground(STDIN):
            return BACKGROUND_CHECK_MS  # reading now would have the shell stop us; look again later
        poller.register(STDIN, select.POLLIN)
        return None

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._inbox.fd:
            self._take_signals()
        elif fd == self._sock.fileno():
            self._exchange(events)
        elif fd == STDIN and events & ~select.POLLOUT:
            self._read_input()
        for sink in self._sinks.values():
            if fd == sink.fd and events & ~select.POLLIN:
                sink.write()

    def _take_signals(self) -> None:
        for number in self._inbox.take():
            if number in {WINDOW, CONTINUED}:
                self._raw.enter()
                if self._tty:
                    self._send(frames.RESIZE, frames.pack_size(*size()))
            else:
                self._send(frames.SIGNAL, bytes([number]))

    def _exchange(self, events: int) -> None:
        if events & select.POLLOUT:
            self._flush()
        if events & ~select.POLLOUT:
            self._receive()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._outgoing)
        except BlockingIOError:
            return
        except OSError:
            self._outgoing.clear()  # it hung up; what it had to say may still be readable
            return
        del self._outgoing[:sent]

    def _receive(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
            self._incoming += data
            found = frames.decode(self._incoming)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._hung_up = True
            return
        self._hung_up = not data
        for kind, payload in found:
            self._take_frame(kind, payload)

    def _take_frame(self, kind: int, payload: bytes) -> None:
        self.frames_heard += 1
        if kind in self._sinks:
            self.seen[kind] += len(payload)
            self._sinks[kind].add(payload)
        elif kind == frames.STARTED and self._back:
            self._back = False
            self._send_rest(int(lightjson.loads(payload).get("stdin", self._input_bytes)))
        elif kind == frames.NOTE:
            self._sinks[frames.STDERR].add(_note(payload, raw=self._tty))
        elif kind == frames.EXIT:
            self.outcome.exit = lightjson.loads(payload)
            self._input_open = False

    def _send_rest(self, arrived: int) -> None:
        """Send the input again that has not arrived."""
        missing = max(0, self._input_bytes - arrived)
        if missing > len(self._input):
            self._sinks[frames.STDERR].add(_note(b"some of the input was lost", raw=self._tty))
        rest = bytes(self._input[max(0, len(self._input) - missing) :]) if missing else b""
        for at in range(0, len(rest), READ_BYTES):
            self._send(frames.STDIN, rest[at : at + READ_BYTES])
        if self._wants_input and not self._input_open:
            self._send(frames.STDIN_EOF)

    def _read_input(self) -> None:
        try:
            data = os.read(STDIN, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""  # a terminal that went away reads as an end
        passed, detach = self._keys.feed(data)
        if passed:
            self._send(frames.STDIN, passed)
            self._keep(passed)
        if detach:
            self._send(frames.DETACH)
            self.outcome.detached = True
        if not data:
            self._input_open = False
            self._send(frames.STDIN_EOF)

    def _keep(self, data: bytes) -> None:
        if self._returns_s:
            self._input_bytes += len(data)
            self._input += data
            del self._input[: max(0, len(self._input) - INPUT_KEPT_BYTES)]


def _note(payload: bytes, *, raw: bool) -> bytes:
    line = b"gpupool: " + payload.rstrip() + b"\n"
    return line.replace(b"\n", b"\r\n") if raw else line


def _is_regular(fd: int) -> bool:
    try:
        return S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
