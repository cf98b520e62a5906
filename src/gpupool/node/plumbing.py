"""A program's streams as its shepherd holds them: output to log and viewers, input from clients."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable

from gpupool.domain import frames
from gpupool.domain.logrecords import ERR, OUT
from gpupool.node import terminal

STDIN_LIMIT = 256 << 10  # bytes of input held for a program that does not read
REPLAY_LIMIT = 16 << 10  # bytes of a terminal's output that a new viewer gets first
LOOK_AGAIN_S = 0.2  # at a terminal that nobody has open
DRAIN_IDLE_S = 1.0  # how long to wait for the end of output that an escaped process holds open
DRAIN_LIMIT_S = 10.0  # and how long to listen to one that goes on talking
_CHUNK = 64 << 10


class Plumbing:
    """Our ends of the streams, and what is on its way to the program.

    ``deliver(log stream, frame kind, bytes)`` is called with every piece of output.
    """

    def __init__(self, streams: terminal.Streams, deliver: Callable[[int, int, bytes], None]) -> None:
        self.replay = bytearray()
        self._streams = streams
        self._deliver = deliver
        self._pending = bytearray()
        self._input_ended = False
        self._over = False
        self.look_at: float | None = None  # monotonic: when to look again at a terminal that nobody has open

    # -- polling -----------------------------------------------------------------------------------------------------

    @property
    def takes_input(self) -> bool:
        """Whether clients may send more."""
        return len(self._pending) < STDIN_LIMIT

    def set_interest(self, poll: select.poll, *, congested: bool) -> None:
        """Tell poll what matters now: output only while it can be passed on, input only while there is some."""
        streams = self._streams
        if self.look_at is not None and time.monotonic() >= self.look_at:
            self.look_at = None
        reading = 0 if congested or self.look_at is not None else select.POLLIN
        writing = select.POLLOUT if self._pending else 0
        _watch(poll, streams.output, reading | (writing if streams.tty else 0))
        _watch(poll, streams.errors, reading)
        if not streams.tty:
            _watch(poll, streams.source, writing)

    def on_event(self, poll: select.poll, fd: int, events: int) -> None:
        """What poll said of one descriptor; of others nothing happens."""
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
        """Read a piece of output and pass it on; False when there is none now or no more ever."""
        streams = self._streams
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody has the terminal open
            data = b""
        if not data and streams.tty and not self._over:
            # Who has closed it may still be on the way to its end, and would be sent a hang-up if we closed it too.
            self.look_at = time.monotonic() + LOOK_AGAIN_S
            return False
        if not data:
            self._close(fd)
            return False
        stream, kind = (ERR, frames.STDERR) if fd == streams.errors else (OUT, frames.STDOUT)
        if streams.tty:
            self.replay = (self.replay + data)[-REPLAY_LIMIT:]
        self._deliver(stream, kind, data)
        return True

    def drain(self) -> None:
        """What a dead tree wrote is still in the pipes; an escaped process may hold them open, but not us."""
        self._over = True
        limit = time.monotonic() + DRAIN_LIMIT_S
        while (outputs := self._outputs()) and time.monotonic() < limit:
            took = [self._take(fd) for fd in outputs]
            if not any(took) and self._outputs() and not _readable(self._outputs(), DRAIN_IDLE_S):
                return

    # -- input -------------------------------------------------------------------------------------------------------

    def give_input(self, data: bytes) -> None:
        """Bytes for the program; lost when it has closed its input, as in a pipe."""
        if self._streams.source is not None and not self._input_ended:
            self._pending += data
            self._feed(self._streams.source)

    def end_input(self) -> None:
        """No more: a pipe is closed once all is delivered, a terminal gets its end-of-input key."""
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
        """The terminal's new size; nothing without a terminal."""
        if self._streams.tty and self._streams.output is not None and rows and columns:
            terminal.resize(self._streams.output, rows, columns)

    def foreground_group(self) -> int | None:
        """The process group that the terminal's keys reach; None without a terminal."""
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
    """A hang-up is reported even when nothing is wanted, so then the descriptor is not polled at all."""
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
