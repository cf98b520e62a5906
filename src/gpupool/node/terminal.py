"""Pseudo-terminals and pipes: how a program's standard streams reach its shepherd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from dataclasses import dataclass

from gpupool.domain.supervision import Stdio

_WINDOW = struct.Struct("HHHH")
END_OF_TRANSMISSION = b"\x04"  # what a terminal takes for the end of input


@dataclass(slots=True)
class Streams:
    """Our ends (``source``, ``output``, ``errors``: None where there is none) and the program's three.

    With a terminal ``source`` and ``output`` are the same descriptor, the master's.
    """

    tty: bool
    source: int | None
    output: int | None
    errors: int | None
    program: tuple[int, int, int]

    def close_program_ends(self) -> None:
        """After the fork: only the program may keep its ends open, or the end of output would never be seen."""
        for fd in set(self.program):
            os.close(fd)


def open_streams(stdio: Stdio, rows: int, columns: int) -> Streams:
    """All ends, ours non-blocking. Raises OSError."""
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
    """Tell the terminal its size; the foreground program gets SIGWINCH."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, _WINDOW.pack(rows, columns, 0, 0))


def foreground_group(master: int) -> int | None:
    """The process group that the terminal's keys reach; None when there is none."""
    try:
        group = os.tcgetpgrp(master)
    except OSError:
        return None
    return group if group > 0 else None
