"""The standard streams of a program: output to log and clients, input from clients."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable

from gpupool.domain.protocol import frames
from gpupool.domain.protocol.log_records import ERR, OUT
from gpupool.node.shepherd import terminal

MAX_PENDING_INPUT_BYTES = 256 << 10  # bytes of input held for a program that does not read
MAX_REPLAY_BYTES = 16 << 10  # bytes of a terminal's output that a new client gets first
REOPEN_CHECK_S = 0.2  # when to read again from a terminal that no process has open
DRAIN_IDLE_TIMEOUT_S = 1.0  # how long to wait for more output while an escaped process holds the pipe open
DRAIN_TIMEOUT_S = 10.0  # in total, if it continues to write
_CHUNK = 64 << 10


class StdioRelay:
    """The shepherd's ends of the streams, and the input on its way to the program.

    ``deliver(log stream, frame kind, bytes)`` is called with every piece of output.
    """

    def __init__(self, streams: terminal.Streams, deliver: Callable[[int, int, bytes], None]) -> None:
        self.replay = bytearray()
        self._streams = streams
        self._deliver = deliver
        self._pending = bytearray()
        self._input_ended = False
        self._is_over = False
        self.check_at: float | None = None  # monotonic: when to read again from a terminal that no process has open

    # -- polling -----------------------------------------------------------------------------------------------------

    @property
    def takes_input(self) -> bool:
        """Return True if clients may send more input."""
        return len(self._pending) < MAX_PENDING_INPUT_BYTES

    def set_interest(self, poll: select.poll, *, congested: bool) -> None:
        """Register for output only while it can be delivered, and for input only while some is pending."""
        streams = self._streams
        if self.check_at is not None and time.monotonic() >= self.check_at:
            self.check_at = None
        reading = 0 if congested or self.check_at is not None else select.POLLIN
        writing = select.POLLOUT if self._pending else 0
        _watch(poll, streams.output, reading | (writing if streams.tty else 0))
        _watch(poll, streams.errors, reading)
        if not streams.tty:
            _watch(poll, streams.source, writing)

    def on_event(self, poll: select.poll, fd: int, events: int) -> None:
        """Handle poll events of one descriptor; ignore other descriptors."""
        if fd == self._streams.source and events & (select.POLLOUT | select.POLLERR):
            self._feed(fd)
        if fd in self._outputs() and events & ~select.POLLOUT:
            self._take(fd)
        if fd not in self._ours():
            _watch(poll, fd, 0)

    def _outputs(self) -> list[int]:
        return [fd for fd in (self._streams.output, self._streams.errors) if fd is not None]

    def _ours(self) -> list[int]:
        return [*self._outputs(), *([] if self._streams.source is None else [self._streams.source])]

    # -- output ------------------------------------------------------------------------------------------------------

    def _take(self, fd: int) -> bool:
        """Read a piece of output and deliver it; False if there is none now or it has ended."""
        streams = self._streams
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: no process has the terminal open
            data = b""
        if not data and streams.tty and not self._is_over:
            # The process that closed it may still be ending; closing our end now would send it a hang-up.
            self.check_at = time.monotonic() + REOPEN_CHECK_S
            return False
        if not data:
            self._close(fd)
            return False
        stream, kind = (ERR, frames.STDERR) if fd == streams.errors else (OUT, frames.STDOUT)
        if streams.tty:
            self.replay = (self.replay + data)[-MAX_REPLAY_BYTES:]
        self._deliver(stream, kind, data)
        return True

    def drain(self) -> None:
        """Read what the ended program left in the pipes; do not wait for an escaped process that holds them open."""
        self._is_over = True
        limit = time.monotonic() + DRAIN_TIMEOUT_S
        while (outputs := self._outputs()) and time.monotonic() < limit:
            took = [self._take(fd) for fd in outputs]
            if not any(took) and self._outputs() and not _readable(self._outputs(), DRAIN_IDLE_TIMEOUT_S):
                return

    # -- input -------------------------------------------------------------------------------------------------------

    def give_input(self, data: bytes) -> None:
        """Pass bytes to the program; they are lost if it has closed its input, as with a pipe."""
        if self._streams.source is not None and not self._input_ended:
            self._pending += data
            self._feed(self._streams.source)

    def end_input(self) -> None:
        """End the input: a pipe is closed after all is delivered, a terminal gets its end-of-input key."""
        if self._streams.tty:
            self.give_input(terminal.END_OF_TRANSMISSION)
        elif self._streams.source is not None:
            self._input_ended = True
            self._feed(self._streams.source)

    def _feed(self, fd: int) -> None:
        try:
            while self._pending:
                written = os.write(fd, memoryview(self._pending)[:_CHUNK])
                del self._pending[:written]
        except BlockingIOError:
            return
        except OSError:
            self._pending.clear()
            self._input_ended = True
        if self._input_ended and not self._streams.tty:
            self._close(fd)

    # -- the terminal ------------------------------------------------------------------------------------------------

    def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size; do nothing without a terminal."""
        if self._streams.tty and self._streams.output is not None and rows and columns:
            terminal.resize(self._streams.output, rows, columns)

    def foreground_group(self) -> int | None:
        """Return the process group that receives the terminal's keys; None without a terminal."""
        if not self._streams.tty or self._streams.output is None:
            return None
        return terminal.foreground_group(self._streams.output)

    def _close(self, fd: int) -> None:
        streams = self._streams
        if fd == streams.source:
            streams.source = None
        if fd == streams.output:
            streams.output = None
        if fd == streams.errors:
            streams.errors = None
        os.close(fd)


def _watch(poll: select.poll, fd: int | None, wanted: int) -> None:
    """Register or unregister a descriptor. poll reports a hang-up even for a mask of 0, hence the unregistering."""
    if fd is None:
        return
    if wanted:
        poll.register(fd, wanted)
    else:
        with contextlib.suppress(KeyError):
            poll.unregister(fd)


def _readable(fds: list[int], timeout_s: float) -> bool:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(int(timeout_s * 1000)))
