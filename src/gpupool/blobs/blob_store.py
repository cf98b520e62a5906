"""A folder of blobs by their SHA-256, separated by owner.

Owners do not share blobs: a digest sent by another owner counts as unknown. Blobs appear complete or not at all; an
incomplete upload stays in ``parts`` and can be continued. Many processes and threads may use a folder at once. Nothing
is synced: a reader that copies a blob compares its digest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import check_digest, check_space

RESERVE_DIVISOR = 16  # a sixteenth of the disk, up to the maximum, stays free for databases and logs
MAX_RESERVE_BYTES = 256 << 20
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One blob of a folder: its digest, bytes, and the time of its last use (seconds since the epoch)."""

    sha256: str
    size: int
    used_at: float


class BlobFolder:
    """Blobs under ``path``; the methods block and raise ``OSError`` or ``GpupoolError`` (DISK_FULL, INVALID_FILE)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def have(self, space: str, sha256: str, size: int) -> int:
        """Return how many bytes of a blob are present: ``size`` if complete, -1 if none.

        The call counts as use, so the blob is kept longer.
        """
        blob = self._blob(space, sha256)
        try:
            os.utime(blob)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                return min(self._part(space, sha256).stat().st_size, max(size - 1, 0))
            return -1
        return size

    def write(self, space: str, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Append a piece; return the bytes present. A piece with another offset changes nothing.

        The last piece triggers the check of the digest: raises INVALID_FILE if it differs, and the blob is deleted.
        """
        if self._blob(space, sha256).exists():
            return size
        part = self._part(space, sha256)
        part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            here = os.fstat(fd)
            if here.st_nlink == 0 or here.st_size != offset:  # another process was faster
                return self.have(space, sha256, size)
            if offset + len(data) > size:
                raise GpupoolError(
                    ErrorCode.INVALID_REQUEST, "More bytes were sent than the file has.", "Send it again."
                )
            self.need_room(len(data))
            _write_at(fd, offset, data)
            if offset + len(data) < size:
                return offset + len(data)
            self._finish(space, sha256, fd)
            return size
        finally:
            os.close(fd)

    def _finish(self, space: str, sha256: str, fd: int) -> None:
        part = self._part(space, sha256)
        if _digest_of(fd) != sha256:
            part.unlink(missing_ok=True)
            raise GpupoolError(
                ErrorCode.INVALID_FILE, "The content does not match its SHA-256.", "Send the file again."
            )
        blob = self._blob(space, sha256)
        blob.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.rename(blob)

    def put(self, space: str, data: bytes) -> str:
        """Store a small blob; return its digest."""
        sha256 = hashlib.sha256(data).hexdigest()
        blob = self._blob(space, sha256)
        if blob.exists():
            os.utime(blob)
            return sha256
        self.need_room(len(data))
        blob.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = blob.with_name(f".{sha256}.{os.getpid()}.{time.monotonic_ns()}")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_at(fd, 0, data)
            fresh.rename(blob)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return sha256

    def open(self, space: str, sha256: str) -> int:
        """Return a descriptor to read a complete blob; raise ``FileNotFoundError``."""
        return os.open(self._blob(space, sha256), os.O_RDONLY | os.O_CLOEXEC)

    def read(self, space: str, sha256: str, offset: int = 0, limit: int = -1) -> bytes:
        """Return bytes of a complete blob; raise ``FileNotFoundError``."""
        with os.fdopen(self.open(space, sha256), "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(limit)

    def size(self, space: str, sha256: str) -> int | None:
        """Return the bytes of a complete blob; None if it is not present."""
        with contextlib.suppress(FileNotFoundError):
            return self._blob(space, sha256).stat().st_size
        return None

    def drop(self, space: str, sha256: str) -> None:
        """Delete a blob."""
        self._blob(space, sha256).unlink(missing_ok=True)

    def spaces(self) -> list[str]:
        """Return the owners of blobs."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in self.path.iterdir() if path.name.startswith("u-"))
        return []

    def blobs(self, space: str) -> Iterator[StoredBlob]:
        """Yield all blobs of one owner."""
        for folder in _entries(self.path / check_space(space) / "blobs"):
            for entry in _entries(folder.path):
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    yield StoredBlob(entry.name, found.st_size, found.st_mtime)

    def mark(self, space: str, sha256: str) -> None:
        """Record that a blob is the manifest of a tree, used now."""
        marks = self.path / check_space(space) / "trees"
        marks.mkdir(mode=0o700, parents=True, exist_ok=True)
        (marks / check_digest(sha256)).touch(mode=0o600)

    def marks(self, space: str) -> list[StoredBlob]:
        """Return the trees of one owner, least recently used first."""
        found = (
            StoredBlob(entry.name, 0, entry.stat().st_mtime)
            for entry in _entries(self.path / check_space(space) / "trees")
        )
        return sorted(found, key=lambda kept: kept.used_at)

    def is_marked(self, space: str, sha256: str) -> bool:
        """Return True if the blob is recorded as a tree's manifest."""
        return (self.path / check_space(space) / "trees" / check_digest(sha256)).exists()

    def unmark(self, space: str, sha256: str) -> None:
        """Remove the record that a blob is a tree's manifest."""
        (self.path / check_space(space) / "trees" / check_digest(sha256)).unlink(missing_ok=True)

    def drop_parts(self, space: str, before: float) -> None:
        """Delete incomplete uploads older than a time."""
        for entry in _entries(self.path / check_space(space) / "parts"):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < before:
                    os.unlink(entry.path)  # noqa: PTH108 - scandir returns strings

    def used_bytes(self) -> int:
        """Return the size of all blobs and parts of all owners."""
        return sum(self.used_by(space) for space in self.spaces())

    def used_by(self, space: str) -> int:
        """Return the size of one owner's blobs and parts."""
        parts = _entries(self.path / check_space(space) / "parts")
        return sum(kept.size for kept in self.blobs(space)) + sum(_size(entry) for entry in parts)

    def need_room(self, size: int) -> None:
        """Raise ``GpupoolError(DISK_FULL)`` if ``size`` more bytes would use space reserved for the pool."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = shutil.disk_usage(self.path)
        if disk.free - size < min(disk.total // RESERVE_DIVISOR, MAX_RESERVE_BYTES):
            raise disk_full(f"the disk of {os.uname().nodename}")

    def _blob(self, space: str, sha256: str) -> Path:
        return self.path / check_space(space) / "blobs" / check_digest(sha256)[:2] / sha256

    def _part(self, space: str, sha256: str) -> Path:
        return self.path / check_space(space) / "parts" / check_digest(sha256)


def disk_full(where: str) -> GpupoolError:
    """Return the error for files without space on the disk."""
    return GpupoolError(
        ErrorCode.DISK_FULL, f"No space for the files: {where} is full.", "Ask an administrator to free disk space."
    )


@contextlib.contextmanager
def convert_disk_full(where: str) -> Iterator[None]:
    """Convert a full disk or quota to DISK_FULL."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise disk_full(where) from error
        raise


def _entries(folder: Path | str) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _size(entry: os.DirEntry[str]) -> int:
    with contextlib.suppress(FileNotFoundError):
        return entry.stat().st_size
    return 0


def _write_at(fd: int, offset: int, data: bytes) -> None:
    with convert_disk_full(f"the disk of {os.uname().nodename}"):
        view = memoryview(data)
        while view:
            done = os.pwrite(fd, view, offset)
            offset, view = offset + done, view[done:]


def _digest_of(fd: int) -> str:
    total, at = hashlib.sha256(), 0
    while piece := os.pread(fd, _PIECE, at):
        total.update(piece)
        at += len(piece)
    return total.hexdigest()
