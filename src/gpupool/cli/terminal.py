"""The user's terminal: its presence, size and raw mode."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STDIN, STDOUT, STDERR = 0, 1, 2


def say(text: str) -> None:
    """Print one line for the user on stderr; a closed stderr is ignored."""
    write_stderr(f"gpupool: {text}\n")


def write_stderr(text: str) -> None:
    """Write text on stderr; a closed stderr is ignored."""
    try:
        os.write(STDERR, text.encode(errors="backslashreplace"))
    except OSError:
        return


def is_terminal(fd: int) -> bool:
    """Return whether a descriptor is an open terminal."""
    try:
        return os.isatty(fd)
    except OSError:
        return False


def in_foreground(fd: int) -> bool:
    """Return whether this process may read the terminal without being stopped (with ``&`` in a shell it may not)."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # not the controlling terminal: a read cannot stop this process


def wants_terminal(choice: bool | None) -> bool:
    """Return whether the program gets a terminal: by ``--tty``/``--no-tty``, else if stdin and stdout are terminals."""
    if choice is not None:
        return choice
    return is_terminal(STDIN) and is_terminal(STDOUT) and in_foreground(STDIN)


def size() -> tuple[int, int]:
    """Return rows and columns of the user's terminal, 24 by 80 when there is none."""
    for fd in (STDOUT, STDIN, STDERR):
        try:
            columns, rows = os.get_terminal_size(fd)
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return 24, 80


class RawMode:
    """Passes keys unchanged to the program while this context is open, and restores the terminal afterwards."""

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
        """Switch to raw mode; call again after the process was stopped and continued."""
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
            return  # the terminal is closed


class DetachKeyFilter:
    """Detects Ctrl-P Ctrl-Q in typed bytes, which detaches from the program and leaves it running."""

    FIRST, SECOND = 0x10, 0x11

    def __init__(self, *, detachable: bool) -> None:
        self._detachable = detachable
        self._held = False

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Return the bytes to forward, and whether the user detached (later bytes are ignored)."""
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
