"""The files that a pool stores on this machine: where, how much, and for how long."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gpupool.daemon.config import PoolConfig
from gpupool.daemon.folders import DATABASE, FILES_DIR, LOG_DIR, NODE_DIR
from gpupool.domain.units import format_duration
from gpupool.node.agent_main import MAX_LOG_AGE_S, MAX_LOG_BYTES
from gpupool.node.files.job_folders import MAX_IDLE_S
from gpupool.services.ports.storage import Storage, StoredFiles
from gpupool.store.blobs import MAX_UNUSED_S

MAX_FILES = 2_000_000  # that are counted in one folder
SNAPSHOTS = "snapshots"  # in the folder of a workspace
_DAY_S = 86_400.0


class FolderStorage:
    """Reads the folders of a pool, for its services."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config

    def read(self) -> Storage:
        """Return the files; see ``read_storage``."""
        return read_storage(self._config)


def read_storage(config: PoolConfig) -> Storage:
    """Return the files of the pool on this machine. Reads all its folders. Raises OSError if there are none."""
    state = Path(config.state_dir)
    disk = shutil.disk_usage(state)
    return Storage(tuple(_files(config, state)), disk.free, disk.total)


def _files(config: PoolConfig, state: Path) -> Iterator[StoredFiles]:
    days = config.retention_days
    ended = f"{_days(MAX_LOG_AGE_S)}, {MAX_LOG_BYTES >> 30} GiB in total"
    database = [path for path in state.glob(f"{DATABASE}*") if path.is_file()]
    size = sum(path.stat().st_size for path in database) if os.access(state, os.R_OK | os.X_OK) else None
    where = "PostgreSQL" if config.database else str(state / DATABASE)
    yield StoredFiles("database", where, f"events {days} days; copies until deleted", size)
    yield _total("logs of the pool", state / LOG_DIR, "16 MiB each")
    yield _by_id("live programs", state / NODE_DIR / "replicas", "while they run")
    yield _by_id("output of ended programs", state / NODE_DIR / "ended", ended)
    yield _by_id("folders of jobs", state / "work", f"{_days(MAX_IDLE_S)} after the last use")
    yield _total("files in transfer", state / FILES_DIR, f"{_days(MAX_UNUSED_S)} after the last use")
    yield _by_id("homes of workspaces", state / "workspaces", "until deleted", without=SNAPSHOTS)
    yield _by_id("snapshots of workspaces", state / "workspaces", "until deleted", inside=SNAPSHOTS)


def _total(what: str, path: Path, kept: str) -> StoredFiles:
    size, complete = folder_bytes(path)
    return StoredFiles(what, str(path), kept, size, complete)


def _by_id(what: str, path: Path, kept: str, *, inside: str = "", without: str = "") -> StoredFiles:
    """Return the files of a folder with one folder for each workload or workspace (``ID`` or ``ID.index.epoch``).

    ``inside`` and ``without`` are a folder in each of them: only this one, or all but this one.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except FileNotFoundError:
        return StoredFiles(what, str(path), kept, 0)
    except OSError:
        return StoredFiles(what, str(path), kept, None, complete=False)
    counter, sizes = FileCounter(), Counter[str]()
    for name in names:
        place = path / name / inside
        size = counter.count(place) - (FileCounter().count(place / without) if without else 0)
        sizes[name.partition(".")[0]] += max(size, 0)
    return StoredFiles(what, str(path), kept, sizes.total(), counter.complete, tuple(sizes.items()))


def _days(seconds: float) -> str:
    days = seconds / _DAY_S
    return f"{days:.0f} days" if days == int(days) else format_duration(seconds)


def folder_bytes(path: Path) -> tuple[int | None, bool]:
    """Return the bytes on the disk of a folder, and whether all of it was counted; None if it cannot be read."""
    try:
        os.scandir(path).close()
    except FileNotFoundError:
        return 0, True
    except OSError:
        return None, False
    counter = FileCounter()
    return counter.count(path), counter.complete


class FileCounter:
    """Counts the bytes on the disk of folders, up to ``MAX_FILES`` in all; ``complete`` is False if some are missing.

    A file with several names counts once. Links are not followed.
    """

    def __init__(self) -> None:
        self.complete = True
        self._number = 0
        self._seen: set[tuple[int, int]] = set()

    def count(self, path: Path) -> int:
        """Return the bytes of a folder."""
        total = 0
        for folder, folders, files in os.walk(path, onerror=self._note):
            self._number += len(folders) + len(files)
            if self._number > MAX_FILES:
                self.complete = False
                return total
            for name in (*folders, *files):
                with contextlib.suppress(OSError):  # it was deleted meanwhile
                    found = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - os.walk returns text
                    if (found.st_dev, found.st_ino) not in self._seen:
                        total += found.st_blocks * 512
                    if found.st_nlink > 1:
                        self._seen.add((found.st_dev, found.st_ino))
        return total

    def _note(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.complete = False
