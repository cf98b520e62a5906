"""What the agent needs of the machine, as Protocols: an inventory of GPUs, sharing modes, runners.

Each is found by entry point (``gpupool.inventories``, ``gpupool.sharing``, ``gpupool.runners``), so that a third party
can add one. Implementations may block: the agent calls inventories from one worker thread and with a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self, runtime_checkable

from gpupool.domain.gpu import Gpu, NodeReport
from gpupool.domain.supervision import ProcessSpec
from gpupool.domain.telemetry import GpuSample


class Inventory(Protocol):
    """What the machine has."""

    name: ClassVar[str]

    @classmethod
    def open(cls, node_name: str, options: str) -> Self:
        """Build one for a node; ``options`` is its own language (``4xT4,2xV100`` for emulated, empty for NVML).

        Raises ``GpupoolError`` when the machine cannot serve it (no driver, a bad option).
        """

    def report(self) -> NodeReport:
        """A full scan: name, processors, memory, driver and GPUs. May take seconds."""

    def gpus(self, pool_pids: frozenset[int]) -> tuple[Gpu, ...]:
        """The GPUs with fresh health, foreign processes and use.

        ``pool_pids`` are the processes of the pool's own trees: anything else found on a GPU is foreign.
        """


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One look at one GPU: bytes by process, and percent of its time by process (None: nobody can tell)."""

    sample: GpuSample
    memory: Mapping[int, int]
    percent: Mapping[int, float] | None


@runtime_checkable
class Meter(Protocol):
    """An inventory that can also measure; one that cannot is of GPUs whose use nobody knows."""

    def look(self) -> tuple[GpuLook, ...]:
        """One look at each GPU, once a second, so cheap; may block."""


@dataclass(frozen=True, slots=True)
class SliceCount:
    """What a sharing mode counted for a lease on one GPU: seconds that it had it, and bytes.

    ``at`` (monotonic seconds) is when that was. ``sole``: only one program is on the lease.
    """

    held_s: float
    used_bytes: int
    at: float
    sole: bool


@runtime_checkable
class Counting(Protocol):
    """A sharing mode that counts what its leases use."""

    def counts(self) -> Mapping[str, Mapping[str, SliceCount]]:
        """By the keys of programs, then by the UUIDs of GPUs."""


@dataclass(frozen=True, slots=True)
class SharingHost:
    """What a sharing mode is told of the node it serves.

    ``folder`` is its own place for what lives as long as programs do; other users pass through it where ``shared``
    (a pool of several users), and cannot list it. ``note(key, sentence)`` adds a note to a program, for all to see.
    """

    folder: Path
    inventory: Inventory
    shared: bool
    note: Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a mode has made ready for one program.

    ``env`` wins over the program's own variables. ``guarantee`` says in a sentence what holds; ``notes`` what does not.
    """

    mode: str
    env: dict[str, str]
    guarantee: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """A program that has been prepared and not released; ``folder`` has its records, its supervisor's among them."""

    spec: ProcessSpec
    env: dict[str, str]
    folder: Path


class SharingMode(Protocol):
    """How programs are kept to their shares of GPUs. Built with the host it serves, once for an agent's life.

    Everything runs on the agent's event loop and must not block for longer than a file takes. Between a ``prepare`` and
    its ``release`` the agent may be killed: the next one calls ``adopt`` before it serves anybody.
    """

    name: ClassVar[str]

    def __init__(self, host: SharingHost) -> None: ...

    def missing(self) -> str:
        """Why this node cannot use the mode and what would help, in a sentence; empty when it can."""

    async def adopt(self, running: Sequence[Running]) -> None:
        """Take over what an earlier agent prepared for these programs, and clear away what it prepared for others."""

    async def prepare(self, program: Running) -> Prepared:
        """Make ready for a program that is about to start (its ``env`` is empty). Several may have the same lease.

        Raises ``GpupoolError`` when that cannot be; nothing is left then.
        """

    async def release(self, program: Running) -> None:
        """No process of the program is left. May be called again, and for a program that was never prepared."""

    def helpers(self) -> frozenset[int]:
        """Processes that the mode itself runs on GPUs for programs: they are the pool's own. Any thread may ask."""

    async def close(self) -> None:
        """The agent ends; programs run on."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One program ready to be started: its folder on disk, its spec, and what the sharing mode adds."""

    folder: Path
    run_folder: Path
    spec: ProcessSpec
    added_env: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tree:
    """The processes of one program, its shepherd included, and the processor seconds of all it ever ran."""

    pids: frozenset[int]
    cpu_s: float


class Runner(Protocol):
    """Brings a supervised program into being and can find and end what is left of it. Built without arguments."""

    name: ClassVar[str]

    async def open(self) -> None:
        """Get ready (start helpers)."""

    async def launch(self, launch: Launch, lock_fd: int) -> int:
        """Start a shepherd that holds ``lock_fd`` for life; returns its pid.

        Raises ``ConnectionError`` when it is unknown whether one started (the lock will tell), ``OSError`` or
        ``GpupoolError`` when none did.
        """

    def survey(self, folders: Sequence[Path]) -> dict[str, Tree]:
        """By key, the processes of each program that has any left and the processor time they used. May block."""

    def end_remains(self, folder: Path) -> bool:
        """Kill what a lost shepherd left behind, without waiting; True when nothing was left. Call until it is."""

    def drop(self, folder: Path) -> None:
        """The program has ended: nothing about it need be remembered."""

    async def close(self) -> None:
        """Let helpers go; programs run on."""
