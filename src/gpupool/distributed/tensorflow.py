"""TensorFlow: ``TF_CONFIG``, the JSON that its cluster resolver reads.

Tasks are the members by role, in the order of their numbers. TensorFlow's role names are ``chief``, ``worker``, ``ps``
and ``evaluator``. An evaluator is not part of the cluster: only its own TF_CONFIG names it.
"""

from __future__ import annotations

import json

from gpupool.domain.work.gang import Rendezvous
from gpupool.domain.work.workload import OnMemberEnd, Workload

CHIEFS = ("chief", "master")
EVALUATOR = "evaluator"
WORKER = "worker"
PARAMETER_SERVER = "ps"


def ports_needed(_workload: Workload, _index: int) -> int:
    """Return one port: every task serves the others."""
    return 1


def may_join(workload: Workload, old: Rendezvous, index: int, address: str, ports: tuple[int, ...]) -> bool:
    """Return True if a worker returns at its old address: the others do not get a new TF_CONFIG."""
    seat = old.seat_of(index)
    same = seat is not None and (seat.address, seat.ports) == (address, ports)
    return workload.on_member_end is OnMemberEnd.CONTINUE and same


def environment(workload: Workload, wiring: Rendezvous, index: int) -> dict[str, str]:
    """Return the ``TF_CONFIG`` of a member."""
    role, number = _task(workload, index)
    cluster: dict[str, list[str]] = {}
    for seat in wiring.seats:
        name, _ = _task(workload, seat.index)
        if name != EVALUATOR:
            cluster.setdefault(name, []).append(seat.endpoint)
    config = {"cluster": cluster, "task": {"type": role, "index": number}}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def command(_workload: Workload, _wiring: Rendezvous, _index: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command unchanged."""
    return argv


def _task(workload: Workload, index: int) -> tuple[str, int]:
    place = workload.place_in_roles(index)
    return (WORKER, index) if place is None else (place[0].name.lower(), place[1])
