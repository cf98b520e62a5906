"""A folder as a value: which files, links and folders are in it, and the one text that says so.

The text (a *manifest*) is JSON in one form only, so its SHA-256 names the folder's whole content. Whoever reads one
trusts nothing in it: paths stay inside the folder, what lies above a path is a folder, and sizes and counts are
bounded. Names that are not UTF-8 travel as Python's surrogate escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

VERSION = 1
MOST_ENTRIES = 100_000
MOST_BYTES = 16 << 30  # of all files of one tree
MOST_MANIFEST_BYTES = 48 << 20
MOST_PATH_BYTES = 4000
MOST_NAME_BYTES = 255
MODES = 0o777  # no set-uid, set-gid or sticky bit travels
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SPACE = re.compile(r"u-[A-Za-z0-9._@+-]{1,64}")
_MOST_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file: permission bits, when it was changed (nanoseconds since the epoch), bytes, and their SHA-256."""

    path: str
    mode: int
    mtime_ns: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A symbolic link, as it is: where it leads is not looked at."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A folder below the root."""

    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class Tree:
    """All that is in a folder, each kind sorted by path."""

    files: tuple[FileEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    folders: tuple[FolderEntry, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The sizes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def count(self) -> int:
        """How many entries there are."""
        return len(self.files) + len(self.links) + len(self.folders)

    def blobs(self) -> dict[str, int]:
        """The size of each different content, by SHA-256."""
        return {file.sha256: file.size for file in self.files}

    def to_bytes(self) -> bytes:
        """The manifest."""
        rows = {
            "version": VERSION,
            "files": [[f.path, f.mode, f.mtime_ns, f.size, f.sha256] for f in self.files],
            "links": [[link.path, link.target] for link in self.links],
            "folders": [[folder.path, folder.mode] for folder in self.folders],
        }
        return json.dumps(rows, separators=(",", ":")).encode()


def is_digest(text: object) -> bool:
    """Whether this is a SHA-256 as 64 small hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_digest(text: object) -> str:
    """The digest itself; raises ``GpupoolError(INVALID_REQUEST)``."""
    if not isinstance(text, str) or not is_digest(text):
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "A SHA-256 has 64 small hexadecimal digits.", "")
    return text


def space_of(user: str) -> str:
    """Where a user's files are kept apart from everybody else's; safe as the name of a folder."""
    return check_space(f"u-{user}")


def check_space(space: str) -> str:
    """The space itself; raises ``GpupoolError(INVALID_NAME)`` for what ``space_of`` never gives."""
    if _SPACE.fullmatch(space) is None:
        raise GpupoolError(ErrorCode.INVALID_NAME, f"'{space[:80]}' does not name anybody's files.", "")
    return space


def checked(tree: Tree) -> Tree:
    """The tree itself if it can be made safely anywhere; raises ``GpupoolError`` (INVALID_FILE, TOO_LARGE)."""
    check_size(tree.count, tree.total_bytes)
    folders = {folder.path for folder in tree.folders}
    seen: set[str] = set()
    for path in _paths(tree):
        check_path(path)
        if path in seen:
            raise _broken(f"'{shown(path)}' is there twice")
        seen.add(path)
        above = path.rpartition("/")[0]
        if above and above not in folders:
            raise _broken(f"'{shown(above)}' is not a folder, but something is said to be in it")
    for link in tree.links:
        if not 0 < len(_encoded(link.target)) <= MOST_PATH_BYTES or "\0" in link.target:
            raise _broken(f"the link '{shown(link.path)}' leads nowhere that can be")
    return tree


def check_size(count: int, size: int) -> None:
    """Raise ``GpupoolError(TOO_LARGE)`` for more than may travel."""
    hint = "Leave some out with a .gpupoolignore file, or put large data where the pool's machines see it."
    if count > MOST_ENTRIES:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"More than {MOST_ENTRIES} files would have to travel.", hint)
    if size > MOST_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"More than {MOST_BYTES >> 30} GiB would have to travel.", hint)


def check_path(path: str) -> str:
    """The path itself if it stays below the folder it is in; raises ``GpupoolError(INVALID_FILE)``."""
    parts = path.split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise _broken(f"'{shown(path)}' is not a path inside a folder")
    if len(_encoded(path)) > MOST_PATH_BYTES or any(len(_encoded(part)) > MOST_NAME_BYTES for part in parts):
        raise _broken(f"'{shown(path)}' is too long a path")
    return path


def shown(path: str) -> str:
    """A path as it can be put into a sentence."""
    return path.encode("utf-8", "backslashreplace").decode()[:200]


def tree_from_bytes(data: bytes) -> Tree:
    """The tree that a manifest tells of, checked; raises ``GpupoolError`` (INVALID_FILE, TOO_LARGE)."""
    if len(data) > MOST_MANIFEST_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, "The list of files is too long.", "Send fewer files.")
    try:
        rows = json.loads(data)
        if rows["version"] != VERSION:
            raise _broken("it is of another version of gpupool")
        return checked(
            Tree(
                tuple(_file(*row) for row in rows["files"]),
                tuple(LinkEntry(_text(path), _text(target)) for path, target in rows["links"]),
                tuple(FolderEntry(_text(path), _whole(mode, MODES)) for path, mode in rows["folders"]),
            )
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _broken("it is not a list of files") from error


def _file(path: object, mode: object, mtime_ns: object, size: object, sha256: object) -> FileEntry:
    if not is_digest(sha256):
        raise ValueError("no digest")
    return FileEntry(
        _text(path), _whole(mode, MODES), _whole(mtime_ns, _MOST_NS), _whole(size, MOST_BYTES), str(sha256)
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    _encoded(value)
    return value


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("not such a number")
    return value


def _paths(tree: Tree) -> Iterable[str]:
    for entries in (tree.files, tree.links, tree.folders):
        for entry in entries:
            yield entry.path


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _broken(why: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_FILE, f"The list of files cannot be used: {why}.", "Send the files again.")
