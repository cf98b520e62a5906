"""Find the processes that have a file open or mapped."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_TRIES = 10  # for a process whose threads end while it is looked at


class MappedFile:
    """A file that this process maps while it is entered, to learn how the kernel names the file in ``/proc/PID/maps``.

    That device and inode differ from those of ``stat`` on some file systems (overlayfs, btrfs).
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        """Map the file. Raises OSError, also if the kernel does not show the mapping."""
        with self._path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            found = os.fstat(file.fileno())
        self._file = (found.st_dev, found.st_ino)
        own = {row for row in _mappings("/proc/self") if row.endswith(os.fsencode(self._path))}
        if len(own) != 1:
            self._map.close()
            raise OSError(f"the mapping of {self._path} is not shown in /proc")
        self._name = own.pop().split(maxsplit=2)[:2]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the mapping."""
        self._map.close()

    def is_used_by(self, pid: int) -> bool:
        """Return whether a process has the file open or mapped; True if that cannot be read, False if it is gone.

        Open files come first: a file that is opened, mapped and closed is found at each moment. They are read from a
        thread that lives: the first thread of a process can end before the others, and then shows nothing.
        """
        for _ in range(_TRIES):
            try:
                task = _live_thread(pid)
                if task is None:
                    return False
                if self._is_open_in(task):
                    return True
                if rows := _mappings(task):
                    return any(row.split(maxsplit=2)[:2] == self._name for row in rows)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread or the process has ended
            except OSError:
                return True
        return True

    def _is_open_in(self, task: str) -> bool:
        for name in os.listdir(f"{task}/fd"):  # noqa: PTH208 - only names are needed
            try:
                found = os.stat(f"{task}/fd/{name}")  # noqa: PTH116 - a Path for each of many files is slow
            except (FileNotFoundError, ProcessLookupError):
                continue  # it was closed
            if (found.st_dev, found.st_ino) == self._file:
                return True
        return False


def _live_thread(pid: int) -> str | None:
    """Return the folder in /proc of a thread that has not ended; None if there is none, as in a zombie."""
    try:
        tasks = [f"/proc/{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - only names
    except FileNotFoundError:
        return None
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(task, "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX":
                return task
    return None


def _mappings(task: str) -> list[bytes]:
    """Return device, inode and path of each mapping of a process."""
    rows = Path(task, "maps").read_bytes().splitlines()
    return [parts[3] + b" " + parts[4] for row in rows if len(parts := row.split(maxsplit=4)) == 5]
