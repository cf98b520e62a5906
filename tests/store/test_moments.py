"""State of the pool at past moments, compared with manual counts."""

from __future__ import annotations

import random

from store_values import lease, run_async, share, wid, workload

from gpupool.domain.work.workload import GpuLease, Workload, WorkloadKind, WorkloadState
from gpupool.services.ports.store import ChangeSet
from gpupool.services.ports.usage import Moments
from gpupool.store import open_store

MOMENTS = Moments(first=100.0, step_s=10.0, count=9)


def wait(number: int, created: float, started: float | None, finished: float | None = None) -> Workload:
    state = WorkloadState.QUEUED if finished is None else WorkloadState.STOPPED
    times = {"created_at": created, "started_at": started, "finished_at": finished}
    return workload(wid(number), name=f"job-{number}", state=state, **times)


def kept(target: str, changes: ChangeSet) -> tuple[list[int], object]:
    async def scenario() -> tuple[list[int], object]:
        store = await open_store(target)
        try:
            await store.commit(changes)
            return list(await store.moments.waiting(MOMENTS)), await store.moments.held(MOMENTS)
        finally:
            await store.close()

    found: tuple[list[int], object] = run_async(scenario())
    return found


def test_workload_waits_from_submission_to_first_start_or_end(target: str) -> None:
    found, _ = kept(
        target,
        ChangeSet(
            workloads=(
                wait(1, 50.0, 105.0, 400.0),  # only it waited at 100
                wait(2, 50.0, 90.0, 200.0),  # had started before
                wait(3, 110.0, 130.0),  # waits at 110 and 120, starts at 130
                wait(4, 112.0, 119.0),  # between two moments
                wait(5, 20.0, None),  # at all moments
                wait(6, 95.0, None, 141.0),  # stopped while waiting
                wait(7, 181.0, None),  # after the last moment
                workload(wid(8), name="on", kind=WorkloadKind.EXEC, created_at=50.0),  # requests no GPUs
            )
        ),
    )
    assert found == [3, 3, 3, 2, 2, 1, 1, 1, 1]


def test_free_rest_of_a_partly_used_gpu_is_fragmented(target: str) -> None:
    _, found = kept(
        target,
        ChangeSet(
            leases=(
                lease(1, wid(1), share("a", 1000), share("b", 1000), granted_at=90.0, released_at=121.0),
                lease(2, wid(2), share("c", 250), granted_at=110.0, released_at=140.0),
                lease(3, wid(3), share("c", 750), granted_at=125.0, released_at=170.0),
                lease(4, wid(4), share("d", 100), granted_at=171.0),
                lease(5, wid(5), share("d", 100), granted_at=121.0, released_at=129.0),
            )
        ),
    )
    assert found.held == (2000, 2250, 2250, 1000, 750, 750, 750, 0, 100)  # type: ignore[attr-defined]
    assert found.pieces == (0, 750, 750, 0, 250, 250, 250, 0, 900)  # type: ignore[attr-defined]
    assert found.partly == (0, 1, 1, 0, 1, 1, 1, 0, 1)  # type: ignore[attr-defined]


def test_result_equals_state_at_each_moment(target: str) -> None:
    draw = random.Random(3)
    leases: list[GpuLease] = []
    for number in range(1, 120):
        granted = draw.uniform(0, 200)
        released = draw.choice([None, granted + draw.expovariate(1 / 40)])
        leases.append(lease(number, wid(number), share(f"g{number}", 400), granted_at=granted, released_at=released))
    _, found = kept(target, ChangeSet(leases=tuple(leases)))
    for number, at in enumerate(MOMENTS.times()):
        there = [one for one in leases if one.granted_at <= at and (one.released_at is None or one.released_at > at)]
        assert found.held[number] == 400 * len(there)  # type: ignore[attr-defined]
        assert found.partly[number] == len(there)  # type: ignore[attr-defined]
