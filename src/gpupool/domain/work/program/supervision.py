"""Messages between the control plane and a node's agent about one process tree.

The agent knows no projects or queues. It keeps one program running under one key and epoch, and reports the result.
Both sides may die at any moment; every message is therefore idempotent by ``(key, epoch)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpupool.domain.decode import encode
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.work.program.container import ContainerSpec
from gpupool.domain.work.program.file_tree import FilesSpec

__all__ = [
    "ContainerSpec",
    "ExitReason",
    "ExitReport",
    "ProcessPhase",
    "ProcessSpec",
    "ProcessStatus",
    "Stdio",
]


FENCE_GRACE_S = 30.0  # the longest grace period of a fenced program
DEFAULT_RETURN_AFTER_S = 300.0  # without a process that uses CUDA, until a lazy program returns its GPUs


class Stdio(StrEnum):
    """The connection of the program's standard streams."""

    TTY = "tty"  # one pseudo-terminal
    PIPES = "pipes"  # separate stdin, stdout and stderr
    BATCH = "batch"  # stdin is /dev/null, output goes to the log


NODE_PROGRAM = "@gpupool"  # as the first word of ``argv``: the second word names a program of the pool itself


MAX_CHECK_CHARS = 4096  # of all words of a command that checks a program
MAX_CHECK_S = 30.0  # shorter than the time limit of a request to an agent


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A TCP port on which a process of a program listens."""

    port: int
    address: str
    pid: int
    program: str  # the name of the process

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> ListeningPort:
        """Read what ``to_list`` has written."""
        port, address, pid, program = values
        return cls(int(port), str(address), int(pid), str(program))

    def to_list(self) -> list[int | str]:
        """Return the values for JSON."""
        return [self.port, self.address, self.pid, self.program]


class ProcessPhase(StrEnum):
    """The state of a supervised program."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class ExitReason(StrEnum):
    """The reason why a program no longer runs, as the node saw it."""

    EXITED = "exited"  # by itself: see exit_code or signal
    STOPPED = "stopped"  # by request of the control plane
    TIME_LIMIT = "time_limit"  # max_time_s reached
    CLIENT_GONE = "client_gone"  # a client-bound program lost its client
    START_FAILED = "start_failed"  # no such program, folder or permission: see message
    IMAGE_FAILED = "image_failed"  # its container image is missing and cannot be pulled: see message
    ENVIRONMENT_FAILED = "environment_failed"  # its Python environment cannot be created: see message
    SHEPHERD_LOST = "shepherd_lost"  # the shepherd was killed, and the program with it
    NODE_RESTARTED = "node_restarted"  # the machine restarted
    FENCED = "fenced"  # out of contact with the control plane for so long that the node may count as lost
    NODE_LOST = "node_lost"  # set by the control plane: the node is silent, and nothing of the program is left


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One program to run and supervise.

    ``gpus``, ``compute`` and ``sharing`` (the requested mode; empty: the node's default) define its use of GPUs.
    ``lease`` is the epoch of its lease (0: none): programs with the same one share one allocation. ``uid``/``gid``
    None: the agent's own. ``notice_signal`` (``USR1``, ...) is the signal that announces the end; TERM follows later.
    ``client_bound``: the program starts when a client attaches and is stopped when that client leaves. ``linger_s``:
    then only its session is hung up, and other processes run on for this time after the last client. ``memory_mib``
    and ``cpus`` limit host memory and processors. Log sizes are MiB over all stored segments. ``files``: the content of
    the folder that is created for it; ``cwd`` is then relative to that folder. ``container``: it runs in one, and
    ``argv`` may be empty; None: a plain process of the machine. ``ports`` of the node are reserved for it.
    ``fence_after_s``: it is ended after this time without contact between node and control plane. ``record``: what a
    control plane needs to rebuild the workload if its database has lost it; the node only stores it
    (``services.lifecycle.adoption_records``). ``workspace``: it runs in the home of the workspace with this id (empty:
    none); ``cwd`` may then be relative to the home. ``lazy``: it starts without GPUs, and its first use of CUDA waits
    until ``gpus`` are attached, under the epoch ``gpu_epoch``. It returns them when no process has used CUDA for
    ``return_after_s`` (None: ``DEFAULT_RETURN_AFTER_S``); ``gpu_returned`` is the epoch of those returned last.
    ``suspendable``: its processes may be suspended, so that others can use its GPUs.
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
    linger_s: float | None = None
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
    record: dict[str, Any] = field(default_factory=dict)
    workspace: str = ""
    lazy: bool = False
    gpu_epoch: int = 0
    return_after_s: float | None = None
    gpu_returned: int = 0
    suspendable: bool = False

    @property
    def lease_number(self) -> int:
        """Return the number that it shares with the other programs on its lease."""
        return self.lease or self.epoch

    @property
    def separate_gpus(self) -> bool:
        """Return whether it gets and returns its GPUs while it runs."""
        return self.lazy or self.suspendable

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; the environment and the record are not copied."""
        fields: dict[str, Any] = encode(self)
        return fields


@dataclass(frozen=True, slots=True)
class ExitReport:
    """The end of a program. ``signal`` is set if a signal killed it; times are seconds since the epoch.

    ``memory_limited``: the kernel killed it because of its limit of host memory.
    """

    reason: ExitReason
    exit_code: int | None
    signal: int | None
    message: str
    finished_at: float
    cpu_seconds: float = 0.0
    max_rss_mib: int = 0
    memory_limited: bool = False

    @property
    def status(self) -> int:
        """Return the status that a shell would show: the code, or 128 + signal; 127 if it never started."""
        if self.signal is not None:
            return 128 + self.signal
        return 127 if self.exit_code is None else self.exit_code


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a program has reported: the time of its last checkpoint, and its step; None: not reported.

    ``metrics`` are its values by name, sorted; empty: not reported.
    """

    saved_at: float | None = None
    step: int | None = None
    metrics: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The agent's present knowledge of one program; ``notes`` list the limits that could not be enforced, and why.

    ``mode`` is the sharing mode in force and ``guarantee`` a sentence that says what it guarantees; both are empty if
    the agent does not report them. ``saved_at``, ``step`` and ``metrics`` are the program's ``Progress``.
    ``gpu_wanted_at``: when a lazy program first used CUDA (None: not yet). ``gpu_epoch``: the epoch under which it got
    its GPUs (0: it has none), ``gpu_returned`` that of those which it has returned (0: none). ``suspended_gpu`` is the
    UUID of the GPU whose memory it has in the memory of the node (empty: none). ``not_suspended`` says why the pool's
    request to suspend it on its present GPUs was refused (empty: it was not).
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
    saved_at: float | None = None
    step: int | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    gpu_wanted_at: float | None = None
    gpu_epoch: int = 0
    gpu_returned: int = 0
    suspended_gpu: str = ""
    not_suspended: str = ""

    def moved_by(self, seconds: float) -> ProcessStatus:
        """Return the status with all its times moved, from the clock of the node to that of the pool."""
        if not seconds:
            return self

        def moved(time: float | None) -> float | None:
            return None if time is None else time + seconds

        end = None if self.exit is None else replace(self.exit, finished_at=self.exit.finished_at + seconds)
        return replace(
            self,
            exit=end,
            started_at=moved(self.started_at),
            last_active_at=moved(self.last_active_at),
            saved_at=moved(self.saved_at),
            gpu_wanted_at=moved(self.gpu_wanted_at),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
