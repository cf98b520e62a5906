"""The files that a pool stores on this machine: where, how much, and for how long."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupool.daemon.config import PoolConfig
from gpupool.daemon.folders import DATABASE, FILES_DIR, LOG_DIR, NODE_DIR
from gpupool.domain.units import format_duration
from gpupool.node.agent_main import MAX_LOG_AGE_S, MAX_LOG_BYTES
from gpupool.node.files.job_folders import MAX_IDLE_S
from gpupool.store.blobs import MAX_UNUSED_S

MAX_FILES = 2_000_000  # that are counted in one folder
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """One kind of stored files; ``bytes`` is None if this user may not read the folder."""

    what: str
    path: str
    kept: str
    bytes: int | None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Storage:
    """All kinds of files of a pool, and the space of their disk."""

    files: tuple[StoredFiles, ...]
    free_bytes: int
    total_bytes: int


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
    for what, path, kept in (
        ("logs of the pool", state / LOG_DIR, "16 MiB each"),
        ("live programs", state / NODE_DIR / "replicas", "while they run"),
        ("output of ended programs", state / NODE_DIR / "ended", ended),
        ("folders of jobs", state / "work", f"{_days(MAX_IDLE_S)} after the last use"),
        ("files in transfer", state / FILES_DIR, f"{_days(MAX_UNUSED_S)} after the last use"),
        ("homes of workspaces", state / "workspaces", "until deleted"),
    ):
        size, complete = folder_bytes(path)
        yield StoredFiles(what, str(path), kept, size, complete)


def _days(seconds: float) -> str:
    days = seconds / _DAY_S
    return f"{days:.0f} days" if days == int(days) else format_duration(seconds)


def folder_bytes(path: Path) -> tuple[int | None, bool]:
    """Return the bytes on the disk of a folder, and whether all of it was counted; None if it cannot be read.

    A file with several names counts once. Links are not followed.
    """
    try:
        os.scandir(path).close()
    except FileNotFoundError:
        return 0, True
    except OSError:
        return None, False
    unreadable: list[OSError] = []
    total, number = 0, 0
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(path, onerror=unreadable.append):
        number += len(folders) + len(files)
        if number > MAX_FILES:
            return total, False
        for name in (*folders, *files):
            with contextlib.suppress(OSError):  # it was deleted meanwhile
                found = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - os.walk returns text
                if (found.st_dev, found.st_ino) not in seen:
                    total += found.st_blocks * 512
                if found.st_nlink > 1:
                    seen.add((found.st_dev, found.st_ino))
    return total, not [error for error in unreadable if not isinstance(error, FileNotFoundError)]
