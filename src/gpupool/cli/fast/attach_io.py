"""Copy bytes between the user's descriptors and a program's shepherd.

One loop that never blocks. A slow program stops the loop from reading the keyboard, a slow pager stops it from reading
the program, and signals are always forwarded.
"""

from __future__ import annotations

import errno
import os
import select
from _socket import socket
from stat import S_ISREG

from gpupool.cli.fast.signals import CONTINUED, PIPE, WINDOW, SignalInbox
from gpupool.cli.terminal import STDERR, STDIN, STDOUT, DetachKeyFilter, RawMode, in_foreground, is_terminal, size
from gpupool.client.transport import light_json
from gpupool.domain.protocol import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 1 << 16
MAX_PENDING_BYTES = 1 << 18  # buffered in each direction before reading stops
WRITE_BYTES = select.PIPE_BUF  # a descriptor that polls as writable accepts this much without blocking
BACKGROUND_CHECK_MS = 1000
MAX_REPLAY_BYTES = 4 << 20  # input to send again after a reconnect: more than can be in transit


class AttachResult:
    """The end of an attachment: the program's ``exit`` (the EXIT frame), ``detached``, or ``broken``.

    ``output_error`` says why the output was closed, unless its reader closed it.
    """

    __slots__ = ("detached", "exit", "output_closed", "output_error")

    def __init__(self) -> None:
        self.exit: dict[str, Any] | None = None
        self.detached = False
        self.output_closed = False
        self.output_error = ""

    @property
    def broken(self) -> bool:
        """Return whether the connection ended without the program's exit."""
        return not (self.exit or self.detached or self.output_closed)


class Sink:
    """One output descriptor of this process, with the bytes that it has not accepted yet."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = bytearray()
        self.closed = False
        self.error = ""  # why it is closed, unless its reader closed it
        self._regular = _is_regular(fd)

    def add(self, data: bytes) -> None:
        """Queue output, or drop it if the reader closed the descriptor."""
        if not self.closed:
            self.pending += data

    def write(self) -> None:
        """Write as much as possible without blocking. ``closed`` is set when the reader closed the descriptor."""
        while self.pending:
            try:
                written = os.write(self.fd, self.pending if self._regular else self.pending[:WRITE_BYTES])
            except BlockingIOError:
                return
            except OSError as error:
                self.pending.clear()
                self.closed = True
                self.error = "" if error.errno == errno.EPIPE else error.strerror or str(error)
                return
            del self.pending[:written]
            if not self._regular:
                return


class AttachLoop:
    """Attach this terminal (or pipes) to a program. Call ``run`` once, and ``resume`` after the connection broke.

    ``reattach_timeout_s``: how long the program waits for another connection before it treats the client as gone.
    """

    def __init__(
        self,
        sock: socket,
        inbox: SignalInbox,
        *,
        tty: bool,
        stdin: bool = True,
        detachable: bool = False,
        reattach_timeout_s: float = 0.0,
    ) -> None:
        self._sock = sock
        self._reattach_s = reattach_timeout_s
        self.seen = {frames.STDOUT: 0, frames.STDERR: 0}  # bytes received from the program
        self.frames_received = 0
        self._input = bytearray()  # the last bytes that were sent as input
        self._input_bytes = 0
        self._reattached = False  # reconnected, and the arrived amount of input is not known yet
        self._inbox = inbox
        self._tty = tty
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._sinks = {frames.STDOUT: Sink(STDOUT), frames.STDERR: Sink(STDERR)}
        self._keys = DetachKeyFilter(detachable=detachable and tty)
        self._raw = RawMode(STDIN)
        self._wants_input = stdin
        self._input_open = stdin
        self._hung_up = False
        self.result = AttachResult()

    def run(self) -> AttachResult:
        """Copy until the program has ended and its output is written, or until one side detaches."""
        self._sock.setblocking(False)  # noqa: FBT003 - the C socket takes it by position only
        self._say_hello()
        if not self._tty:
            return self._loop()
        with self._raw:
            return self._loop()

    def resume(self, sock: socket) -> AttachResult:
        """Continue over another connection, from the position where the last one broke."""
        self._sock, self._hung_up, self.result, self._reattached = sock, False, AttachResult(), True
        self._outgoing.clear()
        self._incoming.clear()
        return self.run()

    def _say_hello(self) -> None:
        rows, columns = size()
        hello: dict[str, Any] = {"version": frames.VERSION, "rows": rows, "columns": columns}
        hello["stdin"] = self._wants_input
        if self._reattach_s:
            hello["returns_s"] = self._reattach_s
        if self._reattached:
            hello["seen"] = [self.seen[frames.STDOUT], self.seen[frames.STDERR]]
        self._send(frames.HELLO, light_json.dumps(hello))
        if not self._wants_input:
            self._send(frames.STDIN_EOF)

    def _send(self, kind: int, payload: bytes = b"") -> None:
        self._outgoing += frames.encode(kind, payload)

    def _loop(self) -> AttachResult:
        while not self._finished():
            poller = select.poll()
            timeout = self._register(poller)
            for fd, events in poller.poll(timeout):
                self._handle(fd, events)
        return self.result

    def _finished(self) -> bool:
        if self._sinks[frames.STDOUT].closed and not self.result.output_closed:
            self.result.output_closed = True
            self.result.output_error = self._sinks[frames.STDOUT].error
            self._send(frames.SIGNAL, bytes([PIPE]))
            self._flush()
        if self.result.output_closed:
            return True
        if self.result.detached:
            return self._hung_up or not self._outgoing
        return (self._hung_up or self.result.exit is not None) and not any(s.pending for s in self._sinks.values())

    def _register(self, poller: select.poll) -> int | None:
        """Register the descriptors that can be used now. Return the longest wait in ms, or None for no limit."""
        poller.register(self._inbox.fd, select.POLLIN)
        pending = sum(len(sink.pending) for sink in self._sinks.values())
        wanted = select.POLLIN if pending < MAX_PENDING_BYTES else 0
        wanted |= select.POLLOUT if self._outgoing else 0
        if wanted and not self._hung_up:
            poller.register(self._sock.fileno(), wanted)
        for sink in self._sinks.values():
            if sink.pending:
                poller.register(sink.fd, select.POLLOUT)
        if not self._input_open or self._reattached or len(self._outgoing) >= MAX_PENDING_BYTES:
            return None
        if is_terminal(STDIN) and not in_foreground(STDIN):
            return BACKGROUND_CHECK_MS  # a read would stop this process; check again later
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
            self._outgoing.clear()  # the peer closed the connection; its last frames may still be readable
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
        self.frames_received += 1
        if kind in self._sinks:
            self.seen[kind] += len(payload)
            self._sinks[kind].add(payload)
        elif kind == frames.STARTED and self._reattached:
            self._reattached = False
            self._replay_input(int(light_json.loads(payload).get("stdin", self._input_bytes)))
        elif kind == frames.NOTE:
            self._sinks[frames.STDERR].add(_note_line(payload, raw=self._tty))
        elif kind == frames.EXIT:
            self.result.exit = light_json.loads(payload)
            self._input_open = False

    def _replay_input(self, arrived: int) -> None:
        """Send again the input that has not arrived."""
        missing = max(0, self._input_bytes - arrived)
        if missing > len(self._input):
            self._sinks[frames.STDERR].add(_note_line(b"some of the input was lost", raw=self._tty))
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
            data = b""  # a closed terminal counts as end of input
        forwarded, detach = self._keys.feed(data)
        if forwarded:
            self._send(frames.STDIN, forwarded)
            self._remember_input(forwarded)
        if detach:
            self._send(frames.DETACH)
            self.result.detached = True
        if not data:
            self._input_open = False
            self._send(frames.STDIN_EOF)

    def _remember_input(self, data: bytes) -> None:
        if self._reattach_s:
            self._input_bytes += len(data)
            self._input += data
            del self._input[: max(0, len(self._input) - MAX_REPLAY_BYTES)]


def _note_line(payload: bytes, *, raw: bool) -> bytes:
    line = b"gpupool: " + payload.rstrip() + b"\n"
    return line.replace(b"\n", b"\r\n") if raw else line


def _is_regular(fd: int) -> bool:
    try:
        return S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
