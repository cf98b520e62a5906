"""Pseudo-terminals and pipes for a program's standard streams."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from dataclasses import dataclass

from gpupool.domain.work.program.supervision import Stdio

_WINDOW = struct.Struct("HHHH")
END_OF_TRANSMISSION = b"\x04"  # the end-of-input key of a terminal


@dataclass(slots=True)
class Streams:
    """Our ends (``source``, ``output``, ``errors``; None if absent) and the program's three ends.

    With a terminal ``source`` and ``output`` are the same descriptor, the master's.
    """

    tty: bool
    source: int | None
    output: int | None
    errors: int | None
    program: tuple[int, int, int]

    def close_program_ends(self) -> None:
        """Close the program's ends after the fork; otherwise the end of output would never be seen."""
        for fd in set(self.program):
            os.close(fd)


def open_streams(stdio: Stdio, rows: int, columns: int) -> Streams:
    """Open all ends, ours non-blocking. Raises OSError."""
    if stdio is Stdio.TTY:
        return _open_terminal(rows, columns)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    if stdio is Stdio.PIPES:
        in_read, in_write = os.pipe()
        os.set_blocking(in_write, False)
        source: int | None = in_write
    else:
        in_read, source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), None
    os.set_blocking(out_read, False)
    os.set_blocking(err_read, False)
    program = (in_read, out_write, err_write)
    return Streams(tty=False, source=source, output=out_read, errors=err_read, program=program)


def _open_terminal(rows: int, columns: int) -> Streams:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    resize(master, rows, columns)
    return Streams(tty=True, source=master, output=master, errors=None, program=(slave, slave, slave))


def resize(master: int, rows: int, columns: int) -> None:
    """Set the size of the terminal; the foreground program gets SIGWINCH."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, _WINDOW.pack(rows, columns, 0, 0))


def foreground_group(master: int) -> int | None:
    """Return the process group that receives the terminal's keys; None if there is none."""
    try:
        group = os.tcgetpgrp(master)
    except OSError:
        return None
    return group if group > 0 else None
