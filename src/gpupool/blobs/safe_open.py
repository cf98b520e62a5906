"""Open files in a folder without following links, because others may change the folder at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def folder_at(root: str, path: str, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder ``path`` (empty: the root) below ``root``; ``make`` creates missing ones.

    Only the root's own path may contain links. Raises ``OSError`` (ELOOP, ENOTDIR if there is a link below it).
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.split("/") if path else ():
            below = _step(fd, part, make=make)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _step(fd: int, part: str, *, make: bool) -> int:
    if part in {"", ".", ".."}:
        raise ValueError("not a path inside a folder")
    try:
        return os.open(part, _FOLDER, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(part, 0o777, dir_fd=fd)
        return os.open(part, _FOLDER, dir_fd=fd)


def open_below(root: str, path: str, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of the file ``path`` below ``root``; follow no links and never block. Raises ``OSError``."""
    above, _, name = path.rpartition("/")
    if name in {"", ".", ".."}:
        raise ValueError("not a path inside a folder")
    with folder_at(root, above) as folder:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode, dir_fd=folder)
