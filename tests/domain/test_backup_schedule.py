"""Scheduled backups: the time of the next copy, deletion of old copies, and refused settings."""

from __future__ import annotations

from typing import Any

import pytest

from gpupool.domain.backup import (
    BackupFile,
    BackupSchedule,
    BackupState,
    file_name,
    is_due,
    is_late,
    made_at,
    newest_good,
    to_delete,
)
from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError

NOW = 1_800_000_000.0
HOURLY = BackupSchedule(3600, 2)


def copy(hours_ago: float, state: BackupState = BackupState.OK) -> BackupFile:
    at = NOW - hours_ago * 3600
    return BackupFile(file_name(at), at, 1, state)


@pytest.mark.parametrize(
    ("newest", "failed_at", "due"),
    [
        (None, None, True),
        (NOW, None, False),
        (NOW - 3599, None, False),
        (NOW - 3600, None, True),
        (NOW + 60, None, True),  # made with a clock that was wrong
        (None, NOW - 1, False),
        (None, NOW - 299, False),
        (None, NOW - 300, True),
        (NOW - 7200, NOW - 10, False),
        (None, NOW + 60, True),  # the clock was set back since the failure
    ],
)
def test_due_time_of_next_copy(newest: float | None, failed_at: float | None, due: bool) -> None:
    assert is_due(HOURLY, newest, failed_at, NOW) is due
    assert not is_due(BackupSchedule(None), newest, failed_at, NOW)


def test_short_interval_is_also_the_retry_delay() -> None:
    assert is_due(BackupSchedule(60), None, NOW - 60, NOW)


def test_copy_is_late_after_twice_the_interval() -> None:
    assert is_late(HOURLY, None, NOW)
    assert not is_late(HOURLY, NOW - 7200, NOW)
    assert is_late(HOURLY, NOW - 7201, NOW)
    assert not is_late(BackupSchedule(None), None, NOW)


DAMAGED, FOREIGN = BackupState.DAMAGED, BackupState.FOREIGN


@pytest.mark.parametrize(
    ("files", "deleted"),
    [
        ([], []),
        ([copy(0), copy(1)], []),
        ([copy(0), copy(1), copy(2), copy(3)], [copy(2), copy(3)]),
        ([copy(0), copy(1, DAMAGED), copy(2)], []),  # a damaged one takes no good one's place
        ([copy(0), copy(1, DAMAGED), copy(2), copy(3, DAMAGED)], [copy(3, DAMAGED)]),
        ([copy(0), copy(1), copy(2, FOREIGN), copy(3, FOREIGN)], []),
        ([copy(0), copy(-1), copy(-2)], [copy(-1)]),  # the one made now stays
    ],
)
def test_oldest_copies_are_deleted(files: list[BackupFile], deleted: list[BackupFile]) -> None:
    assert to_delete(HOURLY, files, NOW) == [file.name for file in deleted]


def test_only_valid_copies_of_the_past_count() -> None:
    assert newest_good([copy(-1), copy(1, DAMAGED), copy(2, FOREIGN), copy(3), copy(4)], NOW) == NOW - 3 * 3600
    assert newest_good([], NOW) is None


def test_copy_names_have_time_in_utc() -> None:
    assert file_name(NOW + 0.9) == "pool-20270115T080000Z.db"
    assert made_at("pool-20270115T080000Z.db") == NOW
    for other in ("pool.db", "pool-20270115T080000Z.db-wal", "pool-20271315T080000Z.db", ".pool-20270115T080000Z.db"):
        assert made_at(other) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_s": 59.0},
        {"every_s": float("nan")},
        {"every_s": 1e12},
        {"keep": 0},
        {"keep": 1001},
        {"folder": "backups"},
        {"folder": "/"},
        {"folder": "/srv/../etc"},
        {"folder": "/srv/a\nb"},
        {"folder": "/srv/a\0b"},
        {"folder": "/" + "a" * 1000},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(GpupoolError) as refused:
        BackupSchedule(**wrong)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.hint


def test_settings_are_read_back_unchanged() -> None:
    schedule = BackupSchedule(21_600, 7, "/srv/backup")
    assert decode(BackupSchedule, {**schedule.to_dict(), "later": 1}) == schedule
    assert decode(BackupSchedule, {}) == BackupSchedule()
    assert schedule.folder_in("/var/lib/gpupool") == "/srv/backup"
    assert BackupSchedule().folder_in("/var/lib/gpupool") == "/var/lib/gpupool/backups"
