"""Killed processes, full disks, missing permissions, damage at run time, cancelled callers, copies during writes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from store_values import event, run_async, wid, workload

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.workload import WorkloadState
from gpupool.services.ports.store import ChangeSet, EventFilter, WorkloadFilter
from gpupool.store import open_store
from gpupool.store.database_copy import write_copy

BIG = "x" * 300_000


@contextmanager
def no_room(path: Path) -> Iterator[None]:
    """Limit the file size of this process to the current log: each larger write fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_reported_and_writes_resume_with_free_space(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        await store.commit(ChangeSet((workload(wid(1)),), events=(event("before"),)))
        with no_room(tmp_path / "pool.db-wal"):
            for _ in range(3):
                with pytest.raises(GpupoolError) as caught:
                    await store.commit(ChangeSet((workload(wid(2)),), events=(event(BIG),)))
                assert caught.value.code is ErrorCode.DATABASE_UNWRITABLE
            assert [w.id for w in (await store.load_live()).workloads] == [wid(1)]
        await store.commit(ChangeSet((workload(wid(2)),), events=(event(BIG),)))
        await store.close()
        again = await open_store(tmp_path / "pool.db")
        assert [w.id for w in (await again.load_live()).workloads] == [wid(1), wid(2)]
        assert [e.message for e in await again.list_events(EventFilter())] == ["before", BIG]
        await again.close()

    run_async(scenario())


def test_database_at_maximum_size_is_reported_as_full(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        await store._database.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=1"))
        with pytest.raises(GpupoolError) as caught:
            await store.commit(ChangeSet(events=(event(BIG),)))
        assert caught.value.code is ErrorCode.DATABASE_UNWRITABLE
        assert "full" in caught.value.message
        await store._database.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=1000000"))
        assert await store.commit(ChangeSet(events=(event(BIG),))) == 1
        await store.close()

    run_async(scenario())


def test_database_locked_by_another_program_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.store.backends.sqlite.BUSY_TIMEOUT_MS", 10)

    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        other = sqlite3.connect(tmp_path / "pool.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(GpupoolError) as caught:
            await store.commit(ChangeSet(events=(event(),)))
        assert caught.value.code is ErrorCode.DATABASE_UNWRITABLE
        assert "locked" in caught.value.message
        other.execute("COMMIT")
        assert await store.commit(ChangeSet(events=(event(),))) == 1
        other.close()
        await store.close()

    run_async(scenario())


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GpupoolError) as caught:
        run_async(open_store(tmp_path / "file" / "pool.db"))
    assert caught.value.code is ErrorCode.DATABASE_UNWRITABLE


def test_damage_at_run_time_is_reported_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"

    async def fill() -> None:
        store = await open_store(path)
        await store.commit(ChangeSet(tuple(workload(wid(n)) for n in range(200))))
        await store.close()

    async def look() -> None:
        store = await open_store(path)
        try:
            await store.list_workloads(WorkloadFilter(limit=1000))
        finally:
            await store.close()

    run_async(fill())
    with sqlite3.connect(path) as conn:
        (root,) = conn.execute("SELECT rootpage FROM sqlite_master WHERE name = 'workloads'").fetchone()
        (size,) = conn.execute("PRAGMA page_size").fetchone()
    conn.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(GpupoolError) as caught:
        run_async(look())
    assert caught.value.code is ErrorCode.DATABASE_CORRUPT
    assert "backup" in caught.value.hint


WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_values import event, wid, workload
from gpupool.services.ports.store import ChangeSet
from gpupool.store import open_store

async def main():
    store = await open_store(sys.argv[1])
    for n in range(100000):
        await store.commit(ChangeSet((workload(wid(n)),), events=(event(str(n)), event(str(n)))))
        print(n, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("acknowledged", [1, 20, 77])
def test_killed_writer_keeps_acknowledged_commits_only(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "pool.db"
    here = str(Path(__file__).parent)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), here], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(acknowledged):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        said = acknowledged + len(writer.stdout.read().split())

    async def scenario() -> None:
        store = await open_store(path)
        kept = len((await store.load_live()).workloads)
        assert kept in {said, said + 1}
        assert len(await store.list_events(EventFilter(limit=10_000))) == 2 * kept
        await store.commit(ChangeSet(events=(event(),)))
        await store.close()

    run_async(scenario())


def test_cancelled_caller_waits_for_its_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        commits = [asyncio.create_task(store.commit(ChangeSet(events=(event(str(n)),)))) for n in range(20)]
        await asyncio.sleep(0)
        for commit in commits:
            commit.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*commits, return_exceptions=True)
        )
        assert [e.message for e in await store.list_events(EventFilter())] == [str(n) for n in range(20)]
        await store.close()

    run_async(scenario())


def test_closed_store_is_reported_and_close_is_idempotent(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        await store.close()
        await store.close()
        with pytest.raises(GpupoolError) as caught:
            await store.load_live()
        assert "closed" in caught.value.message

    run_async(scenario())
    assert [file.name for file in tmp_path.iterdir()] == ["pool.db"]


def test_copy_during_writes_is_consistent(tmp_path: Path) -> None:
    target = tmp_path / "copies" / "pool-copy.db"

    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        old = workload(wid(0))
        await store.commit(ChangeSet((old,)))

        async def write() -> None:
            for n in range(1, 40):
                now = replace(old, priority=n, version=n)
                await store.commit(ChangeSet((now, workload(wid(n))), events=(event(),)))
                begun.set()

        begun = asyncio.Event()
        writing = asyncio.create_task(write())
        await begun.wait()
        await store._database.read(partial(write_copy, path=target))
        await store._database.read(partial(write_copy, path=target))
        await writing
        await store.close()
        copy = await open_store(target)
        live = await copy.load_live()
        assert live.workloads[0].priority == len(live.workloads) - 1 == live.last_event_id > 0
        assert copy.pool_id == store.pool_id
        await copy.close()

    run_async(scenario())
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [file.name for file in target.parent.iterdir()] == [target.name]


def test_failed_copy_leaves_no_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        (tmp_path / "folder").mkdir()
        for target in (tmp_path / "folder", tmp_path / "pool.db" / "copy"):
            with pytest.raises(GpupoolError) as caught:
                await store._database.read(partial(write_copy, path=target))
            assert caught.value.code is ErrorCode.DATABASE_UNWRITABLE
        await store.commit(ChangeSet((workload(wid(1), state=WorkloadState.RUNNING),)))
        await store.close()

    run_async(scenario())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "pool.db"]
