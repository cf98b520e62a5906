"""What the agent needs of the machine, as Protocols: an inventory of GPUs, sharing modes, runners.

Each is found by entry point (``gpupool.inventories``, ``gpupool.sharing``, ``gpupool.runners``), so that a third party
can add one. Implementations may block: the agent calls inventories from one worker thread and with a time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self

from gpupool.domain.gpu import Gpu, NodeReport
from gpupool.domain.supervision import ProcessSpec


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


class SharingMode(Protocol):
    """How one program is kept to its shares of GPUs. Built without arguments; holds no state."""

    name: ClassVar[str]

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """Variables to add to the program's environment for its allocation (they win over the spec's own)."""

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """What of the allocation is not enforced, one sentence each."""


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
