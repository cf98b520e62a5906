"""Write a tree to a folder, with the rights of its user."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpupool.blobs.blob_store import convert_disk_full
from gpupool.blobs.run_as_user import UserRights
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import FileEntry, FileTree

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_PIECE = 1 << 20


def make(tree: FileTree, folder: Path, open_blob: Callable[[str], int], rights: UserRights) -> None:
    """Fill an empty folder with copies, so that later changes do not affect stored blobs or other copies.

    ``open_blob`` returns a descriptor for a digest and runs with the thread's own rights; everything else runs with the
    user's rights. Raises ``GpupoolError`` (DISK_FULL, INVALID_FILE if a blob is missing), ``OSError``.
    """
    with convert_disk_full(f"the disk of {os.uname().nodename}, or the user's part of it,"):
        with rights.user():
            for below in sorted(tree.folders, key=lambda entry: entry.path):
                os.mkdir(folder / below.path, 0o700)  # noqa: PTH102 - names need not be UTF-8, nor Path's form
        for file in tree.files:
            _write(file, os.path.join(folder, file.path), open_blob, rights)  # noqa: PTH118 - likewise
        with rights.user():
            for link in tree.links:
                os.symlink(link.target, folder / link.path)  # noqa: PTH211 - likewise
            for below in sorted(tree.folders, key=lambda entry: entry.path, reverse=True):
                os.chmod(folder / below.path, below.mode)  # noqa: PTH101 - likewise


def _write(file: FileEntry, path: str, open_blob: Callable[[str], int], rights: UserRights) -> None:
    try:
        source = open_blob(file.sha256)
    except FileNotFoundError as error:
        raise _gone() from error
    try:
        with rights.user():
            target = os.open(path, _NEW, 0o600)
            try:
                copy(source, target, file.size)
                if os.fstat(target).st_size != file.size:
                    raise _gone()
                os.fchmod(target, file.mode)
                os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
            finally:
                os.close(target)
    finally:
        os.close(source)


def copy(source: int, target: int, size: int) -> None:
    """Copy a whole file; if the file system supports it, by reference."""
    done = 0
    try:
        while done < size and (step := os.copy_file_range(source, target, size - done)):
            done += step
    except OSError as error:
        if error.errno not in _NO_COPY or done:
            raise
    if done < size:
        os.lseek(source, done, os.SEEK_SET)
        os.lseek(target, done, os.SEEK_SET)
        while piece := os.read(source, _PIECE):
            _write_all(target, piece)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _gone() -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_FILE, "Some of the files are no longer on the node.", "Submit the job again.")
