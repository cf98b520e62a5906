"""Mounts in a mount namespace of one program, which no other process of the machine sees.

Later mounts of the machine still appear there, because the namespace is a slave of the machine's.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SLICE_FOLDER = "/run/gpupool-slice"  # GPUPOOL_SLICE_FOLDER in native/include/gpupool/pages.h
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder of the machine, and the path at which a program sees it."""

    source: str
    target: str

    @property
    def added(self) -> bool:
        """Return True if the target is in the folder that exists only for the program."""
        return self.target.startswith(f"{SLICE_FOLDER}/")


def leave_machine() -> None:
    """Move this process to a mount namespace of its own. Raises OSError."""
    if _libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "a mount namespace")
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)


def mount_memory(folder: Path, mode: int) -> None:
    """Mount a small file system in memory. Raises OSError."""
    _mount("gpupool", str(folder), "tmpfs", 0, f"mode={mode:04o},size=1m".encode())


def bind(source: str, target: str) -> None:
    """Show a file or folder at an existing path. Raises OSError."""
    _mount(source, target, None, _MS_BIND | _MS_REC)


def bind_all(binds: Sequence[Bind]) -> None:
    """Leave the machine's mount namespace and show the program these files, in order. Raises OSError.

    What is below ``SLICE_FOLDER`` comes first: it may be a file that another bind then covers.
    """
    leave_machine()
    mount_memory(Path(SLICE_FOLDER), 0o755)
    for each in sorted(binds, key=lambda each: not each.added):
        if each.added and Path(each.source).is_dir():
            Path(each.target).mkdir()
        elif each.added:
            Path(each.target).touch()
        bind(each.source, each.target)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: bytes | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*texts, ctypes.c_ulong(flags), data):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


if __name__ == "__main__":  # a rehearsal by the agent: the binds as JSON; exits with the error, if any
    try:
        bind_all([Bind(*pair) for pair in json.loads(sys.argv[1])])
    except OSError as failure:
        sys.exit(f"{failure.strerror}: {failure.filename}")
