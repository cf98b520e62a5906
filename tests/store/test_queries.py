"""Finding, listing, accounting and forgetting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from store_values import event, lease, run_async, share, token, wid, workload

from gpupool.domain.access import Project, Role, User
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.gpu import Node, NodeReport, NodeState
from gpupool.domain.workload import Dependency, Replica, ReplicaState, WorkloadKind, WorkloadState
from gpupool.services.ports import ChangeSet, EventFilter, RuntimeHistory, WorkloadFilter
from gpupool.store import SqlStore, open_store
from gpupool.store.queries import workloads as listing
from gpupool.store.writes import apply

QUEUED, RUNNING, DONE, FAILED = (
    WorkloadState.QUEUED,
    WorkloadState.RUNNING,
    WorkloadState.SUCCEEDED,
    WorkloadState.FAILED,
)


def with_store(target: str, scenario: Callable[[SqlStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await open_store(target)
        try:
            await scenario(store)
        finally:
            await store.close()

    run_async(run())


def test_a_workload_is_found_by_id_and_by_name_the_own_first(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        old = workload(wid(1), name="train", state=DONE, created_at=1.0)
        own = workload(wid(2), name="train", state=DONE, created_at=2.0)
        foreign = workload(wid(3), name="train", project="other", user="bob", created_at=3.0)
        gone = workload(wid(4), name="train", state=DONE, created_at=4.0, deleted_at=5.0)
        await store.commit(ChangeSet((old, own, foreign, gone)))
        assert await store.get_workload("train") == foreign
        assert await store.get_workload("train", "ada") == own
        assert await store.get_workload("train", "carol") == foreign
        assert await store.get_workload(old.id) == old
        assert await store.get_workload(gone.id) == gone
        assert await store.get_workload("nothing") is None
        assert await store.get_workload(wid(9)) is None

    with_store(target, scenario)


@pytest.fixture(scope="module")
def many(engine: Engine) -> tuple[object, list]:
    """Sixty workloads of every sort, several created at the same moment."""
    made = [
        workload(
            wid(n),
            name=f"n{n % 20}" if n % 3 else f"own{n}",
            project=f"p{n % 2}" if n % 3 else "p2",
            user=f"u{n % 4}",
            created_at=float(n // 5),
            state=(DONE, FAILED)[n % 2] if n % 4 else QUEUED if n % 3 == 0 else WorkloadState.STOPPED,
            deleted_at=9.0 if n % 7 == 0 else None,
            labels={"team": f"t{n % 3}", "kind": "x"} if n % 2 else {},
        )
        for n in range(60)
    ]
    with engine.begin() as conn:
        apply(conn, ChangeSet(tuple(made)))
    return engine, made


FILTERS = st.builds(
    WorkloadFilter,
    states=st.lists(st.sampled_from(WorkloadState), max_size=3).map(tuple),
    project=st.none() | st.sampled_from(["p0", "p1", "p9"]),
    user=st.none() | st.sampled_from(["u0", "u1"]),
    name=st.none() | st.sampled_from(["n1", "own3"]),
    labels=st.sampled_from([(), (("team", "t1"),), (("team", "t2"), ("kind", "x")), (("x'\"", "y"),)]),
    include_deleted=st.booleans(),
    before=st.none() | st.tuples(st.integers(0, 12).map(float), st.integers(0, 60).map(wid)),
    limit=st.integers(0, 70),
)


@settings(max_examples=80, deadline=None)
@given(wanted=FILTERS)
def test_a_listing_is_what_a_plain_loop_would_pick(many: tuple, wanted: WorkloadFilter) -> None:
    engine, made = many
    expected = [
        w
        for w in sorted(made, key=lambda w: (w.created_at, w.id), reverse=True)
        if (not wanted.states or w.state in wanted.states)
        and wanted.project in {None, w.project}
        and wanted.user in {None, w.user}
        and wanted.name in {None, w.name}
        and set(wanted.labels) <= set(w.labels.items())
        and (wanted.include_deleted or w.deleted_at is None)
        and (wanted.before is None or (w.created_at, w.id) < wanted.before)
    ]
    with engine.connect() as conn:
        assert listing(conn, wanted) == expected[: wanted.limit]


def test_pages_follow_each_other_without_gap_or_repetition(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet(tuple(workload(wid(n), created_at=float(n // 4)) for n in range(23))))
        seen, wanted = [], WorkloadFilter(limit=5)
        while page := await store.list_workloads(wanted):
            seen += [w.id for w in page]
            await store.commit(ChangeSet((workload(wid(100 + len(seen)), created_at=99.0),)))
            wanted = replace(wanted, before=(page[-1].created_at, page[-1].id))
        assert seen == [wid(n) for n in range(22, -1, -1)]

    with_store(target, scenario)


def test_events_by_cursor_workload_and_reason(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        reasons = (Reason.SUBMITTED, Reason.GRANTED, Reason.STARTED)
        made = [event(str(n), workload=wid(n % 2), reason=reasons[n % 3]) for n in range(12)]
        await store.commit(ChangeSet(events=tuple(made)))

        async def said(**wanted: object) -> list[int]:
            return [int(e.message) for e in await store.list_events(EventFilter(**wanted))]

        assert await said() == list(range(12))
        assert await said(after_id=3, limit=4) == [3, 4, 5, 6]
        assert await said(newest=True, limit=3) == [9, 10, 11]
        assert await said(after_id=10, newest=True) == [10, 11]
        assert await said(workload=wid(1), newest=True, limit=2) == [9, 11]
        assert await said(reasons=(Reason.GRANTED, Reason.STARTED), limit=3) == [1, 2, 4]
        assert await said(after_id=12) == []

    with_store(target, scenario)


def test_history_is_of_the_latest_that_ended(target: str) -> None:
    def ran(n: int, seconds: float, **changes: object) -> tuple:
        done = {"state": DONE, "finished_at": 100.0 + n, **changes}
        started = done["finished_at"] or 100.0 + n
        member = Replica(wid(n), 0, ReplicaState.SUCCEEDED, started_at=started - seconds, finished_at=started)
        return workload(wid(n), **done), member

    async def scenario(store: SqlStore) -> None:
        assert await store.runtime_history("default", "ada") is None
        pairs = [ran(n, float(n)) for n in range(1, 11)]
        pairs += [ran(20, 1e6, user="bob"), ran(21, 1e6, project="x"), ran(22, 1e6, kind=WorkloadKind.EXEC)]
        waiting = workload(wid(30)), Replica(wid(30), 0)
        await store.commit(ChangeSet(*zip(*pairs, waiting, strict=True)))
        assert await store.runtime_history("default", "ada") == RuntimeHistory(10, 5.5, 9.0, 3.0, 8.0)
        assert await store.runtime_history("default", "ada", limit=3) == RuntimeHistory(3, 9.0, 10.0, 8.0, 10.0)
        sweep = ran(40, 7.0, state=RUNNING, finished_at=None)
        await store.commit(ChangeSet((sweep[0],), (sweep[1], Replica(wid(40), 1))))
        assert await store.runtime_history("default", "ada", limit=1) == RuntimeHistory(1, 7.0, 7.0, 7.0, 7.0)
        backwards = ran(41, -50.0)  # the clock jumped
        await store.commit(ChangeSet((backwards[0],), (backwards[1],)))
        assert await store.runtime_history("default", "ada", limit=1) == RuntimeHistory(1, 0.0, 0.0, 0.0, 0.0)

    with_store(target, scenario)


def test_old_history_goes_and_what_is_needed_stays(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        old = [workload(wid(n), state=DONE, finished_at=float(n), labels={"a": "b"}) for n in range(1, 7)]
        waiting = workload(wid(10), after=(Dependency(wid(2)),))
        await store.commit(
            ChangeSet(
                (*old, waiting),
                tuple(Replica(w.id, 0, ReplicaState.SUCCEEDED) for w in old),
                (lease(1, wid(1), share("g", 10), released_at=5000.0), lease(2, wid(3), share("g", 10))),
                tuple(event(workload=w.id) for w in (*old, waiting)),
            )
        )
        assert await store.delete_finished_before(6.0, limit=2) == [wid(1), wid(4)]
        assert await store.delete_finished_before(6.0) == [wid(5)]
        assert await store.delete_finished_before(6.0) == []
        left = [wid(10), wid(6), wid(3), wid(2)]
        assert [w.id for w in await store.list_workloads(WorkloadFilter())] == left
        assert sorted(e.workload for e in await store.list_events(EventFilter())) == sorted(left)
        assert await store.replicas_of(wid(1)) == []
        assert len(await store.list_workloads(WorkloadFilter(labels=(("a", "b"),)))) == 3
        (kept,) = await store.leases_of(wid(1))
        assert kept.shares == (share("g", 10),)

    with_store(target, scenario)


def test_a_lease_that_outlived_its_workload_is_loaded_with_it(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        ended = workload(wid(1), state=DONE, finished_at=1.0)
        held = lease(1, wid(1), share("g", 10))
        await store.commit(ChangeSet((ended, workload(wid(2), state=DONE)), (Replica(wid(1), 0),), (held,)))
        live = await store.load_live()
        assert (live.workloads, live.replicas, live.leases) == ((ended,), (Replica(wid(1), 0),), (held,))

    with_store(target, scenario)


def test_projects_users_and_nodes_are_replaced_with_their_events(target: str) -> None:
    def node(state: NodeState) -> Node:
        return Node(NodeReport("here", 2.0, 4096, (), emulated=True, boot_id="b", agent_version="1"), state, "why")

    async def scenario(store: SqlStore) -> None:
        for n in range(2):
            await store.save_project(Project("vision", quota_permille=n, members=("ada",)), event(f"project {n}"))
            await store.save_user(User("ada", list(Role)[n]), event(f"user {n}"))
        await store.save_node(node(NodeState.UP))
        await store.save_node(node(NodeState.CORDONED), event("node"))
        live = await store.load_live()
        assert live.projects == (Project("vision", quota_permille=1, members=("ada",)),)
        assert live.users == (User("ada", Role.MEMBER),)
        assert live.nodes == (node(NodeState.CORDONED),)
        await store.delete_project("vision", event("gone"))
        with pytest.raises(GpupoolError) as caught:
            await store.delete_project("vision", event("gone twice"))
        assert caught.value.code is ErrorCode.UNKNOWN_PROJECT
        said = [e.message for e in await store.list_events(EventFilter())]
        assert said == ["project 0", "user 0", "project 1", "user 1", "node", "gone"]

    with_store(target, scenario)


def test_tokens(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        first, second = token(1), token(2, user="bob")
        for value in (first, second):
            await store.save_token(value, event("made"))
        revoked = replace(first, revoked_at=50.0)
        await store.save_token(revoked, event("revoked"))
        await store.touch_token("t2", 60.0)
        await store.touch_token("nobody's", 60.0)
        used = replace(second, last_used_at=60.0)
        assert list(await store.list_tokens()) == [used, revoked]
        assert list(await store.list_tokens("ada")) == [revoked]
        assert await store.find_token(first.secret_sha256) == revoked
        assert await store.find_token("0" * 64) is None
        with pytest.raises(GpupoolError):
            await store.save_token(replace(second, id="t3"), event("the same secret"))

    with_store(target, scenario)
