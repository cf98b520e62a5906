"""Behaviour of PostgreSQL only: several writers, an unavailable server, a replaced control plane."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from databases import PostgresServer, postgres_server
from sqlalchemy import inspect
from store_values import event, lease, run_async, share, wid, workload

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.ports.store import ChangeSet, EventFilter
from gpupool.store import SqlStore, open_store
from gpupool.store.backends import postgres
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.migrations import migrate
from gpupool.store.schema.usage_tables import metadata
from gpupool.store.sql_store import open_postgres

Scenario = Callable[[SqlStore], Awaitable[None]]


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """Yield a server that tests may stop and freeze."""
    with postgres_server() as made:
        yield made


def with_store(url: str, scenario: Scenario) -> None:
    async def opened() -> None:
        store = await open_store(url)
        try:
            await scenario(store)
        finally:
            await store.close()

    run_async(opened())


async def refused(work: Awaitable[object]) -> GpupoolError:
    with pytest.raises(GpupoolError) as caught:
        await work
    assert caught.value.hint
    return caught.value


def test_new_database_is_created_and_reopened(server: PostgresServer) -> None:
    url, seen = server.empty(), set()

    async def scenario(store: SqlStore) -> None:
        seen.add(store.pool_id)
        await store.commit(ChangeSet(events=(event(),)))

    with_store(url, scenario)
    with_store(url, scenario)
    assert len(seen) == 1
    engine = postgres.make_engine(PostgresAddress(url))
    with engine.connect() as conn:
        assert compare_metadata(MigrationContext.configure(conn), metadata) == []
    engine.dispose()


def test_migrations_create_equal_tables_and_indexes(server: PostgresServer) -> None:
    described = []
    for step in ("migrated", "made"):
        engine = postgres.make_engine(PostgresAddress(server.empty()))
        with engine.begin() as conn:
            if step == "migrated":
                migrate.migrate_to(conn, migrate.HEAD)
            else:
                migrate.create_if_empty(conn)
            look = inspect(conn)
            described.append(
                {
                    table: (
                        {(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in look.get_columns(table)},
                        {(i["name"], str(i)) for i in look.get_indexes(table)},
                        look.get_pk_constraint(table)["constrained_columns"],
                    )
                    for table in look.get_table_names()
                }
            )
        engine.dispose()
    assert described[0] == described[1]


def test_foreign_or_newer_database_is_refused_unchanged(server: PostgresServer) -> None:
    theirs = server.empty()
    server.sql("CREATE TABLE somebody_elses (x int)", theirs.rpartition("/")[2])
    newer = server.fresh()
    server.sql("UPDATE alembic_version SET version_num = '9999'", newer.rpartition("/")[2])
    for url, code in ((theirs, ErrorCode.DATABASE_FOREIGN), (newer, ErrorCode.DATABASE_NEWER)):
        assert run_async(refused(open_store(url))).code is code
    assert server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", theirs.rpartition("/")[2]) == "1"


def test_database_without_unicode_is_refused(server: PostgresServer) -> None:
    server.sql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    assert run_async(refused(open_store(server.url("latin")))).code is ErrorCode.UNSUPPORTED


def test_two_writers_never_overcommit_a_gpu(server: PostgresServer) -> None:
    url = server.fresh()

    async def scenario() -> None:
        stores = [await open_store(url) for _ in range(2)]
        halves = [lease(n, wid(n), share("g0", 300)) for n in range(1, 9)]
        grants = [stores[n % 2].commit(ChangeSet(leases=(held,))) for n, held in enumerate(halves)]
        ends = await asyncio.gather(*grants, return_exceptions=True)
        assert [getattr(end, "code", None) for end in ends].count(ErrorCode.STALE_WRITE) == 5
        assert sum(held.permille for held in (await stores[0].load_live()).leases) == 900
        for store in stores:
            await store.close()

    run_async(scenario())


def test_earlier_term_cannot_write(server: PostgresServer) -> None:
    url = server.fresh()

    async def scenario() -> None:
        first = await open_postgres(PostgresAddress(url), term=0)
        await first.commit(ChangeSet(events=(event("mine"),)))
        server.sql("UPDATE leadership SET term = 1", url.rpartition("/")[2])
        error = await refused(first.commit(ChangeSet(events=(event("late"),))))
        assert error.code is ErrorCode.NOT_LEADING
        assert [e.message for e in await first.list_events(EventFilter())] == ["mine"]
        await first.close()

    run_async(scenario())


def test_server_restart_is_transparent(mortal: PostgresServer) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.commit(ChangeSet((workload(wid(1)),)))
        mortal.stop()
        for work in (store.commit(ChangeSet((workload(wid(2)),))), store.load_live()):
            assert (await refused(work)).code is ErrorCode.DATABASE_UNREACHABLE
        mortal.start()
        assert len((await store.load_live()).workloads) == 1
        await store.commit(ChangeSet((workload(wid(2)),)))
        assert len((await store.load_live()).workloads) == 2

    with_store(mortal.fresh(), scenario)


def test_interrupt_ends_wait_for_hanging_server(mortal: PostgresServer) -> None:
    told = []

    async def scenario(store: SqlStore) -> None:
        database = store._database
        assert isinstance(database, postgres.PostgresDatabase)
        database.in_doubt = lambda: told.append("doubt")
        await store.commit(ChangeSet((workload(wid(1)),)))
        backend = int(mortal.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'gpupool'"))
        os.kill(backend, signal.SIGSTOP)
        try:
            writing = asyncio.create_task(store.commit(ChangeSet((workload(wid(2)),))))
            await asyncio.sleep(0.2)
            assert not writing.done()
            away = GpupoolError(ErrorCode.DATABASE_UNREACHABLE, "away", "wait")
            database.suspend(away)
            assert (await refused(writing)).code is ErrorCode.DATABASE_UNREACHABLE
            assert await refused(store.load_live()) is away
        finally:
            os.kill(backend, signal.SIGCONT)
        database.suspend(None)
        await store.commit(ChangeSet((workload(wid(2)),)))
        assert told == []  # it hung before the commit

    with_store(mortal.fresh(), scenario)


def test_commit_with_lost_answer_has_unknown_result(server: PostgresServer) -> None:
    told = []

    async def scenario(store: SqlStore) -> None:
        database = store._database
        assert isinstance(database, postgres.PostgresDatabase)
        database.in_doubt = lambda: told.append("doubt")
        await store.commit(ChangeSet(events=(event(),)))

        def cut_at_commit(conn: object) -> None:
            raw = conn.connection.dbapi_connection  # type: ignore[attr-defined]
            commit = raw.commit

            def cut() -> None:
                postgres.disconnect(raw)
                commit()

            raw.commit = cut

        error = await refused(database.write(cut_at_commit))
        assert (error.code, told) == (ErrorCode.DATABASE_UNREACHABLE, ["doubt"])
        await store.commit(ChangeSet(events=(event(),)))

    with_store(server.fresh(), scenario)


def test_oversized_values_are_refused_as_invalid_request(server: PostgresServer) -> None:
    async def scenario(store: SqlStore) -> None:
        for changes in ({"priority": 2**40}, {"name": "n" * 64}, {"name": "a\0b"}):
            error = await refused(store.commit(ChangeSet((workload(wid(1), **changes),))))
            assert error.code is ErrorCode.INVALID_REQUEST

    with_store(server.fresh(), scenario)


def test_read_only_database_is_reported(server: PostgresServer) -> None:
    url = server.fresh()
    name = url.rpartition("/")[2]
    server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")

    async def scenario(store: SqlStore) -> None:
        error = await refused(store.commit(ChangeSet(events=(event(),))))
        assert error.code is ErrorCode.DATABASE_UNWRITABLE
        assert await store.list_events(EventFilter()) == []

    with_store(url, scenario)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@db/pool",
        "postgresql://db/pool?password=secret",
        "postgresql:///pool?user=ada&Password=secret",
        "mysql://db/pool",
    ],
)
def test_password_in_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        PostgresAddress(url)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "secret" not in str(caught.value)


def test_password_is_read_from_private_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    address = PostgresAddress("postgresql://ada@db/pool?sslmode=verify-full", str(file))
    with pytest.raises(GpupoolError, match="cannot be read"):
        address.conninfo()
    file.write_text("it's \\ secret\n")
    file.chmod(0o640)
    with pytest.raises(GpupoolError, match="other users"):
        address.conninfo()
    file.chmod(stat.S_IRUSR)
    assert "password='it\\'s \\\\ secret'" in address.conninfo()
    assert "sslmode=verify-full" in address.conninfo()
    assert "secret" not in f"{address}{address!r}"
