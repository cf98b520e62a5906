"""Where the agent keeps things on disk, safe ways to write there, and unix sockets with names of any length."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import attempt_key, split_attempt_key

SOCKET_NAME_LIMIT = 107  # bytes of sun_path less its final zero


def checked_key(key: str) -> str:
    """The key itself if it is one and safe as the name of a folder; raises ``GpupoolError(INVALID_NAME)``."""
    try:
        exact = attempt_key(*split_attempt_key(key)) == key
    except ValueError:
        exact = False
    if not exact:
        raise GpupoolError(ErrorCode.INVALID_NAME, f"'{key[:80]}' does not name a replica's attempt.")
    return key


@dataclass(frozen=True, slots=True)
class ReplicaFolder:
    """The files of one attempt at one replica."""

    path: Path

    @property
    def key(self) -> str:
        """The attempt's key."""
        return self.path.name

    @property
    def spec(self) -> Path:
        """What to run: written before anything starts."""
        return self.path / "spec.json"

    @property
    def lock(self) -> Path:
        """Held by the shepherd as long as it lives, and by whoever is about to start one."""
        return self.path / "lock"

    @property
    def shepherd(self) -> Path:
        """Who supervises and what it started: written by the shepherd before the program is forked."""
        return self.path / "shepherd.json"

    @property
    def stop(self) -> Path:
        """That the program is to end, and how gently: written before the shepherd is told."""
        return self.path / "stop.json"

    @property
    def notes(self) -> Path:
        """What the agent said of the program while it ran."""
        return self.path / "notes.json"

    @property
    def exit(self) -> Path:
        """How it ended: written once no process is left."""
        return self.path / "exit.json"

    @property
    def reserve(self) -> Path:
        """Room on the disk that becomes the exit file."""
        return self.path / "exit.reserve"

    @property
    def failure(self) -> Path:
        """The traceback of a shepherd that failed (a fault of ours)."""
        return self.path / "shepherd.err"

    @property
    def log(self) -> Path:
        """The folder of the program's output."""
        return self.path / "log"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """What outlives the agent: programs that run or have not been forgotten, ended ones with logs, epochs seen."""

    path: Path

    @property
    def lock(self) -> Path:
        """Held by the one agent that may use this folder."""
        return self.path / "agent.lock"

    @property
    def replicas(self) -> Path:
        """One folder for every attempt that has not been forgotten."""
        return self.path / "replicas"

    @property
    def ended(self) -> Path:
        """Forgotten attempts whose logs are still kept."""
        return self.path / "ended"

    @property
    def epochs(self) -> Path:
        """Empty files ``workload.index.attempt.epoch``: the newest seen of forgotten replicas."""
        return self.path / "epochs"

    def make(self) -> None:
        """Create what is missing, closed to others."""
        for folder in (self.path, self.replicas, self.ended, self.epochs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def replica(self, key: str) -> ReplicaFolder:
        """The folder of a key that has been checked."""
        return ReplicaFolder(self.replicas / key)

    def forgotten(self, key: str) -> ReplicaFolder:
        """Where that folder goes when the attempt is forgotten."""
        return ReplicaFolder(self.ended / key)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Sockets and notices. Users may pass through ``attach`` and ``notices`` to their own but not list them."""

    path: Path

    @property
    def agent(self) -> Path:
        """Where the control plane finds the agent."""
        return self.path / "agent.sock"

    @property
    def notify(self) -> Path:
        """Where shepherds drop hints that something changed."""
        return self.path / "notify.sock"

    @property
    def heard(self) -> Path:
        """When a control plane was heard last: see ``node.contact``."""
        return self.path / "heard"

    def attach(self, key: str) -> Path:
        """The socket of one program's shepherd."""
        return self.path / "attach" / f"{key}.sock"

    def notice(self, key: str) -> Path:
        """Where a program reads why it has to go."""
        return self.path / "notices" / f"{key}.json"

    def make(self, *, shared: bool) -> None:
        """Create what is missing; ``shared`` (a pool of several users) lets them pass to what is theirs."""
        mode = 0o711 if shared else 0o700
        self.path.mkdir(mode=mode, parents=True, exist_ok=True)
        for name in ("attach", "notices"):
            folder = self.path / name
            folder.mkdir(mode=mode, exist_ok=True)
            folder.chmod(mode)


def write_json(path: Path, value: Any, *, durable: bool) -> None:
    """Replace a file as a whole, readable by its owner only; ``durable`` also sees it on the disk. Raises OSError."""
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
    os.rename(temporary, path)  # noqa: PTH104 - likewise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when there is none, or not a whole one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def socket_name(path: Path | str) -> Iterator[str]:
    """A name for ``bind`` or ``connect`` that fits the limit, through a descriptor of the folder when it is long."""
    text = os.fspath(path)
    if len(os.fsencode(text)) <= SOCKET_NAME_LIMIT:
        yield text
        return
    folder, name = os.path.split(text)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def bind_socket(path: Path, kind: socket.SocketKind, uid: int | None = None) -> socket.socket:
    """A unix socket at ``path`` (an old one is replaced), mode 0600, given to ``uid``; not listening yet."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        with socket_name(path) as name:
            sock.bind(name)
        path.chmod(0o600)
        if uid is not None and uid != os.geteuid():
            os.chown(path, uid, -1)
    except OSError:
        sock.close()
        raise
    return sock


def boot_id() -> str:
    """Changes when the machine restarts; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
