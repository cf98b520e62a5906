"""Command and environment of a gang member, by framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpupool.distributed import openmpi, tensorflow, torch
from gpupool.domain.work.gang import Rendezvous
from gpupool.domain.work.workload import Framework, Serving, Workload


@dataclass(frozen=True, slots=True)
class MemberProgram:
    """The command and environment of a member."""

    argv: tuple[str, ...]
    env: dict[str, str]


class FrameworkModule(Protocol):
    """The interface of each framework's module."""

    def ports_needed(self, workload: Workload, index: int) -> int:
        """Return how many free ports a member needs on its node."""

    def may_join(self, workload: Workload, old: Rendezvous, index: int, address: str, ports: tuple[int, ...]) -> bool:
        """Return True if a member can join a running round, at this address with these ports."""

    def environment(self, workload: Workload, wiring: Rendezvous, index: int) -> dict[str, str]:
        """Return the variables of a member."""

    def command(self, workload: Workload, wiring: Rendezvous, index: int, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of a member."""


_MODULES: dict[Framework, FrameworkModule] = {
    Framework.TORCH: torch,
    Framework.MPI: openmpi,
    Framework.TF: tensorflow,
}


def ports_needed(workload: Workload, index: int) -> int:
    """Return how many free ports a member needs on its node; a replica of a service needs one."""
    if workload.program.serving is not None:
        return 1
    return 0 if workload.framework is None else _MODULES[workload.framework].ports_needed(workload, index)


def may_join(workload: Workload, old: Rendezvous, index: int, address: str, ports: tuple[int, ...]) -> bool:
    """Return True if a member can join a running round; otherwise the whole gang starts again."""
    if workload.framework is None:
        return True
    return _MODULES[workload.framework].may_join(workload, old, index, address, ports)


def member_program(
    workload: Workload, wiring: Rendezvous, index: int, argv: tuple[str, ...], env: dict[str, str]
) -> MemberProgram:
    """Return the command and environment of a member; the user's variables override the framework's."""
    if workload.program.serving is not None:
        return _server_program(workload.program.serving, wiring, index, argv, env)
    if workload.framework is None:
        return MemberProgram(argv, env)
    telling = _MODULES[workload.framework]
    common = {
        "GPUPOOL_ROUND": str(wiring.round),
        "GPUPOOL_RANK": str(wiring.rank_of(index)),
        "GPUPOOL_WORLD_SIZE": str(len(wiring.seats)),
    }
    environment = {**common, **telling.environment(workload, wiring, index), **env}
    return MemberProgram(telling.command(workload, wiring, index, argv), environment)


def _server_program(
    serving: Serving, wiring: Rendezvous, index: int, argv: tuple[str, ...], env: dict[str, str]
) -> MemberProgram:
    """Return a server's command and environment with its port and address."""
    seat = wiring.seat_of(index)
    if seat is None or not seat.ports:
        return MemberProgram(argv, env)
    port = str(seat.ports[0])

    def fill(text: str) -> str:
        return text.replace("{port}", port).replace("{host}", seat.address)

    filled = {name: fill(value) for name, value in env.items()}
    return MemberProgram(tuple(map(fill, argv)), {**filled, serving.port_env: port})
