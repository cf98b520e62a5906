"""Writing a tree out as a folder, with the rights of the user it is for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpupool.blobs.keep import saying_full
from gpupool.blobs.rights import Rights
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import FileEntry, Tree

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_PIECE = 1 << 20


def make(tree: Tree, folder: Path, open_blob: Callable[[str], int], rights: Rights) -> None:
    """Fill an empty folder with copies: nothing written there later changes what is kept, or another's copy.

    ``open_blob`` gives a descriptor for a digest and is called with the thread's own rights; all else happens with
    those of the user. Raises ``GpupoolError`` (DISK_FULL, INVALID_FILE when a blob is gone), ``OSError``.
    """
    with saying_full(f"the disk of {os.uname().nodename}, or the user's part of it,"):
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


def _write(file: FileEntry, path: str, open_blob: Callable[[str], int], rights: Rights) -> None:
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
    """Copy a whole file; where the file system can, no bytes move at all."""
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
    return GpupoolError(
        ErrorCode.INVALID_FILE, "A part of the files is no longer kept on the node.", "Submit it again."
    )
