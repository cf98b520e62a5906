"""Scan of a folder to a tree, without excluded files; each file is read once."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpupool.blobs.ignore import GIT_IGNORE_FILE, IGNORE_FILE, MAX_PATTERNS_BYTES, Ignored, default_patterns
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import (
    MODES,
    FileEntry,
    FileTree,
    FolderEntry,
    LinkEntry,
    check_size,
    check_tree,
    printable_path,
)

_PIECE = 1 << 20
# By path: size, change of content and of anything (nanoseconds), number of the file, SHA-256.
Known = Mapping[str, tuple[int, int, int, int, str]]


@dataclass(slots=True)
class Scan:
    """The result of a scan; ``outside`` are links that lead out, ``special`` are neither files nor folders."""

    files: list[FileEntry] = field(default_factory=list)
    links: list[LinkEntry] = field(default_factory=list)
    folders: list[FolderEntry] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    seen: dict[str, tuple[int, int, int, int, str]] = field(default_factory=dict)
    count: int = 0
    size: int = 0

    def tree(self) -> FileTree:
        """Return the tree in its canonical order. Raises ``GpupoolError``."""
        return check_tree(
            FileTree(
                tuple(sorted(self.files, key=_path)),
                tuple(sorted(self.links, key=_path)),
                tuple(sorted(self.folders, key=_path)),
            )
        )


def scan(
    root: str, *, gitignore: bool = False, known: Known | None = None, tick: Callable[[int], None] | None = None
) -> Scan:
    """Scan everything below ``root``; links are stored and never followed.

    ``known`` avoids reading unchanged files; ``tick`` is called with the number of entries. Raises ``GpupoolError``
    (TOO_LARGE, INVALID_FILE for unreadable files).
    """
    found = Scan()
    names = (IGNORE_FILE, *((GIT_IGNORE_FILE,) if gitignore else ()))
    try:
        _look(found, root, "", default_patterns(), names, known or {}, tick)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE,
            f"'{printable_path(str(error.filename))}' cannot be read: {error.strerror}.",
            f"Make it readable, or leave it out with a line in {IGNORE_FILE}.",
        ) from error
    return found


def _look(  # noqa: PLR0913, PLR0917 - what every step of a recursion has to know
    found: Scan,
    root: str,
    below: str,
    ignored: Ignored,
    names: tuple[str, ...],
    known: Known,
    tick: Callable[[int], None] | None,
) -> None:
    with os.scandir(os.path.join(root, below)) as entries:  # noqa: PTH118 - names need not be UTF-8
        here = sorted(entries, key=lambda entry: entry.name)
    for name in names:
        if any(entry.name == name and entry.is_file(follow_symlinks=False) for entry in here):
            ignored = ignored.more(_patterns(os.path.join(root, below, name)), below)  # noqa: PTH118 - likewise
    for entry in here:
        path = f"{below}/{entry.name}" if below else entry.name
        if ignored.leaves(path, is_folder=entry.is_dir(follow_symlinks=False)):
            continue
        _take(found, path, entry, known)
        check_size(found.count, found.size)
        if tick is not None:
            tick(found.count)
        if entry.is_dir(follow_symlinks=False):
            _look(found, root, path, ignored, names, known, tick)


def _take(found: Scan, path: str, entry: os.DirEntry[str], known: Known) -> None:
    if entry.is_symlink():
        target = os.readlink(entry.path)  # noqa: PTH115 - names need not be UTF-8
        found.links.append(LinkEntry(path, target))
        if leads_out(path, target):
            found.outside.append(path)
    elif entry.is_dir(follow_symlinks=False):
        found.folders.append(FolderEntry(path, entry.stat(follow_symlinks=False).st_mode & MODES))
    elif entry.is_file(follow_symlinks=False):
        file = _file(path, entry.path, known, found.seen)
        if file is None:
            return
        found.files.append(file)
        found.size += file.size
    else:
        found.special.append(path)
        return
    found.count += 1


def _file(path: str, place: str, known: Known, seen: dict[str, tuple[int, int, int, int, str]]) -> FileEntry | None:
    fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return None
        check_size(0, about.st_size)
        before = known.get(path)
        if before is not None and tuple(before[:4]) == _marks(about):
            sha256, size = before[4], about.st_size
        else:
            sha256, size = digest(fd)
            about = os.fstat(fd)
        seen[path] = (*_marks(about), sha256)
        return FileEntry(path, about.st_mode & MODES, max(0, about.st_mtime_ns), size, sha256)
    finally:
        os.close(fd)


def _marks(about: os.stat_result) -> tuple[int, int, int, int]:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def digest(fd: int) -> tuple[str, int]:
    """Return the SHA-256 of an open file, and the number of bytes read."""
    total, size = hashlib.sha256(), 0
    while piece := os.read(fd, _PIECE):
        total.update(piece)
        size += len(piece)
    return total.hexdigest(), size


def leads_out(path: str, target: str) -> bool:
    """Return True if a link at ``path`` points outside the root folder, judged by its text."""
    if target.startswith("/"):
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(part, 1)
        if depth < 0:
            return True
    return False


def _patterns(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - names need not be UTF-8
        return file.read(MAX_PATTERNS_BYTES)


def _path(entry: FileEntry | LinkEntry | FolderEntry) -> str:
    return entry.path
