"""A past that can be reckoned with pencil and paper, and what it comes to: pages, API, reports and metrics must agree.

Asked about is 10:30:15 to 13:10:45 of a day, which cuts two leases, two hours and a request::

    vision  ada  1 T4                10:00:00-11:00:00   asked for at 09:50:00
    vision  bob  1/4 of each of 2 T4 10:45:30-12:15:00   asked for at 10:40:30, first started 10:45:35
    speech  ada  1/10 of a T4        13:00:00-14:00:00   asked for at 13:00:00, first started 13:00:02.5
    speech  ada  1 V100              09:00:00-10:30:20   asked for at 08:00:00
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest, GpuShare
from gpupool.domain.people.access import Project
from gpupool.domain.work.workload import (
    GpuLease,
    Program,
    Replica,
    ReplicaState,
    Workload,
    WorkloadKind,
    WorkloadState,
)
from gpupool.services.ports.store import ChangeSet
from gpupool.store import open_store

DAY = 20_700 * 86_400  # 2026-09-04 in UTC


def at(clock: str) -> float:
    """Return a time of that day."""
    hours, minutes, seconds = clock.split(":")
    return DAY + int(hours) * 3600 + int(minutes) * 60 + float(seconds)


SINCE, UNTIL = at("10:30:15"), at("13:10:45")
SINCE_TEXT, UNTIL_TEXT = "2026-09-04T10:30:15+00:00", "2026-09-04T13:10:45+00:00"

# GPU seconds. vision: 1785 s of one GPU (10:30:15-11:00:00) and 5370 s of half a GPU; speech: 645 s of a tenth of one,
# and 5 s of one.
ALLOCATED = {"vision": 1785 + 5370 * 0.5, "speech": 645 * 0.1 + 5}
REQUESTED = {"vision": 1785 + 5670 * 0.5, "speech": 645 * 0.1 + 5}
# Of the hour that ada's lease was measured in, 1785 of 3600 s lie in the time; bob's two hours lie in it.
USED = {"vision": 1800 * 1785 / 3600 + 435 + 1000, "speech": None}
IDLE = {"vision": 900 * 1785 / 3600 + 600 * 0.5, "speech": None}
MEASURED = {"vision": 1785 + (870 + 3600) * 0.5, "speech": 0.0}
BY_USER = {"ada": 1785 + 645 * 0.1 + 5, "bob": 5370 * 0.5}
BY_MODEL = {"Tesla T4": 1785 + 5370 * 0.5 + 645 * 0.1, "Tesla V100": 5.0}
BY_NODE = {"n1": 1785 + 5370 * 0.5 + 5, "n2": 645 * 0.1}
GRANTED = {"vision": 1, "speech": 1}  # in the time; held at some time of it: two of each
WAITED = {"vision": 305.0, "speech": 2.5}  # of what was asked for in the time
RATES = ("--default", "3.60", "--model", "t4=1.80", "--currency", "EUR")
COST = {"vision": ALLOCATED["vision"] * 1.8 / 3600, "speech": 645 * 0.1 * 1.8 / 3600 + 5 * 3.6 / 3600}


def _work(number: int, who: tuple[str, str], asked: str, started: str, ended: str, gpus: GpuRequest) -> Workload:
    return Workload(
        id=WorkloadId(f"w{number:010d}"),
        name=f"case-{number}",
        kind=WorkloadKind.TRAINING,
        project=who[0],
        user=who[1],
        program=Program(argv=("true",)),
        gpus=gpus,
        created_at=at(asked),
        started_at=at(started),
        finished_at=at(ended),
        state=WorkloadState.SUCCEEDED,
    )


WORK = (
    _work(1, ("vision", "ada"), "09:50:00", "10:00:01", "11:00:00", GpuRequest()),
    _work(2, ("vision", "bob"), "10:40:30", "10:45:35", "12:15:00", GpuRequest(count=2, permille=250)),
    _work(3, ("speech", "ada"), "13:00:00", "13:00:02.5", "14:00:00", GpuRequest(permille=100)),
    _work(4, ("speech", "ada"), "08:00:00", "09:00:01", "10:30:20", GpuRequest()),
)
HELD = (
    ("10:00:00", "n1", (("t4-1", 1000),)),
    ("10:45:30", "n1", (("t4-2", 250), ("t4-3", 250))),
    ("13:00:00", "n2", (("t4-9", 100),)),
    ("09:00:00", "n1", (("v100-1", 1000),)),
)
MODELS = {"t4-1": "Tesla T4", "t4-2": "Tesla T4", "t4-3": "Tesla T4", "t4-9": "Tesla T4", "v100-1": "Tesla V100"}
MEASUREMENTS = (  # workload, hour, seconds looked at, of computing, of idling
    (1, 10, 3600, 1800.0, 900.0),
    (2, 10, 870, 435.0, 0.0),
    (2, 11, 3600, 1000.0, 600.0),
)


def _lease(number: int, workload: Workload) -> GpuLease:
    granted, node, shares = HELD[number - 1]
    return GpuLease(
        epoch=Epoch(number),
        workload=workload.id,
        index=0,
        attempt=1,
        project=workload.project,
        user=workload.user,
        node=node,
        shares=tuple(GpuShare(gpu, 0, permille, 100) for gpu, permille in shares),
        cpus=1.0,
        memory_mib=100,
        granted_at=at(granted),
        released_at=workload.finished_at,
    )


async def write(database: Path, summed_until: str | None = None) -> None:
    """Make a database with this past; hours before a time of the day are summed, as a pool does."""
    store = await open_store(database)
    try:
        for name in ("vision", "speech"):
            await store.projects.save(Project(name), Event(at("07:00:00"), "root", Reason.CHANGED, "created"))
        leases = [_lease(number, work) for number, work in enumerate(WORK, 1)]
        replicas = [
            Replica(w.id, 0, ReplicaState.SUCCEEDED, 1, lease.node, started_at=w.started_at, finished_at=w.finished_at)
            for w, lease in zip(WORK, leases, strict=True)
        ]
        await store.commit(ChangeSet(WORK, tuple(replicas), tuple(leases)))
        _write_measurements(database)
        while summed_until is not None and await store.usage_books.sum_next(at(summed_until)):
            pass
    finally:
        await store.close()


def _write_measurements(database: Path) -> None:
    names = "workload, replica_index, attempt, step_s, at, samples, busy_s, idle_s, gpu_memory_mean_mib"
    names += ", gpu_memory_max_mib, cpu_s, memory_max_mib, read_bytes, written_bytes"
    rows: list[Any] = [
        (WORK[number - 1].id, 0, 1, 3600, DAY + hour * 3600, samples, busy, idle, 0, 0, 0, 0, 0, 0)
        for number, hour, samples, busy, idle in MEASUREMENTS
    ]
    with sqlite3.connect(database) as conn:
        conn.executemany(f"INSERT INTO replica_use ({names}) VALUES ({', '.join('?' * 14)})", rows)
        conn.executemany("INSERT INTO gpu_models VALUES (?, ?, 16000)", MODELS.items())
    conn.close()
