"""What the control plane and a node's agent say to each other about one process tree.

The agent knows nothing of projects or queues: it is told to keep one program running under one key and epoch, and it
reports what became of it. Both sides may die at any moment; every message is therefore idempotent by ``(key, epoch)``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from gpupool.domain.container import ContainerSpec
from gpupool.domain.gpu import ComputePolicy, GpuShare
from gpupool.domain.jobfiles import FilesSpec

__all__ = [
    "ContainerSpec",
    "ExitReason",
    "ExitReport",
    "LogChunk",
    "ProcessPhase",
    "ProcessSpec",
    "ProcessStatus",
    "Stdio",
]


FENCE_GRACE_S = 30.0  # at most, for a program that is fenced


class Stdio(StrEnum):
    """How the program's standard streams are connected."""

    TTY = "tty"  # one pseudo-terminal
    PIPES = "pipes"  # stdin, stdout and stderr apart
    BATCH = "batch"  # stdin is /dev/null, output goes to the log


NODE_PROGRAM = "@gpupool"  # as the first word of ``argv``: the second names a program of the pool's own on the node


class ProcessPhase(StrEnum):
    """Where a supervised program stands."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class ExitReason(StrEnum):
    """Why a program is no longer running, as the node saw it."""

    EXITED = "exited"  # by itself: see exit_code or signal
    STOPPED = "stopped"  # asked by the control plane
    TIME_LIMIT = "time_limit"  # max_time_s reached
    CLIENT_GONE = "client_gone"  # a client-bound program lost its client
    START_FAILED = "start_failed"  # no such program, folder or permission: see message
    SHEPHERD_LOST = "shepherd_lost"  # the supervising process was killed; the program was killed with it
    NODE_RESTARTED = "node_restarted"  # the machine went down
    FENCED = "fenced"  # the node had heard no control plane for so long that others may have taken it for lost
    NODE_LOST = "node_lost"  # said by the control plane: the node is silent, and nothing of the program is left


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One program to run and keep.

    ``gpus``, ``compute`` and ``sharing`` (the mode asked for; empty: the node's default) say what of which GPUs it may
    use. ``lease`` is the epoch of the lease that they come from (0: none): programs with the same one share one
    allocation. ``uid``/``gid`` None means the agent's own.
    ``notice_signal`` (``USR1``, ...) is how the program wants to be told that it has to go: TERM comes later then.
    ``client_bound``: the program starts when a client attaches and is stopped when that client goes away.
    ``memory_mib`` and ``cpus`` limit host memory and processors. Sizes of logs are MiB over all kept segments.
    ``files``: what it finds in the folder that is made for it, and ``cwd`` is then relative to that folder.
    ``container``: it runs in one, and ``argv`` may be empty; None: a plain process of the machine.
    ``ports`` of the node are kept free for it.
    ``fence_after_s``: it is ended when the node has been out of contact with the control plane for so long.
    """

    key: str
    epoch: int
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdio: Stdio = Stdio.BATCH
    rows: int = 24
    columns: int = 80
    client_bound: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int = 0o022
    grace_s: float = 10.0
    notice_signal: str = "TERM"
    max_time_s: float | None = None
    cpus: float | None = None
    memory_mib: int | None = None
    log_limit_mib: int = 64
    gpus: tuple[GpuShare, ...] = ()
    emulated: bool = False
    lease: int = 0
    compute: ComputePolicy = ComputePolicy.GUARANTEE
    sharing: str = ""
    container: ContainerSpec | None = None
    files: FilesSpec | None = None
    fence_after_s: float | None = None
    ports: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ProcessSpec:
        """The inverse of ``to_dict``; unknown keys (of a newer control plane) are dropped."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["argv"] = tuple(known["argv"])
        known["stdio"] = Stdio(known.get("stdio", Stdio.BATCH))
        known["gpus"] = tuple(GpuShare(**g) for g in known.get("gpus", ()))
        known["ports"] = tuple(known.get("ports", ()))
        known["compute"] = ComputePolicy(known.get("compute", ComputePolicy.GUARANTEE))
        known["files"] = FilesSpec.from_dict(known["files"]) if known.get("files") else None
        if known.get("container") is not None:
            known["container"] = ContainerSpec.from_dict(known["container"])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a program ended. ``signal`` is set when one killed it; times are seconds since the epoch."""

    reason: ExitReason
    exit_code: int | None
    signal: int | None
    message: str
    finished_at: float
    cpu_seconds: float = 0.0
    max_rss_mib: int = 0

    @property
    def status(self) -> int:
        """What a shell would show: the code, or 128 + signal; 127 when it never started."""
        if self.signal is not None:
            return 128 + self.signal
        return 127 if self.exit_code is None else self.exit_code


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What the agent knows of one program now; ``notes`` say which limits could not be enforced and why.

    ``mode`` is the sharing mode that it really runs under and ``guarantee`` what that holds to, in a sentence; both are
    empty where the agent does not say.
    """

    key: str
    epoch: int
    phase: ProcessPhase
    pid: int | None = None
    started_at: float | None = None
    exit: ExitReport | None = None
    last_active_at: float | None = None
    attach_path: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)
    mode: str = ""
    guarantee: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ProcessStatus:
        """The inverse of ``to_dict``; unknown keys are dropped."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["phase"] = ProcessPhase(known["phase"])
        known["notes"] = tuple(known.get("notes", ()))
        if known.get("exit"):
            report = dict(known["exit"])
            report["reason"] = ExitReason(report["reason"])
            known["exit"] = ExitReport(**report)
        return cls(**known)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a program's output: ``stream`` is ``out`` or ``err``; ``cursor`` is where the next one begins."""

    at: float
    stream: str
    data: bytes
    cursor: str
