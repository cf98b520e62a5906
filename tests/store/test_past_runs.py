"""Past runs that ended by themselves: the basis of run time predictions."""

from __future__ import annotations

from store_values import lease, run_async, share, wid, workload

from gpupool.domain.events import Reason
from gpupool.domain.work.workload import Replica, ReplicaState
from gpupool.services.ports.store import ChangeSet, PastLease
from gpupool.store import open_store


def test_only_runs_that_ended_by_themselves_are_listed_oldest_first(target: str) -> None:
    ends = {
        1: (ReplicaState.SUCCEEDED, Reason.EXITED, 1, 50.0),
        2: (ReplicaState.FAILED, Reason.EXITED, 1, 60.0),
        3: (ReplicaState.FAILED, Reason.TIME_LIMIT, 1, 40.0),
        4: (ReplicaState.STOPPED, Reason.STOPPED_BY_USER, 1, 30.0),
        5: (ReplicaState.SUCCEEDED, Reason.EXITED, 2, 70.0),  # lease of an attempt that was evicted
        6: (ReplicaState.SUCCEEDED, Reason.EXITED, 1, None),  # not released yet
    }

    async def scenario() -> None:
        store = await open_store(target)
        try:
            await store.commit(
                ChangeSet(
                    tuple(workload(wid(n)) for n in ends),
                    tuple(
                        Replica(wid(n), 0, state, attempt, reason=why) for n, (state, why, attempt, _) in ends.items()
                    ),
                    tuple(
                        lease(n, wid(n), share("g", 500), attempt=1, granted_at=10.0, released_at=released)
                        for n, (_, _, _, released) in ends.items()
                    ),
                )
            )
            found = await store.past_runs(10)
            assert [(run.granted_at, run.released_at) for run in found] == [(10.0, 40.0), (10.0, 50.0)]
            assert await store.past_runs(1) == [PastLease(found[1].project, found[1].user, 500, 10.0, 50.0)]
        finally:
            await store.close()

    run_async(scenario())
