"""A database is created, upgraded after a backup, or refused with advice."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from store_values import run_async, workload

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Project
from gpupool.services.ports.store import ChangeSet, WorkloadFilter
from gpupool.store import open_store
from gpupool.store.backends import errors, sqlite
from gpupool.store.migrations import migrate
from gpupool.store.schema.tables import metadata

EVENT = Event(at=1.0, actor="ada", reason=Reason.CHANGED, message="made")


def make_at(path: Path, revision: str) -> None:
    """Create a database of an old revision, with one labelled workload and a project."""
    sqlite.create_private(path)
    engine = sqlite.make_engine(path, foreign_keys=False)
    with engine.begin() as conn:
        migrate.migrate_to(conn, revision)
        conn.exec_driver_sql("INSERT INTO meta VALUES ('pool_id', 'p1'), ('created_at', '1.0')")
        conn.exec_driver_sql(
            "INSERT INTO workloads (id, name, kind, project, user_name, priority, state, suspended, created_at,"
            " version, spec) VALUES ('w0000000001', 'old', 'training', 'default', 'ada', 0, 'queued', 0, 5.0, 0, ?)",
            ('{"program":{"argv":["true"]},"gpus":{"count":1},"labels":{"team":"vision"}}',),
        )
        if revision != "0001":
            conn.exec_driver_sql("INSERT INTO workload_labels VALUES ('w0000000001', 'team', 'vision')")
    engine.dispose()


def schema_of(path: Path) -> set[tuple[str, str]]:
    with sqlite3.connect(path) as conn:
        rows = conn.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    conn.close()
    return {(name, "".join(sql.split())) for name, sql in rows}


def test_constant_lists_all_revisions() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    assert [r.revision for r in script.walk_revisions()][::-1] == list(migrate.REVISIONS)
    assert script.get_current_head() == migrate.HEAD


def test_migrations_create_the_tables_of_the_code(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, migrate.HEAD)
    engine = sqlite.make_engine(path)
    with engine.begin() as conn:
        differences = compare_metadata(MigrationContext.configure(conn), metadata)
    engine.dispose()
    assert differences == []


def test_new_database_equals_migrated_database(tmp_path: Path) -> None:
    make_at(tmp_path / "migrated.db", migrate.HEAD)
    migrate.prepare(tmp_path / "new.db")
    assert schema_of(tmp_path / "new.db") == schema_of(tmp_path / "migrated.db")


@pytest.mark.parametrize("revision", migrate.REVISIONS[:-1])
def test_old_database_is_copied_and_upgraded(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "pool.db"
    make_at(path, revision)
    before = schema_of(path)

    async def scenario() -> None:
        store = await open_store(path)
        assert store.pool_id == "p1"
        found = await store.list_workloads(WorkloadFilter(labels=(("team", "vision"),)))
        assert [w.id for w in found] == ["w0000000001"]
        await store.projects.save(Project("default"), EVENT)
        await store.close()

    run_async(scenario())
    (copy,) = errors.backups(path)
    assert copy.name.startswith(f"pool.db.backup-{revision}-")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert schema_of(copy) == before
    make_at(tmp_path / "fresh.db", migrate.HEAD)
    assert schema_of(path) == schema_of(tmp_path / "fresh.db")


def test_upgrade_adds_up_the_models_of_each_project(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, "0017")
    with sqlite3.connect(path) as conn:
        conn.executemany(
            "INSERT INTO gpu_hours VALUES (?, 3600, ?, ?, ?, '', ?, ?, 1, 2, 4, ?, 3)",
            [
                ("project", 0, "x", "", "T4", 10.0, 0.0),
                ("project", 0, "x", "", "V100", 20.0, 0.0),
                ("project", 0, "x", "", "", 0.0, 50.0),
                ("project", 3600, "y", "", "T4", 7.0, 0.0),
                ("member", 0, "x", "ada", "T4", 10.0, 0.0),
            ],
        )
    conn.close()
    migrate.prepare(path)
    with sqlite3.connect(path) as conn:
        found = conn.execute("SELECT * FROM gpu_hours WHERE family = 'total' ORDER BY at").fetchall()
    conn.close()
    assert found == [
        ("total", 3600, 0, "x", "", "", "", 30.0, 3.0, 6.0, 12.0, 50.0, 9),
        ("total", 3600, 3600, "y", "", "", "", 7.0, 1.0, 2.0, 4.0, 0.0, 3),
    ]


def test_reopened_upgraded_database_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, "0001")
    migrate.prepare(path)
    migrate.prepare(path)
    assert len(errors.backups(path)) == 1


def test_newest_five_copies_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, "0001")
    names = [f"pool.db.backup-{rev}-2020010{day}T000000Z" for day, rev in enumerate(("0002", *["0001"] * 6))]
    for name in names:
        (tmp_path / name).touch()
    made = migrate.back_up(path, "0001")
    assert [copy.name for copy in errors.backups(path)] == [*names[-4:], made.name]


def test_failed_upgrade_keeps_the_old_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pool.db"
    make_at(path, "0001")
    before = schema_of(path)
    real = migrate.migrate_to

    def fails_late(conn: Connection, revision: str) -> None:
        real(conn, revision)
        raise RuntimeError(revision)

    monkeypatch.setattr(migrate, "migrate_to", fails_late)
    with pytest.raises(RuntimeError):
        migrate.prepare(path)
    assert schema_of(path) == before
    monkeypatch.undo()
    migrate.prepare(path)
    make_at(tmp_path / "fresh.db", migrate.HEAD)
    assert schema_of(path) == schema_of(tmp_path / "fresh.db")


def test_newer_database_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, migrate.HEAD)
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
    conn.close()
    with pytest.raises(GpupoolError) as caught:
        migrate.prepare(path)
    assert caught.value.code is ErrorCode.DATABASE_NEWER
    assert "9999" in caught.value.message
    assert errors.backups(path) == []


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database at all, but long enough to look at" * 100)


def cut(path: Path) -> None:
    make_at(path, migrate.HEAD)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])


def strange(path: Path) -> None:
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE somebody_elses (x)")
    conn.close()


@pytest.mark.parametrize("damage", [garbage, cut, strange])
def test_damaged_database_is_reported_with_its_newest_copy(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "pool.db"
    assert callable(damage)
    damage(path)
    newest = tmp_path / "pool.db.backup-0001-20240102T000000Z"
    for copy in (newest, tmp_path / "pool.db.backup-0002-20230102T000000Z"):
        copy.touch()
    with pytest.raises(GpupoolError) as caught:
        run_async(open_store(path))
    assert caught.value.code is ErrorCode.DATABASE_CORRUPT
    assert str(newest) in caught.value.hint


def test_damaged_pages_stop_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, "0001")
    with sqlite3.connect(path) as conn:
        (root,) = conn.execute("SELECT rootpage FROM sqlite_master WHERE name = 'workloads'").fetchone()
        (size,) = conn.execute("PRAGMA page_size").fetchone()
    conn.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(GpupoolError) as caught:
        migrate.prepare(path)
    assert caught.value.code is ErrorCode.DATABASE_CORRUPT
    assert errors.backups(path) == []


def test_only_an_upgrade_imports_alembic(tmp_path: Path) -> None:
    code = (
        "import sys, asyncio; from gpupool.store import open_store\n"
        "asyncio.run(open_store(sys.argv[1])); print('alembic' in sys.modules, 'sqlalchemy.orm' in sys.modules)"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "pool.db")], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["False", "False"]


def test_other_database_kind_is_refused() -> None:
    with pytest.raises(GpupoolError) as caught:
        run_async(open_store("mysql://somewhere/pool"))
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_files_are_private_despite_permissive_umask(tmp_path: Path) -> None:
    path = tmp_path / "state" / "pool.db"
    path.parent.mkdir()
    path.touch(mode=0o644)
    path.chmod(0o644)
    old = os.umask(0)
    try:

        async def scenario() -> list[int]:
            store = await open_store(f"sqlite:///{path}")
            await store.commit(ChangeSet(workloads=(workload(WorkloadId("w0000000001")),)))
            modes = [stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()]
            await store.close()
            return modes

        assert run_async(scenario()) == [0o600] * 3
    finally:
        os.umask(old)
