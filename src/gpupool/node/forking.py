"""Fork straight into a control group.

Moving a running process from one group to another can take tens of milliseconds of waiting in the kernel; being born
there (``clone3`` with ``CLONE_INTO_CGROUP``, Linux 5.7, see clone(2)) takes none.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

_CLONE3 = 435  # the same number on every architecture
_CLONE_INTO_CGROUP = 0x2_0000_0000
_ARGUMENTS = struct.Struct("=11Q")  # struct clone_args up to its field `cgroup`

# PyDLL: the interpreter's lock is kept across the call, as both processes go on with it.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def fork_into(folder: str | None) -> int:
    """As ``os.fork``, but the child begins in a group of the unified hierarchy; plainly forked where that cannot be.

    Only for a process with one thread whose child soon executes a program: the interpreter is not told of the fork.
    Raises OSError as ``os.fork`` does.
    """
    pid = None if folder is None else _clone(folder)
    return os.fork() if pid is None else pid


def _clone(folder: str) -> int | None:
    """None when the kernel would not."""
    try:
        group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    arguments = _ARGUMENTS.pack(_CLONE_INTO_CGROUP, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, 0, 0, group)
    try:
        buffer = ctypes.create_string_buffer(arguments, _ARGUMENTS.size)
        pid = int(_libc.syscall(ctypes.c_long(_CLONE3), buffer, ctypes.c_size_t(_ARGUMENTS.size)))
    finally:
        os.close(group)
    return None if pid < 0 else pid
