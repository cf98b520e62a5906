"""Copies of a pool's database: whole, private, put back into either kind, and refused when they are none."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from databases import PostgresServer
from store_values import event, lease, run_async, share, token, wid, workload
from test_migrations import make_at

from gpupool.daemon import database_copy
from gpupool.daemon.config import PoolConfig
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.telemetry import NodeRollup, Rollups, RollupStep
from gpupool.domain.work.workload import Replica
from gpupool.services.ports.store import ChangeSet, LiveState
from gpupool.store import SqlStore, open_store
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.backends.leadership import LeaderSession
from gpupool.store.migrations import migrate

KINDS = ("sqlite", "postgresql")
A, B = wid(1), wid(2)
FIRST = ChangeSet(
    (workload(A, parameters=({"rate": float("inf"), "text": "\udcff\u20ac"},), labels={"team": "vision"}),),
    (Replica(A, 0),),
    (lease(7, A, share("g0", 500), share("g1", 500)),),
    (event("one"), event("two")),
)
LATER = ChangeSet((workload(B),), (), (lease(50, B, share("g2", 1000)),), (event("three"),))

Make = Callable[[str], PoolConfig]


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """Return a function that creates a pool that does not run, on a database of one kind."""

    def made(kind: str) -> PoolConfig:
        folder = tmp_path / f"{kind}{len(list(tmp_path.iterdir()))}"
        server: PostgresServer | None = request.getfixturevalue("server") if kind == "postgresql" else None
        return PoolConfig(str(folder / "state"), str(folder / "run"), database=server.fresh() if server else None)

    return made


def target(config: PoolConfig) -> str | PostgresAddress:
    return config.database_address() or str(Path(config.state_dir) / "pool.db")


def write(config: PoolConfig, changes: ChangeSet) -> None:
    async def writing(store: SqlStore) -> None:
        await store.commit(changes)
        await store.tokens.save(token(len(changes.events)), event("token"))
        uses = Rollups(nodes=(NodeRollup(RollupStep.MINUTE, 1_800_000_000, "n1", 40, 20.0, 500.0, 600),))
        await store.use_rows.save(uses, {"n1": 5})

    with_store(config, writing)


def with_store(config: PoolConfig, scenario: Callable[[SqlStore], object]) -> object:
    async def opened() -> object:
        store = await open_store(target(config))
        try:
            return await scenario(store)  # type: ignore[misc]
        finally:
            await store.close()

    return run_async(opened())


def live(config: PoolConfig) -> LiveState:
    found = with_store(config, lambda store: store.load_live())
    assert isinstance(found, LiveState)
    return found


def refused(work: Callable[[], object]) -> ErrorCode:
    with pytest.raises(GpupoolError) as caught:
        work()
    assert caught.value.hint
    return caught.value.code


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("place", KINDS)
def test_copy_is_restored_into_either_database(make: Make, tmp_path: Path, source: str, place: str) -> None:
    taken, file = make(source), tmp_path / "copy.db"
    write(taken, FIRST)
    before = live(taken)
    made = database_copy.back_up(taken, file)
    assert (made.workloads, made.events) == (1, 3)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    there = taken if source == place else make(place)
    write(there, LATER)
    highest = live(there).last_event_id
    kept = database_copy.restore(there, file)
    after = live(there)
    assert replace(after, last_epoch=before.last_epoch) == before
    assert after.last_epoch > 50
    assert kept is not None
    assert database_copy.database_copy.inspect_copy(kept).events == highest
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert with_store(there, lambda store: store.use_rows.written()) == {"n1": 5}
    write(there, ChangeSet(leases=(lease(after.last_epoch + 1, B, share("g2", 1000)),), events=(event("next"),)))
    if place == "postgresql":
        assert live(there).last_event_id > highest
    database_copy.back_up(there, file)
    assert sorted(entry.name for entry in file.parent.iterdir() if entry.is_file()) == ["copy.db"]


def test_restored_database_survives_power_loss(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, copy = make("sqlite"), tmp_path / "copy.db"
    write(config, FIRST)
    database_copy.back_up(config, copy)
    state = Path(config.state_dir)
    steps: list[str] = []  # contents and names that are on the disk, and the rename, in order
    sync, rename = os.fsync, Path.replace

    def record_sync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        steps.append("folder" if path == state else "file" if path.parent.parent == state else "other")
        sync(fd)

    def record_rename(path: Path, place: Path) -> Path:
        if place == state / "pool.db":
            steps.append("rename")
        return rename(path, place)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_rename)
    database_copy.restore(config, copy)
    assert steps[-3:] == ["file", "rename", "folder"]


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_copy_changes_nothing(make: Make, tmp_path: Path, kind: str) -> None:
    config, copy = make(kind), tmp_path / "copy.db"
    write(config, FIRST)
    before = live(config)
    database_copy.back_up(config, copy)
    newer, cut, foreign, text = (tmp_path / name for name in ("newer.db", "cut.db", "foreign.db", "text.db"))
    shutil.copy(copy, newer)
    with closing(sqlite3.connect(newer)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    cut.write_bytes(copy.read_bytes()[:40_000])
    with closing(sqlite3.connect(foreign)) as raw, raw:
        raw.execute("CREATE TABLE alembic_version (x)")
    text.write_text("nothing of the kind")
    assert refused(lambda: database_copy.restore(config, newer)) is ErrorCode.DATABASE_NEWER
    assert refused(lambda: database_copy.restore(config, cut)) is ErrorCode.DATABASE_CORRUPT
    assert refused(lambda: database_copy.restore(config, foreign)) is ErrorCode.DATABASE_FOREIGN
    assert refused(lambda: database_copy.restore(config, text)) is ErrorCode.DATABASE_FOREIGN
    assert refused(lambda: database_copy.restore(config, tmp_path / "none.db")) is ErrorCode.INVALID_FILE
    assert refused(lambda: database_copy.back_up(config, text)) is ErrorCode.DATABASE_FOREIGN
    assert refused(lambda: database_copy.back_up(config, tmp_path / "no" / "copy.db")) is ErrorCode.INVALID_FILE
    assert text.read_text() == "nothing of the kind"
    assert live(config) == before


def test_copy_of_older_release_is_upgraded_at_restore(make: Make, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    make_at(old, "0001")
    for kind in KINDS:
        config = make(kind)
        assert database_copy.restore(config, old) is None
        assert [w.name for w in live(config).workloads] == ["old"]
    with closing(sqlite3.connect(old)) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchone() == ("0001",)
    assert migrate.HEAD != "0001"


def test_damaged_database_is_set_aside_at_restore(make: Make, tmp_path: Path) -> None:
    config, copy = make("sqlite"), tmp_path / "copy.db"
    write(config, FIRST)
    before = live(config)
    database_copy.back_up(config, copy)
    path = Path(config.state_dir) / "pool.db"
    path.write_bytes(b"\0" * 5000)
    kept = database_copy.restore(config, copy)
    assert kept is not None
    assert kept.read_bytes() == b"\0" * 5000
    assert live(config).workloads == before.workloads


def test_database_with_a_leader_is_not_replaced(make: Make, tmp_path: Path) -> None:
    config, copy = make("postgresql"), tmp_path / "copy.db"
    write(config, FIRST)
    database_copy.back_up(config, copy)
    address = config.database_address()
    assert address is not None
    session = LeaderSession(address)
    assert session.try_lock()
    assert refused(lambda: database_copy.restore(config, copy)) is ErrorCode.POOL_ALREADY_RUNNING
    session.close()
    database_copy.restore(config, copy)
