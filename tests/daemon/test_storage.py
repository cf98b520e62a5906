"""Disk use and retention of a pool's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpupool.daemon import storage
from gpupool.daemon.config import PoolConfig, PoolKind


def config_in(folder: Path) -> PoolConfig:
    return PoolConfig(kind=PoolKind.USER, state_dir=str(folder), run_dir=str(folder / "run"), retention_days=30)


def test_every_kind_has_its_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "node" / "ended" / "w1").mkdir(parents=True)
    (tmp_path / "node" / "ended" / "w1" / "log").write_bytes(b"x" * 100_000)
    (tmp_path / "pool.db").write_bytes(b"x" * 5_000)
    (tmp_path / "pool.db.backup-1").write_bytes(b"x" * 1_000)
    found = storage.read_storage(config_in(tmp_path))
    by_name = {one.what: one for one in found.files}
    assert by_name["database"].bytes == 6_000
    assert "events 30 days" in by_name["database"].kept
    assert by_name["output of ended programs"].kept == "14 days, 5 GiB in total"
    assert 100_000 <= (by_name["output of ended programs"].bytes or 0) < 200_000
    assert by_name["homes of workspaces"].bytes == 0
    assert dict(by_name["output of ended programs"].by_id).keys() == {"w1"}
    assert 0 < found.free_bytes <= found.total_bytes


def test_bytes_are_counted_by_workload_and_workspace(tmp_path: Path) -> None:
    for place, size in (
        ("node/ended/w1.0.7/log", 100_000),
        ("node/ended/w1.1.8/log", 100_000),
        ("node/ended/w2.0.9/log", 300_000),
        ("workspaces/ws1/home/data", 200_000),
        ("workspaces/ws1/snapshots/s1/data", 500_000),
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"x" * size)
    found = {one.what: dict(one.by_id) for one in storage.read_storage(config_in(tmp_path)).files}
    ended = found["output of ended programs"]
    assert 200_000 <= ended["w1"] < 300_000 <= ended["w2"]
    assert 200_000 <= found["homes of workspaces"]["ws1"] < 300_000
    assert 500_000 <= found["snapshots of workspaces"]["ws1"] < 600_000


def test_links_are_not_followed_and_names_of_one_file_count_once(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"x" * 1_000_000)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "one").write_bytes(b"x" * 50_000)
    os.link(inside / "one", inside / "two")
    (inside / "link").symlink_to(tmp_path / "outside")
    (inside / "loop").symlink_to(inside)
    size, complete = storage.folder_bytes(inside)
    assert complete
    assert 50_000 <= (size or 0) < 100_000


def test_large_folders_are_not_counted_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert storage.folder_bytes(tmp_path)[1] is False


def test_folder_that_is_closed_has_no_size(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert storage.folder_bytes(tmp_path / "file") == (None, False)
