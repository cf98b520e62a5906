"""What a member of a gang is told when it starts: its command and environment, by framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpupool.distributed import openmpi, tensorflow, torch
from gpupool.domain.wiring import Wiring
from gpupool.domain.workload import Framework, Workload


@dataclass(frozen=True, slots=True)
class Program:
    """What a member executes."""

    argv: tuple[str, ...]
    env: dict[str, str]


class Telling(Protocol):
    """What each framework's module has."""

    def ports_needed(self, workload: Workload, index: int) -> int:
        """How many free ports a member needs on its node."""

    def may_join(self, workload: Workload, old: Wiring, index: int, address: str, ports: tuple[int, ...]) -> bool:
        """Whether a member can take part in a round that has begun, there and with these ports."""

    def environment(self, workload: Workload, wiring: Wiring, index: int) -> dict[str, str]:
        """What a member finds in its environment."""

    def command(self, workload: Workload, wiring: Wiring, index: int, argv: tuple[str, ...]) -> tuple[str, ...]:
        """What a member executes."""


_OF_FRAMEWORK: dict[Framework, Telling] = {
    Framework.TORCH: torch,
    Framework.MPI: openmpi,
    Framework.TF: tensorflow,
}


def ports_needed(workload: Workload, index: int) -> int:
    """How many free ports a member needs on its node."""
    return 0 if workload.framework is None else _OF_FRAMEWORK[workload.framework].ports_needed(workload, index)


def may_join(workload: Workload, old: Wiring, index: int, address: str, ports: tuple[int, ...]) -> bool:
    """Whether a member can take part in a round that has begun; else all of it begins anew."""
    if workload.framework is None:
        return True
    return _OF_FRAMEWORK[workload.framework].may_join(workload, old, index, address, ports)


def told(workload: Workload, wiring: Wiring, index: int, argv: tuple[str, ...], env: dict[str, str]) -> Program:
    """The command and environment of a member; what the user set goes before what the framework is told."""
    if workload.framework is None:
        return Program(argv, env)
    telling = _OF_FRAMEWORK[workload.framework]
    common = {
        "GPUPOOL_ROUND": str(wiring.round),
        "GPUPOOL_RANK": str(wiring.rank_of(index)),
        "GPUPOOL_WORLD_SIZE": str(len(wiring.seats)),
    }
    environment = {**common, **telling.environment(workload, wiring, index), **env}
    return Program(telling.command(workload, wiring, index, argv), environment)
