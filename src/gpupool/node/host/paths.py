"""The agent's folders on disk, and safe ways to write files."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import attempt_key, split_attempt_key


def checked_key(key: str) -> str:
    """Return the key if it is valid and safe as a folder name; raise ``GpupoolError(INVALID_NAME)`` otherwise."""
    try:
        exact = attempt_key(*split_attempt_key(key)) == key
    except ValueError:
        exact = False
    if not exact:
        raise GpupoolError(ErrorCode.INVALID_NAME, f"'{key[:80]}' does not name a replica's attempt.")
    return key


@dataclass(frozen=True, slots=True)
class ReplicaFolder:
    """The files of one attempt of a replica."""

    path: Path

    @property
    def key(self) -> str:
        """Return the key of the attempt."""
        return self.path.name

    @property
    def spec(self) -> Path:
        """Return the file of the start request, written before anything starts."""
        return self.path / "spec.json"

    @property
    def lock(self) -> Path:
        """Return the lock file, held by a living shepherd or by the process that is about to start one."""
        return self.path / "lock"

    @property
    def shepherd(self) -> Path:
        """Return the shepherd's record, written before the program is forked."""
        return self.path / "shepherd.json"

    @property
    def stop(self) -> Path:
        """Return the file of a stop request with its grace period, written before the shepherd is signaled."""
        return self.path / "stop.json"

    @property
    def notes(self) -> Path:
        """Return the file of the agent's notes about the running program."""
        return self.path / "notes.json"

    @property
    def exit(self) -> Path:
        """Return the exit file, written when no process is left."""
        return self.path / "exit.json"

    @property
    def reserve(self) -> Path:
        """Return the reserved space on the disk that becomes the exit file."""
        return self.path / "exit.reserve"

    @property
    def failure(self) -> Path:
        """Return the file with the traceback of a shepherd that failed because of a bug."""
        return self.path / "shepherd.err"

    @property
    def log(self) -> Path:
        """Return the folder of the program's output."""
        return self.path / "log"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The files that outlive the agent: attempts that run or ended, logs, and epochs."""

    path: Path

    @property
    def lock(self) -> Path:
        """Return the lock file of the one agent that uses this folder."""
        return self.path / "agent.lock"

    @property
    def replicas(self) -> Path:
        """Return the folder with one folder per attempt that the agent has not forgotten."""
        return self.path / "replicas"

    @property
    def ended(self) -> Path:
        """Return the folder of forgotten attempts whose logs are kept."""
        return self.path / "ended"

    @property
    def term(self) -> Path:
        """Return the file with the newest term of a leader; see ``node/agent/attempt.py``."""
        return self.path / "term.json"

    @property
    def mig_instances(self) -> Path:
        """Return the file with the MIG instances that the pool has created; see ``node/inventory/mig_instances.py``."""
        return self.path / "mig-instances.json"

    @property
    def epochs(self) -> Path:
        """Return the folder of empty files ``workload.index.attempt.epoch``: the newest of forgotten replicas."""
        return self.path / "epochs"

    def make(self) -> None:
        """Create missing folders, closed to other users."""
        for folder in (self.path, self.replicas, self.ended, self.epochs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def replica(self, key: str) -> ReplicaFolder:
        """Return the folder of a key that was checked before."""
        return ReplicaFolder(self.replicas / key)

    def forgotten(self, key: str) -> ReplicaFolder:
        """Return the folder to which a forgotten attempt is moved."""
        return ReplicaFolder(self.ended / key)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Sockets, notices and progress files. Users may pass through their folders but not list them."""

    path: Path

    @property
    def agent(self) -> Path:
        """Return the socket of the agent for the control plane."""
        return self.path / "agent.sock"

    @property
    def notify(self) -> Path:
        """Return the socket on which shepherds send hints that something changed."""
        return self.path / "notify.sock"

    @property
    def heard(self) -> Path:
        """Return the file with the time of the last contact; see ``node/host/heartbeat.py``."""
        return self.path / "heard"

    def attach(self, key: str) -> Path:
        """Return the socket of one program's shepherd."""
        return self.path / "attach" / f"{key}.sock"

    def notice(self, key: str) -> Path:
        """Return the file in which a program reads its preemption notice."""
        return self.path / "notices" / f"{key}.json"

    def progress(self, key: str) -> Path:
        """Return the file in which a program reports its progress."""
        return self.path / "progress" / f"{key}.json"

    def make(self, *, shared: bool) -> None:
        """Create missing folders; ``shared`` (a pool of several users) lets users reach their own files."""
        mode = 0o711 if shared else 0o700
        self.path.mkdir(mode=mode, parents=True, exist_ok=True)
        for name in ("attach", "notices", "progress"):
            folder = self.path / name
            folder.mkdir(mode=mode, exist_ok=True)
            folder.chmod(mode)


def write_json(path: Path, value: Any, *, durable: bool) -> None:
    """Replace a whole file, readable by its owner only; ``durable`` also syncs it. Raises OSError."""
    temporary = f"{path}.tmp{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = json.dumps(value, separators=(",", ":")).encode()
        while data:
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 - plain strings keep the shepherd cheap
        raise
    finally:
        os.close(fd)
    os.rename(temporary, path)  # noqa: PTH104 - plain strings keep the shepherd cheap


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if there is no complete one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def boot_id() -> str:
    """Return an id that changes when the machine restarts; empty if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
