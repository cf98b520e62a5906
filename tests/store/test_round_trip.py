"""Every value of the domain is read back unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from sqlalchemy import Connection, Engine, delete, select
from store_values import (
    EVENTS,
    LEASES,
    NODES,
    PROJECTS,
    REPLICAS,
    TOKENS,
    USERS,
    WORKLOADS,
    event,
    run_async,
    wid,
    workload,
)

from gpupool.domain.events import Event
from gpupool.domain.ids import Epoch
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.people.access import Project, Token, User
from gpupool.domain.work.workload import GpuLease, Replica, Workload
from gpupool.services.ports.store import ChangeSet, EventFilter
from gpupool.store import events, open_store
from gpupool.store.pool import rows
from gpupool.store.pool.nodes import save_nodes
from gpupool.store.schema import tables as t
from gpupool.store.work import mapping, queries, writes

thorough = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def with_database(engine: Engine, work: Callable[[Connection], None]) -> None:
    """Run in a transaction on a shared database and roll it back."""
    with engine.connect() as conn, conn.begin() as transaction:
        work(conn)
        transaction.rollback()


@thorough
@given(WORKLOADS)
def test_workload_is_read_back_unchanged(engine: Engine, value: Workload) -> None:
    def check(conn: Connection) -> None:
        writes.apply(conn, ChangeSet(workloads=(value,)))
        assert queries.workload_by_ref(conn, value.id, None) == value

    with_database(engine, check)


@thorough
@given(WORKLOADS, WORKLOADS)
def test_rewritten_workload_is_read_back_unchanged(engine: Engine, first: Workload, second: Workload) -> None:
    second = replace(second, id=first.id, version=1)

    def check(conn: Connection) -> None:
        writes.apply(conn, ChangeSet(workloads=(first,)))
        writes.apply(conn, ChangeSet(workloads=(second,)))
        assert queries.workload_by_ref(conn, first.id, None) == second
        labels = {row.label: row.value for row in conn.execute(select(t.workload_labels))}
        assert labels == second.labels

    with_database(engine, check)


@thorough
@given(REPLICAS, REPLICAS)
def test_replica_is_read_back_unchanged(engine: Engine, value: Replica, later: Replica) -> None:
    later = replace(later, workload=value.workload, index=value.index, version=1)

    def check(conn: Connection) -> None:
        writes.apply(conn, ChangeSet(workloads=(workload(value.workload),), replicas=(value,)))
        assert queries.replicas_of(conn, value.workload) == [value]
        writes.apply(conn, ChangeSet(replicas=(later,)))
        assert queries.replicas_of(conn, value.workload) == [later]

    with_database(engine, check)


@thorough
@given(LEASES)
def test_lease_is_read_back_unchanged(engine: Engine, value: GpuLease) -> None:
    held = replace(value, released_at=None, shares=value.shares[:1])

    def check(conn: Connection) -> None:
        writes.apply(conn, ChangeSet(leases=(value,)))
        assert queries.leases_of(conn, value.workload) == [value]
        other = replace(held, epoch=Epoch(2**62 + 1))
        writes.apply(conn, ChangeSet(leases=(other,)))
        writes.apply(conn, ChangeSet(leases=(replace(other, released_at=7.0),)))
        assert queries.leases_of(conn, value.workload)[-1] == replace(other, released_at=7.0)

    with_database(engine, check)


@thorough
@given(EVENTS)
def test_event_is_read_back_unchanged(engine: Engine, value: Event) -> None:
    def check(conn: Connection) -> None:
        key = events.append_events(conn, (value,))
        assert events.listing(conn, EventFilter(after_id=key - 1)) == [replace(value, id=key)]

    with_database(engine, check)


@thorough
@given(PROJECTS, USERS, TOKENS, NODES)
def test_small_objects_are_read_back_unchanged(
    engine: Engine, project: Project, user: User, token: Token, node: Node
) -> None:
    def check(conn: Connection) -> None:
        rows.PROJECTS.save(conn, project)
        rows.USERS.save(conn, user)
        rows.TOKENS.save(conn, token)
        save_nodes(conn, [node])
        assert rows.PROJECTS.all(conn) == [project]
        assert rows.USERS.all(conn) == [user]
        assert rows.NODES.all(conn) == [node]
        assert rows.TOKENS.all(conn) == [token]

    with_database(engine, check)


@thorough
@given(WORKLOADS)
def test_documents_of_other_releases_are_read(engine: Engine, value: Workload) -> None:
    """An older document lacks a key; a newer one has an additional key."""
    row = mapping.workload_row(value)
    row["spec"]["limits"] = {"from_the_future": 1}
    del row["spec"]["retry"]

    def check(conn: Connection) -> None:
        conn.execute(t.workloads.insert(), [row])
        found = queries.workload_by_ref(conn, value.id, None)
        assert found is not None
        assert found.limits == type(found.limits)()
        assert found.program == value.program
        conn.execute(delete(t.workloads))

    with_database(engine, check)


def test_texts_with_invalid_unicode_are_stored_readably(target: str) -> None:
    async def scenario() -> None:
        store = await open_store(target)
        await store.commit(ChangeSet(events=(event("no such file: caf\udce9\0 \U0001f600"),)))
        (found,) = await store.list_events(EventFilter())
        assert found.message == "no such file: caf\ufffd\ufffd \U0001f600"
        program = replace(workload(wid(1)).program, argv=("caf\udce9",))
        await store.commit(ChangeSet(workloads=(workload(wid(1), program=program),)))
        kept = await store.get_workload(wid(1))
        assert kept is not None
        assert kept.program.argv == ("caf\udce9",)
        await store.close()

    run_async(scenario())
