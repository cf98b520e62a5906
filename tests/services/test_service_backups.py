"""Scheduled backups of a real database: made when due, verified, kept in number, and reported when they fail."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BEGIN, World, refused
from test_service_warnings import Kept

from gpupool.api.prometheus import Exposition
from gpupool.domain.backup import BackupState, file_name
from gpupool.domain.errors import ErrorCode
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Role
from gpupool.services.backups.service import BackupReport
from gpupool.services.ports.store import EventFilter
from gpupool.store.backends import sqlite

HOUR = 3600.0


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    """Return the folder of hourly copies, of which two are kept."""
    made = tmp_path / "new" / "copies"
    change(world, every_s=HOUR, keep=2, folder=str(made))
    return made


def change(world: World, **changes: Any) -> None:
    world.do(world.services.backups.change(ADMIN, changes))


def look(world: World) -> None:
    world.do(world.services.backups.look())


def report(world: World) -> BackupReport:
    return world.do(world.services.backups.report(ADMIN))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 3 + 400] = b"\xff" * 400
    path.write_bytes(content)


def failures(world: World) -> list[str]:
    wanted = EventFilter(reasons=(Reason.BACKUP_FAILED,))
    return [event.message for event in world.do(world.services.history.events(ADMIN, wanted))]


def test_copy_is_made_on_schedule_and_oldest_is_deleted(world: World, folder: Path) -> None:
    made = []
    for _ in range(4):
        look(world)
        look(world)  # not due again
        made.append(file_name(world.clock.at))
        assert names(folder) == made[-2:]
        world.clock.at += HOUR
    newest = folder / made[-1]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(newest.stat().st_mode) == 0o600
    with sqlite3.connect(newest) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert raw.execute("SELECT value FROM meta WHERE name = 'pool_id'").fetchone() == (world.services.info.pool_id,)
    found = report(world)
    assert [(file.name, file.state) for file in found.files] == [(name, BackupState.OK) for name in made[:1:-1]]
    assert found.files[0].size == newest.stat().st_size
    assert (found.newest, found.error, world.services.backups.newest) == (BEGIN + 3 * HOUR, "", BEGIN + 3 * HOUR)


def test_no_copy_without_a_schedule(world: World, folder: Path) -> None:
    change(world, every_s=None)
    look(world)
    assert names(folder) == []
    assert world.services.backups.newest is None
    assert world.services.backups.warnings() == []


def test_background_task_makes_copies(world: World, folder: Path) -> None:
    async def made() -> None:
        for _ in range(200):
            await world.pass_time(5)
            if names(folder) and names(folder)[0].startswith("pool-"):
                return
        raise AssertionError

    world.do(made())


def test_schedule_continues_after_a_restart(world: World, folder: Path) -> None:
    look(world)
    world.clock.at += HOUR / 2
    world.do(world.reboot())
    look(world)
    assert names(folder) == [file_name(BEGIN)]
    assert report(world).schedule.every_s == HOUR
    world.clock.at += HOUR / 2
    look(world)
    assert names(folder) == [file_name(BEGIN), file_name(BEGIN + HOUR)]


def test_other_files_and_copies_of_other_pools_are_kept(world: World, folder: Path) -> None:
    look(world)
    foreign = folder / file_name(BEGIN - HOUR)
    foreign.write_bytes((folder / file_name(BEGIN)).read_bytes())
    with sqlite3.connect(foreign) as raw:
        raw.execute("UPDATE meta SET value = 'another' WHERE name = 'pool_id'")
    damaged = folder / file_name(BEGIN - 2 * HOUR)
    damaged.write_bytes((folder / file_name(BEGIN)).read_bytes()[:8192])
    (folder / "pool-mine.db").touch()
    unfinished = folder / f".{file_name(BEGIN - HOUR)}.new"
    unfinished.touch()
    states = {file.name: file.state for file in report(world).files}
    assert states == {
        file_name(BEGIN): BackupState.OK,
        foreign.name: BackupState.FOREIGN,
        damaged.name: BackupState.DAMAGED,
    }
    world.clock.at += HOUR
    look(world)
    assert names(folder) == sorted([file_name(BEGIN), file_name(BEGIN + HOUR), foreign.name, "pool-mine.db"])


def test_damaged_new_copy_is_removed_and_old_copies_stay(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(world)
    copy = sqlite.copy_database

    def copy_and_spoil(source: Path, target: Path) -> None:
        copy(source, target)
        spoil(target)

    monkeypatch.setattr(sqlite, "copy_database", copy_and_spoil)
    world.clock.at += HOUR
    look(world)
    assert names(folder) == [file_name(BEGIN)]
    assert "damaged" in report(world).error
    assert len(failures(world)) == 1
    assert "failed" in world.services.backups.warnings()[0]


def test_failure_is_reported_once_and_retried(world: World, folder: Path) -> None:
    look(world)
    spare = folder.with_name("spare")
    folder.rename(spare)
    folder.touch()  # the folder is missing
    world.clock.at += HOUR
    for _ in range(3):
        look(world)
        world.clock.at += 301
    assert len(failures(world)) == 1
    assert world.services.backups.newest == BEGIN
    folder.unlink()
    spare.rename(folder)
    at = world.clock.at
    look(world)
    assert names(folder) == [file_name(BEGIN), file_name(at)]
    assert (report(world).error, world.services.backups.warnings()) == ("", [])


@pytest.mark.needs("root")
def test_full_disk_leaves_only_the_old_copies(world: World, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", small], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        change(world, every_s=HOUR, folder=str(small))
        (small / "pool-mine.db").touch()
        for _ in range(2):
            look(world)
            world.clock.at += 301
        assert names(small) == ["pool-mine.db"]
        assert "full" in report(world).error
        assert len(failures(world)) == 1
    finally:
        subprocess.run(["umount", small], check=True)


def test_administrators_are_warned_of_a_failure(world: World, folder: Path) -> None:
    kept = Kept()
    world.now.engine.ports.courier = kept
    world.do(world.services.access.put_user(ADMIN, "root", {"email": "root@example.org", "role": Role.ADMIN}))
    world.do(world.services.access.put_user(ADMIN, "ann", {"email": "ann@example.org"}))
    mail = {"smtp_host": "mail.example", "sender": "pool@example.org"}
    world.do(world.services.warnings.change(ADMIN, mail))
    folder.rmdir()
    folder.touch()
    look(world)
    world.do(world.pass_time(2))
    assert [(sent.to, sent.subject) for sent in kept.letters] == [
        ("root@example.org", "gpupool: a scheduled backup failed")
    ]
    assert str(folder) in kept.letters[0].text


def test_metric_is_the_time_of_the_newest_valid_copy(world: World, folder: Path) -> None:
    name = "gpupool_backup_last_success_timestamp_seconds"
    assert f"\n{name} " not in world.do(Exposition(world.services).text()).decode()
    look(world)
    lines = world.do(Exposition(world.services).text()).decode().splitlines()
    assert [float(line.split()[1]) for line in lines if line.startswith(f"{name} ")] == [BEGIN]
    change(world, every_s=None)
    assert f"\n{name} " not in world.do(Exposition(world.services).text()).decode()


def test_metrics_have_interval_and_failure_of_last_backup(world: World, folder: Path) -> None:
    def told() -> list[str]:
        text = world.do(Exposition(world.services).text()).decode()
        return [line for line in text.splitlines() if line.startswith(("gpupool_backup_failed", "gpupool_backup_int"))]

    change(world, every_s=3600.0)
    look(world)
    assert told() == ["gpupool_backup_interval_seconds 3600.0", "gpupool_backup_failed 0.0"]
    world.clock.at += 2 * HOUR  # without the background tasks, which would copy at the same time
    for copy in folder.iterdir():
        copy.unlink()
    folder.rmdir()
    folder.touch()
    look(world)
    assert told() == ["gpupool_backup_interval_seconds 3600.0", "gpupool_backup_failed 1.0"]
    change(world, every_s=None)
    assert told() == []


def test_unsafe_folders_are_refused(world: World, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "file").touch()
    backups = world.services.backups
    for folder in (
        shared,
        tmp_path / "file",
        tmp_path / "file" / "below",
        Path("/proc"),
        Path("/proc/none"),
        Path("relative"),
    ):
        error = world.do(
            refused(
                lambda to=str(folder): backups.change(ADMIN, {"every_s": HOUR, "folder": to}), ErrorCode.INVALID_REQUEST
            )
        )
        assert error.hint
    assert report(world).schedule.every_s is None


def test_only_administrators_see_and_change_the_schedule(world: World, folder: Path) -> None:
    backups = world.services.backups
    world.do(refused(lambda: backups.change(ANN, {"every_s": None}), ErrorCode.FORBIDDEN))
    world.do(refused(lambda: backups.report(ANN), ErrorCode.FORBIDDEN))
    assert report(world).folder == str(folder)
