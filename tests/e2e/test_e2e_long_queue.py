"""A pool with a very long queue is stopped with all its jobs by one command."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from e2e_pool import RealPool, fresh_pool

from gpupool.domain.ids import workload_id
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.workload import Program, Replica, Workload, WorkloadKind
from gpupool.services.ports.store import ChangeSet
from gpupool.store import open_store

JOBS = 10_000


async def fill(database: Path, jobs: int) -> None:
    """Write as many queued jobs as a night of submissions leaves."""
    store = await open_store(database)
    try:
        now = time.time()
        asked, program = GpuRequest(count=1), Program(("sleep", "600"), cwd="/")
        made = [
            Workload(workload_id(n), f"job-{n}", WorkloadKind.TRAINING, "default", "root", program, asked, now, uid=0)
            for n in range(jobs)
        ]
        await store.commit(ChangeSet(tuple(made), tuple(Replica(each.id, 0, queued_at=now) for each in made)))
    finally:
        await store.close()


def queued_and_running(pool: RealPool) -> tuple[int, int]:
    shown = pool.json("status")["pool"]
    return shown["queued"], shown["running"]


@pytest.mark.timeout(300)  # it only bounds a failing test, and machines may be busy
def test_down_stops_ten_thousand_queued_jobs_the_first_time() -> None:
    with fresh_pool("1xT4") as pool:
        pool.down()
        asyncio.run(fill(pool.state / "pool.db", JOBS))
        pool.up()
        assert queued_and_running(pool)[0] >= JOBS - 2
        done = pool("down", "--stop-jobs", timeout=250)
        assert b"the pool is stopped" in done.stderr + done.stdout
        pool.up()
        assert queued_and_running(pool) == (0, 0)
