"""Receive signals as bytes on a pipe, so that loops can poll them like other input.

No handler raises, so no code is interrupted half-way and the terminal is always restored.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # the C part: ``signal`` imports ``enum``, which takes milliseconds

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
TERMINATING = frozenset({int(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)})
WINDOW = int(signal.SIGWINCH)
CONTINUED = int(signal.SIGCONT)
PIPE = int(signal.SIGPIPE)


class SignalInbox:
    """Collects signals while it is open (a context manager); ``fd`` is readable when there are any.

    A signal that was ignored when the command started (``nohup``, a script's ``trap ''``) stays ignored.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, object] = {}
        self._wakeup_before = -1

    def __enter__(self) -> SignalInbox:  # noqa: PYI034 - Self would import typing
        for number in (*FORWARDED, signal.SIGWINCH, signal.SIGCONT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _ignore)
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # a value that signal() returned
        os.close(self.fd)
        os.close(self._write_fd)

    def take(self) -> bytes:
        """Return the numbers of the signals since the last call, one byte each; empty when there are none."""
        try:
            return os.read(self.fd, 512)
        except BlockingIOError:
            return b""


def _ignore(_signum: int, _frame: object) -> None:
    """Do nothing: Python writes the signal's number to the wakeup descriptor."""
