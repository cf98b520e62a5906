"""What a supervisor writes down: `pool.lock` in the state folder (for successors), `state.json` in the run folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from gpupool.client.locate import STATE_FILE, Location
from gpupool.daemon.folders import POOL_LOCK
from gpupool.daemon.processes import ProcessIdentity
from gpupool.domain.errors import ErrorCode, GpupoolError

_RECORD_LIMIT_BYTES = 1 << 16
_STATE_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A supervisor, the host it runs on (a state folder may be shared by several) and its children."""

    supervisor: ProcessIdentity
    host: str
    children: tuple[ProcessIdentity, ...] = ()

    @classmethod
    def read(cls, fd: int) -> Self | None:
        """The record in an open lock file; None when there is none that can be read."""
        try:
            data = json.loads(os.pread(fd, _RECORD_LIMIT_BYTES, 0))
            supervisor = ProcessIdentity.from_dict(data["supervisor"])
            children = (ProcessIdentity.from_dict(child) for child in data["children"])
            host = str(data["host"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return cls(supervisor, host, tuple(c for c in children if c)) if supervisor else None

    @property
    def here(self) -> bool:
        """Whether it was written on this host."""
        return self.host == os.uname().nodename

    @property
    def alive(self) -> bool:
        """Whether its supervisor runs on this host."""
        return self.here and self.supervisor.alive


def write_record(fd: int, record: PoolRecord) -> None:
    """Put a record into the lock file that the caller holds, whole for whoever reads meanwhile. Raises ``OSError``."""
    text = json.dumps(asdict(record)).encode()
    os.pwrite(fd, text.ljust(os.fstat(fd).st_size), 0)  # a longer one before leaves nothing behind


def read_record(state_dir: str) -> PoolRecord | None:
    """The record of a state folder, of a supervisor that may be long gone; None without one.

    Raises ``PermissionError`` when the folder is somebody else's.
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
    """What the supervisor last said of itself and its children; empty when there is nothing to read."""
    try:
        with (Path(location.run_dir) / STATE_FILE).open("rb") as file:
            data = json.loads(file.read(_STATE_LIMIT_BYTES))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    found = ProcessIdentity.of(os.getpid())
    if found is None:  # only without /proc
        raise GpupoolError(ErrorCode.POOL_START_FAILED, "There is no /proc here.", "Mount it: the pool needs it.")
    return found


def already_running(state_dir: str) -> GpupoolError:
    """The error of a second pool on one state folder."""
    record = read_record(state_dir)
    who = f" (pid {record.supervisor.pid})" if record else ""
    if record and not record.here:
        return GpupoolError(
            ErrorCode.POOL_ALREADY_RUNNING,
            f"A pool runs on {state_dir} on another machine, {record.host}{who}.",
            "The folder is shared between machines: set GPUPOOL_STATE_DIR to one that is this machine's own.",
        )
    return GpupoolError(
        ErrorCode.POOL_ALREADY_RUNNING,
        f"A pool already runs on {state_dir}{who}.",
        "See it with 'gpupool status', stop it with 'gpupool down', or start another with GPUPOOL_STATE_DIR set.",
    )
