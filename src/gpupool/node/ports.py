"""The interfaces between the agent and the machine: inventories of GPUs, sharing modes, and runners.

Implementations are found by entry point (``gpupool.inventories``, ``gpupool.sharing``, ``gpupool.runners``), so that a
third party can add one. Inventories may block: the agent calls them from one worker thread, with a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from gpupool.domain.nodes.gpu import Gpu, NodeReport
from gpupool.domain.nodes.telemetry import GpuSample
from gpupool.domain.work.program.supervision import ExitReason, ProcessSpec
from gpupool.node.host.child import ProgramChild
from gpupool.node.host.mounts import Bind
from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.host.records import StartRequest


class Inventory(Protocol):
    """The hardware of the machine."""

    name: ClassVar[str]

    @classmethod
    def open(cls, node_name: str, options: str) -> Self:
        """Create an inventory for a node. Each kind defines ``options``: ``4xT4,2xV100`` for emulated, empty for NVML.

        Raises ``GpupoolError`` when the machine cannot serve it (no driver, a bad option).
        """

    def report(self) -> NodeReport:
        """Return a full scan: name, CPUs, memory, driver and GPUs. May take seconds."""

    def gpus(self, pool_pids: frozenset[int]) -> tuple[Gpu, ...]:
        """Return the GPUs with current health, foreign processes and use.

        ``pool_pids`` are the processes of the pool's own trees; any other process on a GPU is foreign.
        """


@dataclass(frozen=True, slots=True)
class GpuUsageSample:
    """One sample of one GPU, with bytes and percent of its time by process (None: not known)."""

    sample: GpuSample
    memory: Mapping[int, int]
    percent: Mapping[int, float] | None


@runtime_checkable
class Meter(Protocol):
    """An inventory that can also measure. The GPU use of other inventories is unknown."""

    def look(self) -> tuple[GpuUsageSample, ...]:
        """Take one sample of each GPU. It is called once per second, so it must be cheap; it may block."""


@runtime_checkable
class Partitionable(Protocol):
    """An inventory of cards on which MIG instances can be created."""

    def nvml(self, run_folder: Path, *, shared: bool) -> Any:
        """Return the NVML module (pynvml) for it; None if no card can be in MIG mode. May block. Raises OSError."""


@dataclass(frozen=True, slots=True)
class SliceCount:
    """The use of one GPU by a lease, counted by a sharing mode: seconds of GPU time, and bytes.

    ``at`` is the time of the count in monotonic seconds. ``sole``: only one program is on the lease.
    """

    held_s: float
    used_bytes: int
    at: float
    sole: bool


@runtime_checkable
class Counting(Protocol):
    """A sharing mode that counts the use of its leases."""

    def counts(self) -> Mapping[str, Mapping[str, SliceCount]]:
        """Return the counts by program key, then by GPU UUID."""


@runtime_checkable
class Attaching(Protocol):
    """A sharing mode whose programs can start without GPUs and get them while they run (lazy programs)."""

    def attach(self, program: NodeProgram) -> None:
        """Give the GPUs of the program's spec to its lease; repetitions change nothing.

        Raises OSError, or ``GpupoolError`` if that is not possible.
        """

    def wanted_at(self, program: NodeProgram) -> float | None:
        """Return when a program of its lease first used CUDA, in seconds since the epoch; None: not yet."""

    def in_use(self, program: NodeProgram) -> bool:
        """Return whether a process of its lease uses CUDA; quick, and only reliable when it is true."""

    def detach(self, program: NodeProgram, pids: Callable[[], frozenset[int]]) -> bool:
        """Take the GPUs from its lease, so that its next use of CUDA waits; False if a process can still use them.

        ``pids`` returns the processes of the lease. Raises OSError; nothing has changed then.
        """


@runtime_checkable
class Suspending(Protocol):
    """An ``Attaching`` mode that can move what processes have in GPU memory to the host's memory, and back.

    ``pids`` returns the processes of the lease; it may block.
    """

    def suspended_gpu(self, program: NodeProgram) -> str:
        """Return the UUID of the GPU whose memory the program's lease has in the host's memory; empty: none."""

    def calls(self, program: NodeProgram) -> int:
        """Return a number that changes with each call of the driver by a process of the lease."""

    async def suspend(self, program: NodeProgram, pids: Callable[[], frozenset[int]], timeout_s: float) -> None:
        """Suspend all processes of the lease and take its GPUs. Calls and work of the GPU must end within the time.

        Raises ``GpupoolError``; the processes run again then. The agent may be killed at any moment: then ``resume`` is
        called if the program's record still has GPUs.
        """

    async def resume(self, program: NodeProgram, pids: Callable[[], frozenset[int]]) -> None:
        """Let the processes of the lease run again, on the GPUs of the program's spec; repetitions change nothing.

        Raises OSError, ``GpupoolError``.
        """

    def want_gpus(self, program: NodeProgram) -> None:
        """Note that the suspended program wants its GPUs back, as if it had used CUDA. Raises OSError."""


@dataclass(frozen=True, slots=True)
class SharingHost:
    """The node, as a sharing mode sees it.

    ``folder`` is for files that live as long as the programs. In a pool of several users (``shared``), other users can
    pass through it but not list it. ``store`` is a folder on the disk with the same permissions. ``note(key,
    sentence)`` adds a note to a program that all users see. ``end_reason(key, sentence)`` is called before a process of
    a program is ended; the sentence becomes the reason in the exit report.
    """

    folder: Path
    inventory: Inventory
    shared: bool
    note: Callable[[str, str], None]
    end_reason: Callable[[str, str], None]
    store: Path


@dataclass(frozen=True, slots=True)
class PreparedShare:
    """The result of preparing one program.

    ``env`` overrides the program's own variables. ``guarantee`` says in a sentence what is enforced; ``notes`` what is
    not. ``binds`` are files that the program sees over those of the machine.
    """

    mode: str
    env: dict[str, str]
    guarantee: str = ""
    notes: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """A program between ``prepare`` and ``release``; ``folder`` has its records, including its shepherd's.

    ``path_inside`` is that of its ``ProgramTraits``.
    """

    spec: ProcessSpec
    env: dict[str, str]
    folder: Path
    path_inside: Callable[[str], str] = str


class SharingMode(Protocol):
    """The way in which programs are limited to their shares of GPUs. One object per agent.

    All methods run in the agent's event loop and must not block longer than a file access takes. The agent may be
    killed between ``prepare`` and ``release``: the next agent calls ``adopt`` before it serves requests.
    """

    name: ClassVar[str]

    def __init__(self, host: SharingHost) -> None: ...

    def missing(self) -> str:
        """Return why this node cannot use the mode and what would help, in a sentence; empty if it can."""

    async def adopt(self, running: Sequence[NodeProgram]) -> None:
        """Take over what an earlier agent prepared for these programs, and clean up after all others."""

    async def prepare(self, program: NodeProgram) -> PreparedShare:
        """Prepare a program that is about to start (its ``env`` is empty). Programs can share a lease.

        Raises ``GpupoolError`` if that is not possible; nothing is left then.
        """

    async def release(self, program: NodeProgram) -> None:
        """Clean up after the last process of the program. May be called twice, and without ``prepare``."""

    def helpers(self) -> frozenset[int]:
        """Return the mode's own processes on GPUs, which are not foreign. Any thread may call this."""

    async def close(self) -> None:
        """Stop with the agent; programs continue to run."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One program ready to start: its folder with the start request, and its spec."""

    folder: Path
    run_folder: Path
    spec: ProcessSpec


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The processes of one program with its shepherd, and the CPU seconds of all that it ever ran."""

    pids: frozenset[int]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """A program to prepare: its request, its folder (empty), and the keys of all programs that have not ended.

    ``files`` is the program's job folder or the home of its workspace, if it has one.
    """

    request: StartRequest
    folder: Path
    running: Collection[str] = ()
    files: Path | None = None


@dataclass(frozen=True, slots=True)
class ProgramTraits:
    """The properties of a program that its runner decides; the default is a process of the node.

    ``has_command``: it has a command of its own, so its spec needs none. ``has_login``: the home folder, the PATH and
    the user names come from where it runs, not from the node. ``path_inside`` returns the path under which it sees one
    of the pool's own files; other paths are unchanged.
    """

    has_command: bool = False
    has_login: bool = False
    path_inside: Callable[[str], str] = str


class Runner(Protocol):
    """Starts supervised programs, and finds and ends their remaining processes. Constructed without arguments.

    ``gpupool.testing.runner_conformance`` tests a runner. ``docs/contributing/add-a-runner.md`` has an example.
    """

    name: ClassVar[str]

    async def open(self) -> None:
        """Start helper processes."""

    async def adopt(self, keys: Collection[str]) -> None:
        """Clean up after all programs that an earlier agent started, except these."""

    def traits(self, spec: ProcessSpec) -> ProgramTraits:
        """Return the properties of a program before it is prepared. Called often, so it must be fast."""

    async def prepare(self, program: PrepareRequest) -> StartRequest:
        """Return the request that the shepherd gets, with another command for example; write files into the folder.

        Raises ``GpupoolError`` or ``OSError`` if the program cannot run; the folder is then deleted.
        """

    async def launch(self, launch: LaunchRequest, lock_fd: int) -> int:
        """Start a shepherd that holds ``lock_fd`` as long as it lives; return its pid.

        Raises ``ConnectionError`` when it is unknown if one was started (its lock shows that), ``OSError`` or
        ``GpupoolError`` when none was.
        """

    async def check_command(self, folder: Path, argv: Sequence[str], timeout_s: float) -> str:
        """Execute a command where a program runs; return its problem, empty if it ends with status 0 in time.

        Its time and its output are limited, and no process is left. Raises ``OSError`` or ``GpupoolError``.
        """

    def survey(self, folders: Sequence[Path]) -> dict[str, ProcessTree]:
        """Return, by key, the processes of each program that has any, and their CPU time. May block."""

    def end_remains(self, folder: Path) -> bool:
        """Kill what a lost shepherd left, without waiting; return True if nothing was left. Call until then."""

    async def clean(self, folder: Path) -> None:
        """Remove what a program has left outside of its folder. No process is left; may be called twice."""

    def drop(self, folder: Path) -> None:
        """Forget a program that has ended."""

    async def close(self) -> None:
        """Stop helper processes; programs continue to run."""


class ImageStore(Protocol):
    """The images from which programs can start on the node."""

    async def answer(self, params: dict[str, Any]) -> Any:
        """Answer an image request by ``what``: ``list``, ``put``, ``import``, ``pull``, ``job`` or ``remove``.

        ``import`` and ``pull`` may take long: they return the name of a job. Raises ``GpupoolError``.
        """


class ImageLayers(Protocol):
    """The changes of images that workspaces keep: what their containers wrote outside of the home.

    All methods block and can be repeated; they do nothing for a workspace that never had a container. They raise
    ``GpupoolError`` if the engine fails, and lose nothing then. No program of the workspace runs.
    """

    def snapshot(self, workspace: str, snapshot: str) -> None:
        """Keep the present layers under the name of a snapshot."""

    def restore(self, workspace: str, snapshot: str) -> None:
        """Replace the present layers by those of a snapshot; without any, by the image of the workspace."""

    def clone(self, source: str, snapshot: str, workspace: str) -> None:
        """Give a new workspace the layers of another one, or of its snapshot."""

    def drop(self, workspace: str, snapshot: str) -> None:
        """Delete the layers of a snapshot."""

    def delete(self, workspace: str) -> None:
        """Delete all layers of a workspace."""

    def used_bytes(self, workspace: str) -> int:
        """Return the bytes of all layers that are kept, without those of the original image."""


class Execution(Protocol):
    """The part of a runner inside the shepherd of one program: starts it, and signals and ends its processes.

    The runner names the class in ``StartRequest.execution``. It is loaded after the fork of the shepherd.
    """

    def __init__(self, folder: ReplicaFolder, spec: ProcessSpec) -> None: ...

    extra_cgroups: tuple[str, ...]  # control groups of the program that others than the shepherd make
    helper_grace_s: float | None  # how long helper processes may outlive the program; None: not at all

    def check(self) -> None:
        """Raise ``StartError`` if the program cannot start."""

    def child(self, plain: ProgramChild) -> ProgramChild:
        """Return the child that becomes the program, or the command that starts it."""

    def command_child(self, plain: ProgramChild) -> ProgramChild:
        """Return the child that becomes another command where the program runs; ``plain`` has its words."""

    def send(self, signals: tuple[int, ...], *, catching: bool, ended: bool) -> bool:
        """Signal the program; return False if all processes below the shepherd have to be signalled.

        ``catching``: only processes with their own handler. ``ended``: the program has ended, but not its helpers.
        """

    def send_to_foreground(self, signum: int) -> bool:
        """Signal the program's foreground process group; return False if the shepherd has to find it."""

    def on_helper_exit(self) -> bool:
        """Return True if the end of another child than the program means that the program has to end."""

    def out_of_memory(self, groups: tuple[str, ...]) -> bool:
        """Return True if the memory limit of these control groups ended a process of the program."""

    def failed_to_start(self, status: int) -> ExitReason | None:
        """Return why the child ended with this exit code before it became the program; None if it became it.

        Its output has the details.
        """

    def close(self) -> None:
        """End what is not below the shepherd."""
