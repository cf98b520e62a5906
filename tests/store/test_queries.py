"""Lookups, lists, accounting queries and deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from store_values import event, lease, run_async, share, token, wid, workload

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.nodes.gpu import Node, NodeReport, NodeState
from gpupool.domain.people.access import Project, Role, User
from gpupool.domain.work.search import (
    NO_COMMANDS,
    CommandScope,
    SearchField,
    SearchWord,
    SortKey,
    SortOrder,
    parse_search,
    parse_sort,
)
from gpupool.domain.work.workload import (
    Dependency,
    Program,
    Replica,
    ReplicaState,
    Workload,
    WorkloadKind,
    WorkloadState,
)
from gpupool.services.ports.store import ChangeSet, EventFilter, WorkloadFilter
from gpupool.store import SqlStore, open_store
from gpupool.store.work.queries import count_workloads
from gpupool.store.work.queries import workloads as listing
from gpupool.store.work.writes import apply

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


def test_workload_is_found_by_id_and_by_name_own_first(target: str) -> None:
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
    """Store sixty workloads of all kinds, several created at the same moment."""
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
WORDS = st.lists(
    st.sampled_from(["n1", "OWN", "p2", "u3", "queued", "team=t", "%", "_"]).map(SearchWord)
    | st.sampled_from([SearchWord("1", (SearchField.NAME,)), SearchWord("u", (SearchField.PROJECT,))]),
    max_size=2,
).map(tuple)
SORTS = st.builds(SortOrder, st.sampled_from(SortKey), st.booleans())


def _found(w: Workload, word: SearchWord) -> bool:
    values = {
        SearchField.NAME: [w.name],
        SearchField.ID: [w.id],
        SearchField.STATE: [w.state.value],
        SearchField.KIND: [w.kind.value],
        SearchField.PROJECT: [w.project],
        SearchField.USER: [w.user],
        SearchField.LABEL: [f"{key}={value}" for key, value in w.labels.items()],
    }
    return any(word.text.lower() in text.lower() for field in word.fields for text in values[field])


@settings(max_examples=120, deadline=None)
@given(words=WORDS, sort=SORTS, offset=st.integers(0, 70), limit=st.integers(0, 70))
def test_search_sort_and_count_equal_plain_loop(
    many: tuple, words: tuple[SearchWord, ...], sort: SortOrder, offset: int, limit: int
) -> None:
    engine, made = many
    keys = {
        SortKey.CREATED: lambda w: w.created_at,
        SortKey.NAME: lambda w: w.name.lower(),
        SortKey.STATE: lambda w: w.state.value,
        SortKey.PROJECT: lambda w: w.project,
        SortKey.USER: lambda w: w.user,
        SortKey.GPUS: lambda _w: 0,  # all have the same request
        SortKey.RAN: lambda w: None if w.started_at is None else (w.finished_at or 20.0) - w.started_at,
        SortKey.ENDED: lambda w: w.finished_at,
    }
    newest = sorted(made, key=lambda w: (w.created_at, w.id), reverse=True)
    matching = [w for w in newest if w.deleted_at is None and all(_found(w, word) for word in words)]
    known = [w for w in matching if keys[sort.key](w) is not None]
    ordered = sorted(known, key=keys[sort.key], reverse=sort.descending)
    expected = ordered + [w for w in matching if keys[sort.key](w) is None]
    wanted = WorkloadFilter(search=words, sort=sort, now=20.0, offset=offset, limit=limit)
    with engine.connect() as conn:
        assert listing(conn, wanted) == expected[offset : offset + limit]
        assert count_workloads(conn, wanted) == len(expected)


@settings(max_examples=80, deadline=None)
@given(wanted=FILTERS)
def test_list_equals_plain_loop(many: tuple, wanted: WorkloadFilter) -> None:
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


def test_search_and_sort_work_on_each_database(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        made = [
            workload(wid(n), name=f"run-{n}", created_at=float(n), started_at=1.0 if n % 2 else None, labels={"a": "b"})
            for n in range(6)
        ]
        secret = workload(wid(9), name="other", created_at=9.0, program=Program(argv=("serve", "Secret_%")))
        await store.commit(ChangeSet((*made, secret)))

        async def names(search: str, sort: str = "-created", scope: CommandScope = NO_COMMANDS) -> list[str]:
            wanted = WorkloadFilter(search=parse_search(search), sort=parse_sort(sort), now=10.0, commands_of=scope)
            found = [w.name for w in await store.list_workloads(wanted)]
            assert await store.count_workloads(wanted) == len(found)
            return found

        assert await names("RUN a=b", "name") == [f"run-{n}" for n in range(6)]
        assert (await names("", "ran"))[:3] == ["run-5", "run-3", "run-1"]
        assert await names("secret_%") == []
        assert await names("command:secret_%") == []
        assert await names("command:secret_%", scope=CommandScope(user="ada")) == ["other"]
        assert await names("command:secret_%", scope=CommandScope(projects=("default",))) == ["other"]
        assert await names("command:secret_%", scope=CommandScope(everybody=True)) == ["other"]
        assert await names("command:secretx", scope=CommandScope(everybody=True)) == []

    with_store(target, scenario)


def test_pages_have_no_gaps_or_repetitions(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet(tuple(workload(wid(n), created_at=float(n // 4)) for n in range(23))))
        seen, wanted = [], WorkloadFilter(limit=5)
        while page := await store.list_workloads(wanted):
            seen += [w.id for w in page]
            await store.commit(ChangeSet((workload(wid(100 + len(seen)), created_at=99.0),)))
            wanted = replace(wanted, before=(page[-1].created_at, page[-1].id))
        assert seen == [wid(n) for n in range(22, -1, -1)]

    with_store(target, scenario)


def test_events_are_filtered_by_cursor_workload_and_reason(target: str) -> None:
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


def test_history_lists_latest_ended_workloads(target: str) -> None:
    def ran(n: int, seconds: float, **changes: object) -> tuple:
        done = {"state": DONE, "finished_at": 100.0 + n, **changes}
        started = done["finished_at"] or 100.0 + n
        member = Replica(wid(n), 0, ReplicaState.SUCCEEDED, started_at=started - seconds, finished_at=started)
        return workload(wid(n), **done), member

    async def scenario(store: SqlStore) -> None:
        assert await store.runtime_history("default", "ada") == []
        pairs = [ran(n, float(n)) for n in range(1, 11)]
        pairs += [ran(20, 1e6, user="bob"), ran(21, 1e6, project="x"), ran(22, 1e6, kind=WorkloadKind.EXEC)]
        waiting = workload(wid(30)), Replica(wid(30), 0)
        await store.commit(ChangeSet(*zip(*pairs, waiting, strict=True)))
        assert await store.runtime_history("default", "ada") == [float(n) for n in range(10, 0, -1)]
        assert await store.runtime_history("default", "ada", limit=3) == [10.0, 9.0, 8.0]
        sweep = ran(40, 7.0, state=RUNNING, finished_at=None)
        await store.commit(ChangeSet((sweep[0],), (sweep[1], Replica(wid(40), 1))))
        assert await store.runtime_history("default", "ada", limit=1) == [7.0]
        backwards = ran(41, -50.0)  # the clock jumped
        await store.commit(ChangeSet((backwards[0],), (backwards[1],)))
        assert await store.runtime_history("default", "ada", limit=1) == [0.0]

    with_store(target, scenario)


def test_old_history_is_deleted_and_needed_rows_stay(target: str) -> None:
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


def test_unreleased_lease_is_loaded_with_its_ended_workload(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        ended = workload(wid(1), state=DONE, finished_at=1.0)
        held = lease(1, wid(1), share("g", 10))
        await store.commit(ChangeSet((ended, workload(wid(2), state=DONE)), (Replica(wid(1), 0),), (held,)))
        live = await store.load_live()
        assert (live.workloads, live.replicas, live.leases) == ((ended,), (Replica(wid(1), 0),), (held,))

    with_store(target, scenario)


def test_projects_users_and_nodes_are_updated_with_their_events(target: str) -> None:
    def node(state: NodeState) -> Node:
        return Node(NodeReport("here", 2.0, 4096, (), emulated=True, boot_id="b", agent_version="1"), state, "why")

    async def scenario(store: SqlStore) -> None:
        for n in range(2):
            await store.projects.save(Project("vision", quota_permille=n, members=("ada",)), event(f"project {n}"))
            await store.users.save(User("ada", list(Role)[n]), event(f"user {n}"))
        await store.save_nodes([node(NodeState.UP)])
        await store.save_nodes([node(NodeState.CORDONED)], [event("node")])
        live = await store.load_live()
        assert live.projects == (Project("vision", quota_permille=1, members=("ada",)),)
        assert live.users == (User("ada", Role.MEMBER),)
        assert live.nodes == (node(NodeState.CORDONED),)
        await store.projects.delete("vision", event("gone"))
        with pytest.raises(GpupoolError) as caught:
            await store.projects.delete("vision", event("gone twice"))
        assert caught.value.code is ErrorCode.UNKNOWN_PROJECT
        said = [e.message for e in await store.list_events(EventFilter())]
        assert said == ["project 0", "user 0", "project 1", "user 1", "node", "gone"]

    with_store(target, scenario)


def test_tokens_are_stored_and_revoked(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        first, second = token(1), token(2, user="bob")
        for value in (first, second):
            await store.tokens.save(value, event("made"))
        revoked = replace(first, revoked_at=50.0)
        await store.tokens.save(revoked, event("revoked"))
        await store.tokens.touch("t2", 60.0)
        await store.tokens.touch("nobody's", 60.0)
        used = replace(second, last_used_at=60.0)
        assert list(await store.tokens.list()) == [used, revoked]
        assert list(await store.tokens.list("ada")) == [revoked]
        assert await store.tokens.find(first.secret_sha256) == revoked
        assert await store.tokens.find("0" * 64) is None
        with pytest.raises(GpupoolError):
            await store.tokens.save(replace(second, id="t3"), event("the same secret"))

    with_store(target, scenario)
