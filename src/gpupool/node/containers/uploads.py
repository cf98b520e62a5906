"""Archives on their way to the node: written piece by piece, each piece where the last one ended."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError

MOST_BYTES = 64 << 30
KEEP_S = 86400.0
_NAME = re.compile(r"[a-z0-9]{8,64}")


class Uploads:
    """Files by name in a folder of the agent's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise GpupoolError(ErrorCode.INVALID_NAME, f"'{name[:80]}' does not name an upload.")
        return self._folder / name

    def put(self, name: str, offset: int, data: bytes) -> int:
        """Add a piece; how much there is now. A piece that came before is taken again, a gap is refused.

        Raises ``GpupoolError``: TOO_LARGE, WRONG_STATE, INTERNAL when the disk is full.
        """
        path = self._path(name)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if offset == 0:
                self._forget_old()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "r+b") as file:
                return _add(file.fileno(), offset, data)
        except OSError as error:
            path.unlink(missing_ok=True)
            sentence = f"The node cannot keep the archive: {error.strerror}."
            raise GpupoolError(ErrorCode.INTERNAL, sentence, f"Make room in {self._folder} on the node.") from error

    @contextlib.contextmanager
    def take(self, name: str) -> Iterator[int]:
        """A descriptor of the whole; the file goes at the end. Raises NOT_FOUND."""
        path = self._path(name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise GpupoolError(ErrorCode.NOT_FOUND, "The archive did not reach the node.", "Send it again.") from error
        try:
            yield fd
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def _forget_old(self) -> None:
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - KEEP_S:
                    path.unlink()


def _add(fd: int, offset: int, data: bytes) -> int:
    if offset + len(data) > MOST_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"An archive has at most {MOST_BYTES >> 30} GiB.")
    if offset > os.fstat(fd).st_size:
        raise GpupoolError(ErrorCode.WRONG_STATE, "A piece of the archive is missing.", "Send it again from the start.")
    left, at = memoryview(data), offset
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written
    return at
