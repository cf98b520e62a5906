"""The supervisor's files: `pool.lock` in the state folder (for successors), `state.json` in the run folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from gpupool.client.discovery import POOL_LOCK, STATE_FILE, Location
from gpupool.daemon.process.identity import ProcessIdentity
from gpupool.domain.errors import ErrorCode, GpupoolError

_RECORD_LIMIT_BYTES = 1 << 16
_STATE_LIMIT_BYTES = 1 << 20
_READ_ATTEMPTS = 20
_READ_PAUSE_S = 0.0005


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A supervisor, its host (several may share a state folder) and its children."""

    supervisor: ProcessIdentity
    host: str
    children: tuple[ProcessIdentity, ...] = ()

    @classmethod
    def read(cls, fd: int) -> Self | None:
        """Return the record in an open lock file; None if there is no readable one."""
        for _ in range(_READ_ATTEMPTS):
            try:
                text, again = (os.pread(fd, _RECORD_LIMIT_BYTES, 0) for _ in range(2))
            except OSError:
                return None
            found = cls._parse(text)
            if not text or (found is not None and text == again):
                return found
            time.sleep(_READ_PAUSE_S)
        return None

    @classmethod
    def _parse(cls, text: bytes) -> Self | None:
        try:
            data = json.loads(text)
            supervisor = ProcessIdentity.from_dict(data["supervisor"])
            children = (ProcessIdentity.from_dict(child) for child in data["children"])
            host = str(data["host"])
        except (ValueError, TypeError, KeyError):
            return None
        return cls(supervisor, host, tuple(c for c in children if c)) if supervisor else None

    @property
    def here(self) -> bool:
        """Return whether it was written on this host."""
        return self.host == os.uname().nodename

    @property
    def alive(self) -> bool:
        """Return whether its supervisor runs on this host."""
        return self.here and self.supervisor.alive


def write_record(fd: int, record: PoolRecord) -> None:
    """Write a record into the lock file that the caller holds. Raises ``OSError``.

    A reader may see a part of it (Linux does not lock a file for reads) and reads again.
    """
    text = json.dumps(asdict(record)).encode()
    os.pwrite(fd, text.ljust(os.fstat(fd).st_size), 0)  # overwrites a longer record completely


def read_record(state_dir: str) -> PoolRecord | None:
    """Return the record of a state folder, possibly of an ended supervisor; None without one.

    Raises ``PermissionError`` if the folder belongs to another user.
    """
    try:
        fd = os.open(Path(state_dir) / POOL_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return PoolRecord.read(fd)
    finally:
        os.close(fd)


def read_state(location: Location) -> dict[str, Any]:
    """Return the supervisor's last state of itself and its children; empty if there is none."""
    try:
        with (Path(location.run_dir) / STATE_FILE).open("rb") as file:
            data = json.loads(file.read(_STATE_LIMIT_BYTES))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    found = ProcessIdentity.of(os.getpid())
    if found is None:  # only without /proc
        raise GpupoolError(ErrorCode.POOL_START_FAILED, "There is no /proc here.", "Mount /proc: the pool needs it.")
    return found


def already_running(state_dir: str) -> GpupoolError:
    """Return the error of a second pool on one state folder."""
    record = read_record(state_dir)
    who = f" (pid {record.supervisor.pid})" if record else ""
    if record and not record.here:
        return GpupoolError(
            ErrorCode.POOL_ALREADY_RUNNING,
            f"A pool runs on {state_dir} on another machine, {record.host}{who}.",
            "The folder is shared between machines: set GPUPOOL_STATE_DIR to a local folder.",
        )
    return GpupoolError(
        ErrorCode.POOL_ALREADY_RUNNING,
        f"A pool already runs on {state_dir}{who}.",
        "See it with 'gpupool status', stop it with 'gpupool down', or set another GPUPOOL_STATE_DIR.",
    )
