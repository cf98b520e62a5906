"""The live part of the benchmark's pool: replicas that run on full GPUs, and a queue for which there is no room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import _year_names as names
from _year_names import GPUS_PER_NODE, NODES
from _year_past import put_gpu_use, request
from gpupool.domain.events import Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.work.workload import GpuLease, Limits, Replica, ReplicaState, Workload, WorkloadState
from gpupool.store.work import mapping

if TYPE_CHECKING:
    from _year import Book

MINUTE = 60


@dataclass(frozen=True, slots=True)
class Alive:
    """A running workload: its lease, and the part of its GPUs that it uses."""

    workload: Workload
    replica: Replica
    lease: GpuLease
    busy: float


def write_live(
    book: Book, rng: np.random.Generator, now: float, ids: list[str], first_epoch: int, running: int
) -> list[Alive]:
    """Write running workloads and, with the remaining ids, waiting ones; return the running ones."""
    places = list(_places(running))
    alive = [_alive(rng, WorkloadId(ids[at]), at, first_epoch + at, place, now) for at, place in enumerate(places)]
    waiting = [_waiting(rng, WorkloadId(key), at, now) for at, key in enumerate(ids[len(places) :])]
    book.put_dicts("workloads", [mapping.workload_row(w) for w in (*(a.workload for a in alive), *waiting)])
    replicas = [*(a.replica for a in alive), *(Replica(w.id, 0, queued_at=w.created_at) for w in waiting)]
    book.put_dicts("replicas", [mapping.replica_row(replica) for replica in replicas])
    book.put_dicts("leases", [mapping.lease_row(a.lease) for a in alive])
    book.put_dicts("lease_shares", [row for a in alive for row in mapping.share_rows(a.lease)])
    return alive


def _places(wanted: int) -> Iterator[tuple[int, int, int, int]]:
    """Return node, first GPU, number of GPUs and thousandths of ``wanted`` places: nearly all GPUs are full.

    Two thirds are slices, nine on a GPU; the others are whole GPUs, one or four at a time.
    """
    slices = next(
        some
        for some in range(wanted * 68 // 100, 0, -1)
        if (NODES * GPUS_PER_NODE - -(-some // 9) - (wanted - some)) % 3 == 0
    )
    sliced_gpus = -(-slices // 9)
    left = slices
    fours = (NODES * GPUS_PER_NODE - sliced_gpus - (wanted - slices)) // 3
    for number in range(NODES * GPUS_PER_NODE - 1, NODES * GPUS_PER_NODE - 1 - sliced_gpus, -1):
        for _ in range(min(9, left)):
            yield *divmod(number, GPUS_PER_NODE), 1, 105
        left -= min(9, left)
    number = 0
    for _ in range(fours):
        yield *divmod(number, GPUS_PER_NODE), 4, 1000
        number += 4
    while number < NODES * GPUS_PER_NODE - sliced_gpus:
        yield *divmod(number, GPUS_PER_NODE), 1, 1000
        number += 1


def _alive(
    rng: np.random.Generator, key: WorkloadId, number: int, epoch: int, place: tuple[int, int, int, int], now: float
) -> Alive:
    node, first, count, permille = place
    granted = now - float(rng.uniform(600, 20 * 3600))
    shares = tuple(names.share(node, first + offset, permille) for offset in range(count))
    user = int(rng.integers(names.USERS))
    workload = replace(
        request(count * permille, permille),
        **_identity(key, f"live-{number}", user),
        created_at=granted - 30.0,
        started_at=granted + 0.4,
        state=WorkloadState.RUNNING,
        limits=Limits(idle_timeout_s=8 * 3600.0),
    )
    busy = 0.0 if rng.random() < 0.07 else float(rng.beta(4.0, 1.6))
    replica = Replica(
        key, 0, ReplicaState.RUNNING, 1, names.node(node), Epoch(epoch), 4242, None, Reason.STARTED,
        queued_at=granted - 30.0, started_at=granted + 0.4, last_active_at=granted + 1 if busy == 0 else now,
        sharing="whole" if permille == 1000 else "share",
    )  # fmt: skip
    mode = "whole" if permille == 1000 else "share"
    who = (workload.project, workload.user)
    lease = GpuLease(Epoch(epoch), key, 0, 1, *who, names.node(node), shares, 0.0, 0, granted, sharing=mode)
    return Alive(workload, replica, lease, busy)


def _waiting(rng: np.random.Generator, key: WorkloadId, number: int, now: float) -> Workload:
    count = int(rng.choice((1, 1, 1, 2, 4, 8)))
    asked = request(count * 1000, 1000)
    who = _identity(key, f"queued-{number}", int(rng.integers(names.USERS)))
    return replace(asked, **who, created_at=now - float(rng.uniform(5, 6 * 3600)))


def _identity(key: WorkloadId, name: str, user: int) -> dict[str, Any]:
    return {"id": key, "name": name, "user": names.user(user), "project": names.project(user % names.PROJECTS)}


def write_minutes(book: Book, rng: np.random.Generator, now: float, hours: int, alive: list[Alive]) -> None:
    """Return the measurements of each minute of the last hours, of GPUs and running replicas."""
    last = int(now // MINUTE) * MINUTE
    steps = np.arange(last - hours * 3600, last, MINUTE)
    level = np.clip(0.55 + 0.25 * np.sin(2 * np.pi * steps / 86400), 0, 1)
    noise = rng.uniform(0.4, 1.3, (NODES * GPUS_PER_NODE, len(steps)))
    put_gpu_use(book, np.clip(level * noise, 0, 1) * MINUTE, steps, MINUTE)
    columns = tuple(column.name for column in book.columns("replica_use"))
    for one in sorted(alive, key=lambda a: a.workload.id):
        first = max(int(one.lease.granted_at // MINUTE + 1) * MINUTE, int(steps[0]) if len(steps) else last)
        book.put("replica_use", columns, (_minute(one, at) for at in range(first, last, MINUTE)))


def _minute(one: Alive, at: int) -> tuple[Any, ...]:
    busy = MINUTE * one.busy
    return (
        *(one.workload.id, 0, 1, MINUTE, at, 60, busy * len(one.lease.shares), 60.0 if busy == 0 else 3.0),
        *(6000.0, 8000, 150.0, 9000, 1 << 22, 1 << 18),
    )
