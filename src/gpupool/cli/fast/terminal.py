"""The user's terminal: whether there is one, its size, raw mode and back."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STDIN, STDOUT, STDERR = 0, 1, 2


def is_terminal(fd: int) -> bool:
    """Whether a descriptor is an open terminal."""
    try:
        return os.isatty(fd)
    except OSError:
        return False


def in_foreground(fd: int) -> bool:
    """Whether this process may read the terminal without being stopped for it (``&`` in a shell: it may not)."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # not the controlling terminal: nobody will stop us


def wants_terminal(choice: bool | None) -> bool:
    """Whether the program gets a terminal: as ``--tty``/``--no-tty`` say, else when in and output are terminals."""
    if choice is not None:
        return choice
    return is_terminal(STDIN) and is_terminal(STDOUT) and in_foreground(STDIN)


def size() -> tuple[int, int]:
    """Rows and columns of the user's terminal, 24 by 80 when there is none."""
    for fd in (STDOUT, STDIN, STDERR):
        try:
            columns, rows = os.get_terminal_size(fd)
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return 24, 80


class RawMode:
    """Keys go to the program untouched while this context is open, and the terminal is as before afterwards."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[Any] | None = None

    def __enter__(self) -> RawMode:  # noqa: PYI034 - Self would import typing
        if is_terminal(self._fd):
            import termios

            self._before = termios.tcgetattr(self._fd)
            self.enter()
        return self

    def enter(self) -> None:
        """Switch to raw mode; again after the process was stopped and continued."""
        if self._before is None or not in_foreground(self._fd):
            return
        import termios

        attributes = list(self._before)
        attributes[0] &= ~(termios.BRKINT | termios.ICRNL | termios.INPCK | termios.ISTRIP | termios.IXON)
        attributes[1] &= ~termios.OPOST
        attributes[2] = (attributes[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
        attributes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        attributes[6] = list(attributes[6])
        attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSADRAIN, attributes)

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            return
        import termios

        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        except termios.error:
            return  # the terminal itself has gone


class Keys:
    """Watches typed bytes for Ctrl-P Ctrl-Q, which leaves the program running and the terminal free."""

    FIRST, SECOND = 0x10, 0x11

    def __init__(self, *, detachable: bool) -> None:
        self._detachable = detachable
        self._held = False

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What to pass on, and whether the user wants to detach (nothing after it counts)."""
        if not self._detachable:
            return data, False
        passed = bytearray()
        for byte in data:
            if self._held and byte == self.SECOND:
                return bytes(passed), True
            if self._held:
                passed.append(self.FIRST)
            self._held = byte == self.FIRST
            if not self._held:
                passed.append(byte)
        return bytes(passed), False
