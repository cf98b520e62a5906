"""A folder as a value: its files, links and subfolders, and one canonical text for it.

The text (a *manifest*) is canonical JSON, so its SHA-256 identifies the folder's whole content. A manifest is not
trusted when it is read: paths stay inside the folder, each parent of a path is a folder, and sizes and counts are
limited. Names that are not UTF-8 are sent as Python's surrogate escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

VERSION = 1
MAX_ENTRIES = 100_000
MAX_TREE_BYTES = 16 << 30  # of all files of one tree
MAX_MANIFEST_BYTES = 48 << 20
MAX_PATH_BYTES = 4000
MAX_NAME_BYTES = 255
MODES = 0o777  # set-uid, set-gid and sticky bits are not transferred
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SPACE = re.compile(r"u-[A-Za-z0-9._@+-]{1,64}")
_MAX_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file: permission bits, modification time (nanoseconds since the epoch), size in bytes, and SHA-256."""

    path: str
    mode: int
    mtime_ns: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A symbolic link, unchanged: its target is not followed."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A folder below the root."""

    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class FileTree:
    """The content of a folder, each kind sorted by path."""

    files: tuple[FileEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    folders: tuple[FolderEntry, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Return the total size of all files."""
        return sum(file.size for file in self.files)

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return len(self.files) + len(self.links) + len(self.folders)

    def blobs(self) -> dict[str, int]:
        """Return the size of each distinct content, by SHA-256."""
        return {file.sha256: file.size for file in self.files}

    def to_bytes(self) -> bytes:
        """Return the manifest."""
        rows = {
            "version": VERSION,
            "files": [[f.path, f.mode, f.mtime_ns, f.size, f.sha256] for f in self.files],
            "links": [[link.path, link.target] for link in self.links],
            "folders": [[folder.path, folder.mode] for folder in self.folders],
        }
        return json.dumps(rows, separators=(",", ":")).encode()


def is_digest(text: object) -> bool:
    """Return whether this is a SHA-256 as 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_digest(text: object) -> str:
    """Return the digest; raise ``GpupoolError(INVALID_REQUEST)`` if it is not one."""
    if not isinstance(text, str) or not is_digest(text):
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "A SHA-256 must have 64 lower-case hexadecimal digits.", "")
    return text


def user_space(user: str) -> str:
    """Return the name of a user's separate file space; it is safe as a folder name."""
    return check_space(f"u-{user}")


def check_space(space: str) -> str:
    """Return the space; raise ``GpupoolError(INVALID_NAME)`` for a name that ``user_space`` never returns."""
    if _SPACE.fullmatch(space) is None:
        raise GpupoolError(ErrorCode.INVALID_NAME, f"'{space[:80]}' is not a user's file space.", "")
    return space


def check_tree(tree: FileTree) -> FileTree:
    """Return the tree if it can be created safely; raise ``GpupoolError`` (INVALID_FILE, TOO_LARGE)."""
    check_size(tree.count, tree.total_bytes)
    folders = {folder.path for folder in tree.folders}
    seen: set[str] = set()
    for path in _paths(tree):
        check_path(path)
        if path in seen:
            raise _broken(f"'{printable_path(path)}' is listed twice")
        seen.add(path)
        above = path.rpartition("/")[0]
        if above and above not in folders:
            raise _broken(f"'{printable_path(above)}' is not a folder, but the list has entries in it")
    for link in tree.links:
        if not 0 < len(_encoded(link.target)) <= MAX_PATH_BYTES or "\0" in link.target:
            raise _broken(f"the link '{printable_path(link.path)}' has an invalid target")
    return tree


def check_size(count: int, size: int) -> None:
    """Raise ``GpupoolError(TOO_LARGE)`` for more than may be transferred."""
    hint = "Exclude files with a .gpupoolignore file, or store large data on a shared file system."
    if count > MAX_ENTRIES:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"More than {MAX_ENTRIES} files would have to be sent.", hint)
    if size > MAX_TREE_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"More than {MAX_TREE_BYTES >> 30} GiB would have to be sent.", hint)


def check_path(path: str) -> str:
    """Return the path if it stays inside its folder; raise ``GpupoolError(INVALID_FILE)``."""
    parts = path.split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise _broken(f"'{printable_path(path)}' is not a path inside a folder")
    if len(_encoded(path)) > MAX_PATH_BYTES or any(len(_encoded(part)) > MAX_NAME_BYTES for part in parts):
        raise _broken(f"'{printable_path(path)}' is too long a path")
    return path


def printable_path(path: str) -> str:
    """Return a path in a form for messages."""
    return path.encode("utf-8", "backslashreplace").decode()[:200]


def tree_from_bytes(data: bytes) -> FileTree:
    """Parse and check a manifest; raise ``GpupoolError`` (INVALID_FILE, TOO_LARGE)."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, "The list of files is too long.", "Send fewer files.")
    try:
        rows = json.loads(data)
        if rows["version"] != VERSION:
            raise _broken("it is from another version of gpupool")
        return check_tree(
            FileTree(
                tuple(_file(*row) for row in rows["files"]),
                tuple(LinkEntry(_text(path), _text(target)) for path, target in rows["links"]),
                tuple(FolderEntry(_text(path), _integer(mode, MODES)) for path, mode in rows["folders"]),
            )
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _broken("it is not a list of files") from error


def _file(path: object, mode: object, mtime_ns: object, size: object, sha256: object) -> FileEntry:
    if not is_digest(sha256):
        raise ValueError("no digest")
    return FileEntry(
        _text(path), _integer(mode, MODES), _integer(mtime_ns, _MAX_NS), _integer(size, MAX_TREE_BYTES), str(sha256)
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    _encoded(value)
    return value


def _integer(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("not such a number")
    return value


def _paths(tree: FileTree) -> Iterable[str]:
    for entries in (tree.files, tree.links, tree.folders):
        for entry in entries:
            yield entry.path


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _broken(why: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_FILE, f"The list of files cannot be used: {why}.", "Send the files again.")


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """``tree`` is the SHA-256 of a manifest, ``space`` the owner's file space (``file_tree.user_space``).

    A node creates one folder for each ``workload``. Its programs, and exec programs on its GPUs, start there or in the
    subfolder that their ``cwd`` names. ``lock`` is the path of a file in it that defines an environment.
    """

    space: str
    tree: str
    workload: str
    lock: str = ""
