import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpupool.daemon.doctor import disk as doctor_checks_disk
from gpupool.daemon.doctor.disk import database_works, file_system, file_system_type, folders, space
from gpupool.daemon.doctor.run import DoctorContext, Finding, Severity

GIB = 1 << 30
SetDisk = Callable[[int, int, int], None]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SetDisk:
    def change(free_bytes: int, files: int, files_free: int) -> None:
        answer = SimpleNamespace(f_bavail=free_bytes, f_frsize=1, f_files=files, f_favail=files_free)
        monkeypatch.setattr(os, "statvfs", lambda path: answer)

    return change


@pytest.mark.parametrize(
    ("free", "files", "files_free", "levels"),
    [
        (100 * GIB, 10**7, 10**6, [Severity.OK, Severity.OK]),
        (GIB // 2, 10**7, 10**4, [Severity.WARNING, Severity.WARNING]),
        (GIB // 100, 10**7, 10, [Severity.PROBLEM, Severity.PROBLEM]),
        (100 * GIB, 0, 0, [Severity.OK]),  # a file system that makes inodes as needed
    ],
)
def test_little_space_or_few_inodes_are_reported(
    context: DoctorContext, disk: SetDisk, free: int, files: int, files_free: int, levels: list[Severity]
) -> None:
    disk(free, files, files_free)
    assert [finding.level for finding in space(context)] == levels


def test_space_is_measured_at_the_future_folder(context: DoctorContext) -> None:
    assert {f.check for f in space(replace(context, state_dir=context.state_dir / "not/yet"))} >= {"disk-space"}


def of_state(context: DoctorContext) -> Finding:
    return next(iter(folders(context)))


def test_own_or_creatable_folders_pass(context: DoctorContext) -> None:
    assert [finding.level for finding in folders(context)] == [Severity.OK, Severity.OK]
    absent = of_state(replace(context, state_dir=context.state_dir / "a/b"))
    assert (absent.level, "can be created" in absent.sentence) == (Severity.OK, True)


def test_file_instead_of_folder_is_a_problem(context: DoctorContext) -> None:
    (context.state_dir / "file").touch()
    found = of_state(replace(context, state_dir=context.state_dir / "file/state"))
    assert (found.level, "is not a folder" in found.sentence) == (Severity.PROBLEM, True)


def test_folder_writable_by_others_is_a_problem(context: DoctorContext) -> None:
    context.state_dir.chmod(0o777)
    assert of_state(context).level is Severity.PROBLEM


@pytest.mark.parametrize(("owner", "level"), [(4242, Severity.PROBLEM), (0, Severity.WARNING)])
def test_folder_of_another_user_is_reported(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, owner: int, level: Severity
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1717)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: SimpleNamespace(st_uid=owner, st_mode=0o40700))
    assert of_state(context).level is level


def test_unwritable_folder_is_a_problem(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert of_state(context).level is Severity.PROBLEM
    assert of_state(replace(context, state_dir=context.state_dir / "new")).level is Severity.PROBLEM
    assert list(database_works(context)) == []


def mounts(context: DoctorContext, kind: str, at: Path) -> None:
    point = str(at).replace(" ", r"\040")
    text = (
        f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {point} rw,relatime shared:1 - {kind} server:/x rw\nodd line\n"
    )
    (context.root / "proc/self").mkdir(exist_ok=True)
    (context.root / "proc/self/mountinfo").write_text(text)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("nfs4", Severity.PROBLEM),
        ("nfs", Severity.PROBLEM),
        ("cifs", Severity.PROBLEM),
        ("fuse.sshfs", Severity.PROBLEM),
        ("tmpfs", Severity.WARNING),
        ("xfs", Severity.OK),
        ("overlay", Severity.OK),
    ],
)
def test_file_system_is_checked_by_type(context: DoctorContext, kind: str, level: Severity) -> None:
    mounts(context, kind, context.state_dir)
    (found,) = file_system(context)
    assert (found.level, kind in found.sentence) == (level, True)


def test_nearest_and_latest_mount_is_used(context: DoctorContext) -> None:
    blank = context.state_dir / "with blank"
    blank.mkdir()
    mounts(context, "nfs4", blank)
    assert file_system_type(blank, context.root) == "nfs4"
    assert file_system_type(context.state_dir, context.root) == "ext4"
    with (context.root / "proc/self/mountinfo").open("a") as file:
        file.write(f"3 2 0:10 / {str(blank).replace(' ', chr(92) + '040')} rw - xfs /dev/sdb rw\n")
    assert file_system_type(blank, context.root) == "xfs"


def test_mounts_of_this_machine_are_readable(tmp_path: Path) -> None:
    assert file_system_type(Path("/proc")) == "proc"
    assert file_system_type(tmp_path) not in {"", "proc"}


def test_trial_database_is_removed(context: DoctorContext) -> None:
    (found,) = database_works(context)
    assert found.level is Severity.OK
    assert [path.name for path in context.state_dir.iterdir()] == ["run"]


def test_folder_where_no_database_works_is_a_problem(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> str:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(doctor_checks_disk, "_try_wal", full)
    assert [finding.level for finding in database_works(context)] == [Severity.PROBLEM]
    monkeypatch.setattr(doctor_checks_disk, "_try_wal", lambda path: "delete")
    assert [finding.level for finding in database_works(context)] == [Severity.PROBLEM]
    assert [path.name for path in context.state_dir.iterdir()] == ["run"]
