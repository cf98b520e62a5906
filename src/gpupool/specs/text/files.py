"""Reading of named files: limited in size, and only as UTF-8 text."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.limits import MAX_FILE_BYTES


def read_bounded(path: Path, name: str) -> bytes:
    """Return a regular file's content; its size is checked before it is read.

    Raises ``GpupoolError``: TOO_LARGE, or INVALID_FILE if it is missing, unreadable or not a regular file.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise GpupoolError(ErrorCode.INVALID_FILE, f"{name} is not a regular file.", "Save it to a file first.")
            if status.st_size > MAX_FILE_BYTES:
                raise too_large(name)
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno or errno.EIO) if isinstance(error, OSError) else str(error)
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{name} cannot be read: {reason}.", "Check the path.") from error


def decode(data: bytes, name: str) -> str:
    """Return the text of a file; raise ``GpupoolError``: TOO_LARGE, or INVALID_FILE if it is not UTF-8."""
    if len(data) > MAX_FILE_BYTES:
        raise too_large(name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{name} is not UTF-8 text: byte {error.start} is invalid.", "Save it as UTF-8."
        ) from error


def too_large(name: str) -> GpupoolError:
    """Return the error for a file above the limit."""
    limit = MAX_FILE_BYTES // 2**20
    return GpupoolError(ErrorCode.TOO_LARGE, f"{name} is larger than {limit} MiB.", "Split it, or use a sweep.")
