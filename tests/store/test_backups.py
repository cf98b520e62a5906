"""Scheduled copies of either database: one verified SQLite file, private and durable."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from store_values import event, run_async, wid, workload

from gpupool.domain.backup import BackupState, file_name
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.ports.store import ChangeSet
from gpupool.store import database_copy, open_store

NAME = file_name(1_800_000_000)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of files and folders synced to disk, in order."""
    found: list[str] = []
    sync = os.fsync

    def record(fd: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", record)
    return found


def test_copy_is_verified_and_synced_before_its_rename(target: str, tmp_path: Path, synced: list[str]) -> None:
    folder = tmp_path / "copies"

    async def scenario() -> str:
        store = await open_store(target)
        await store.commit(ChangeSet((workload(wid(1)),), events=(event(),)))
        size = await store.backups.write(folder, NAME)
        (found,) = await store.backups.files(folder)
        assert (found.name, found.size, found.state) == (NAME, size, BackupState.OK)
        await store.close()
        return store.pool_id

    pool_id = run_async(scenario())
    copy = database_copy.inspect_copy(folder / NAME)
    assert (copy.pool_id, copy.workloads, copy.events) == (pool_id, 1, 1)
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert synced[-1] == str(folder)
    assert any(name.startswith(f"{folder}/") and NAME in name for name in synced)


def test_copy_of_another_pool_is_discarded(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_store(tmp_path / "pool.db")
        other = await open_store(tmp_path / "other.db")
        store.backups._database = other._database
        with pytest.raises(GpupoolError) as caught:
            await store.backups.write(tmp_path / "copies", NAME)
        assert caught.value.code is ErrorCode.DATABASE_CORRUPT
        await store.close()
        await other.close()

    run_async(scenario())
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.needs("root")
def test_full_disk_is_reported_and_leaves_no_file(target: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(small)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")

    async def scenario() -> None:
        store = await open_store(target)
        with pytest.raises(GpupoolError) as caught:
            await store.backups.write(small, NAME)
        assert caught.value.code is ErrorCode.DATABASE_UNWRITABLE
        assert "full" in caught.value.message
        await store.close()

    try:
        run_async(scenario())
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
