"""Commits are atomic, never overwrite concurrent changes, and never grant a GPU twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from store_values import event, lease, run_async, share, wid, workload

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.workload import Replica, ReplicaState, WorkloadState
from gpupool.services.ports.store import ChangeSet, EventFilter, LiveState
from gpupool.store import SqlStore, open_store

A, B, C = wid(1), wid(2), wid(3)


@asynccontextmanager
async def opened(target: str) -> AsyncIterator[SqlStore]:
    store = await open_store(target)
    try:
        yield store
    finally:
        await store.close()


def with_store(target: str, scenario: Callable[[SqlStore], Awaitable[None]]) -> None:
    async def run() -> None:
        async with opened(target) as store:
            await scenario(store)

    run_async(run())


async def refused(store: SqlStore, changes: ChangeSet, code: ErrorCode = ErrorCode.STALE_WRITE) -> GpupoolError:
    """Return the error of a commit, which must have changed nothing."""
    before = await everything(store)
    with pytest.raises(GpupoolError) as caught:
        await store.commit(changes)
    assert caught.value.code is code
    assert caught.value.hint
    assert await everything(store) == before
    return caught.value


async def everything(store: SqlStore) -> tuple[LiveState, object]:
    return await store.load_live(), await store.list_events(EventFilter(limit=1000))


def test_all_parts_of_a_change_are_stored(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        held = lease(7, A, share("g0", 500), share("g1", 500))
        member = Replica(A, 0, state=ReplicaState.STARTING, lease=held.epoch)
        changes = ChangeSet((workload(A),), (member,), (held,), (event("one"), event("two")))
        assert await store.commit(changes) == 2
        live = await store.load_live()
        assert (live.workloads, live.replicas, live.leases) == ((workload(A),), (member,), (held,))
        assert (live.last_epoch, live.last_event_id) == (7, 2)
        assert await store.commit(ChangeSet()) == 0

    with_store(target, scenario)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_stale_workload_rolls_back_the_whole_change(target: str, version: int) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet(workloads=(workload(A),)))
        await store.commit(ChangeSet(workloads=(workload(A, version=1),)))
        stale = workload(A, version=version, name="another")
        await refused(store, ChangeSet((workload(B), stale), (Replica(B, 0),), (lease(1, B),), (event(),)))

    with_store(target, scenario)


@pytest.mark.parametrize("version", [0, 2])
def test_stale_replica_rolls_back_the_whole_change(target: str, version: int) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet((workload(A),), (Replica(A, 0), Replica(A, 1))))
        await refused(
            store,
            ChangeSet(replicas=(Replica(A, 1, version=1), Replica(A, 0, version=version)), events=(event(),)),
        )

    with_store(target, scenario)


def test_replica_without_workload_is_refused(target: str) -> None:
    with_store(target, lambda store: _refuse(store, ChangeSet(replicas=(Replica(A, 0),))))


async def _refuse(store: SqlStore, changes: ChangeSet) -> None:
    await refused(store, changes)


def test_repeated_writes_in_one_change_are_merged(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        steps = tuple(replace(workload(A), priority=n, version=n) for n in range(3))
        await store.commit(ChangeSet(workloads=steps))
        assert (await store.load_live()).workloads == steps[-1:]
        later = tuple(replace(workload(A), priority=n, version=n) for n in (3, 4))
        await store.commit(ChangeSet(workloads=later))
        assert (await store.load_live()).workloads == later[-1:]
        await refused(store, ChangeSet(workloads=(workload(A, version=5), workload(A, version=7))))

    with_store(target, scenario)


def test_gpu_is_filled_to_exactly_1000_permille(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet(leases=(lease(1, A, share("g0", 600)), lease(2, B, share("g0", 400)))))
        error = await refused(store, ChangeSet(leases=(lease(3, C, share("g1", 1000), share("g0", 1)),)))
        assert "g0" in error.message
        await store.commit(ChangeSet(leases=(lease(1, A, share("g0", 600), released_at=5.0),)))
        await store.commit(ChangeSet(leases=(lease(3, C, share("g0", 600)),)))

    with_store(target, scenario)


def test_gpu_moves_between_leases_in_one_change(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        whole = lease(1, A, share("g0", 1000))
        await store.commit(ChangeSet(leases=(whole,)))
        moved = (lease(2, A, share("g0", 1000)), replace(whole, released_at=5.0))
        await store.commit(ChangeSet(leases=moved))
        assert (await store.load_live()).leases == moved[:1]
        assert list(await store.leases_of(A)) == [moved[1], moved[0]]

    with_store(target, scenario)


@pytest.mark.parametrize("permille", [0, -500, 1001])
def test_share_outside_valid_range_is_refused(target: str, permille: int) -> None:
    with_store(target, lambda store: _refuse(store, ChangeSet(leases=(lease(1, A, share("g0", permille)),))))


def test_replica_holds_at_most_one_lease(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet(leases=(lease(1, A, share("g0", 1)), lease(2, A, share("g0", 1), index=1))))
        await refused(store, ChangeSet(leases=(lease(3, A, share("g1", 1)),)))

    with_store(target, scenario)


def test_epoch_is_granted_and_released_once(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        held = lease(1, A, share("g0", 500))
        ended = replace(held, released_at=5.0)
        await store.commit(ChangeSet(leases=(held,)))
        await refused(store, ChangeSet(leases=(lease(1, B, share("g1", 500)),)))
        await store.commit(ChangeSet(leases=(ended,)))
        await refused(store, ChangeSet(leases=(replace(ended, released_at=6.0),), events=(event(),)))
        await refused(store, ChangeSet(leases=(held,)))
        fresh = lease(2, B, share("g0", 500), released_at=2000.0)
        await store.commit(ChangeSet(leases=(fresh,)))  # granted and released before the first write
        assert list(await store.leases_of(B)) == [fresh]

    with_store(target, scenario)


def test_name_is_unique_while_its_workload_is_active(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        first = workload(A, name="train", state=WorkloadState.RUNNING)
        await store.commit(ChangeSet(workloads=(first,)))
        error = await refused(store, ChangeSet((workload(B, name="train", user="bob"),)), ErrorCode.NAME_TAKEN)
        assert "'train'" in error.message
        assert "'default'" in error.message
        await store.commit(ChangeSet((workload(B, name="train", project="other"),)))
        ended = replace(first, state=WorkloadState.FAILED, version=1)
        await store.commit(ChangeSet((workload(C, name="train"), ended)))  # also within one change
        await store.commit(ChangeSet((workload(C, name="train", deleted_at=5.0, version=1),)))
        await store.commit(ChangeSet((workload(wid(4), name="train"),)))

    with_store(target, scenario)


def test_request_id_is_used_once(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet((workload(A, request_id="r1"), workload(B), workload(C))))
        await refused(store, ChangeSet((workload(wid(4), request_id="r1"),)), ErrorCode.REQUEST_SEEN)
        found = await store.by_request_id("r1")
        assert found is not None
        assert found.id == A
        assert await store.by_request_id("r2") is None

    with_store(target, scenario)


@pytest.mark.parametrize("changes", [{"name": "caf\udce9"}, {"priority": 2**70}])
def test_unstorable_value_is_refused_as_invalid_request(target: str, changes: dict[str, object]) -> None:
    async def scenario(store: SqlStore) -> None:
        await refused(store, ChangeSet((workload(A), workload(B, **changes))), ErrorCode.INVALID_REQUEST)

    with_store(target, scenario)


def test_event_ids_are_never_reused(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        done = workload(A, state=WorkloadState.SUCCEEDED, finished_at=5.0)
        last = await store.commit(ChangeSet((done,), events=(event(workload=A), event(workload=A))))
        assert await store.delete_finished_before(6.0) == [A]
        assert list(await store.list_events(EventFilter())) == []
        assert await store.commit(ChangeSet(events=(event(),))) > last

    with_store(target, scenario)


def test_thousand_replicas_are_inserted_and_updated_at_once(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet((workload(A),), tuple(Replica(A, i) for i in range(1000))))
        started = tuple(Replica(A, i, state=ReplicaState.STARTING, version=1) for i in range(1000))
        leases = tuple(lease(1 + i, A, share(f"g{i}", 1000), index=i) for i in range(1000))
        await store.commit(ChangeSet(replicas=started, leases=leases))
        live = await store.load_live()
        assert live.replicas == started
        assert live.leases == leases
        await refused(store, ChangeSet(leases=(lease(5000, B, *(share(f"g{i}", 1) for i in range(999, -1, -1))),)))

    with_store(target, scenario)
