"""What is in a workload's folder, read with its user's rights: the user's programs may be changing it meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpupool.blobs.rights import Rights, call_as
from gpupool.blobs.walk import folder_at, open_below
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import check_path, shown

MOST_LISTED = 1_000
MOST_READ = 1 << 20

Row = list[Any]  # path, kind, size, time of change in seconds, permission bits, a link's target


def listing(folder: Path, path: str, uid: int | None, after: str) -> list[Row]:
    """The thing at ``path`` (empty: the root) and what is below it, from after a path on, at most ``MOST_LISTED``.

    Raises ``GpupoolError(NOT_FOUND)`` when there is no such thing.
    """
    if path:
        check_path(path)
    return call_as(uid, lambda rights: _listing(str(folder), path, after, rights))


def _listing(root: str, path: str, after: str, rights: Rights) -> list[Row]:
    found: list[Row] = []
    with rights.user():
        try:
            itself = [_row(root, path)] if path else []
        except OSError as error:
            raise _missing(path, error) from error
        if itself and (itself[0][1] != "folder"):
            return itself if after < path else []
        for row in _below(root, path, after.split("/") if after else []):
            found.append(row)
            if len(found) == MOST_LISTED:
                break
    return found


def _below(root: str, path: str, after: list[str]) -> Iterator[Row]:
    """Everything below a folder in the order of paths part by part, without what is up to ``after``."""
    try:
        with folder_at(root, path) as fd:
            names = sorted(os.listdir(fd))  # noqa: PTH208 - of a descriptor
    except OSError:
        return  # it went away, or its user shut it
    for name in names:
        below = f"{path}/{name}" if path else name
        parts = below.split("/")
        if parts <= after and parts != after[: len(parts)]:
            continue
        try:
            row = _row(root, below)
        except OSError:
            continue
        if parts > after:
            yield row
        if row[1] == "folder":
            yield from _below(root, below, after)


def _row(root: str, path: str) -> Row:
    above, _, name = path.rpartition("/")
    with folder_at(root, above) as fd:
        about = os.stat(name, dir_fd=fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(about.st_mode) else ""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(about.st_mode), "special")
    return [path, kind, about.st_size if kind == "file" else 0, about.st_mtime, about.st_mode & 0o777, target]


def read(folder: Path, path: str, uid: int | None, offset: int, limit: int) -> bytes:
    """Bytes of a file; empty at its end. Raises ``GpupoolError`` (NOT_FOUND, INVALID_REQUEST for what is no file)."""
    check_path(path)
    return call_as(uid, lambda rights: _read(str(folder), path, offset, min(max(0, limit), MOST_READ), rights))


def _read(root: str, path: str, offset: int, limit: int, rights: Rights) -> bytes:
    with rights.user():
        try:
            fd = open_below(root, path, os.O_RDONLY)
        except OSError as error:
            raise _missing(path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{shown(path)}' is no file.", "Name a file.")
            return os.pread(fd, limit, max(0, offset))
        finally:
            os.close(fd)


def _missing(path: str, error: OSError) -> GpupoolError:
    if isinstance(error, PermissionError):
        return GpupoolError(ErrorCode.FORBIDDEN, f"'{shown(path)}' is not the work's own to read.", "")
    return GpupoolError(
        ErrorCode.NOT_FOUND,
        f"There is no '{shown(path)}' in the work's folder.",
        "'gpupool fetch NAME --list' lists it.",
    )
