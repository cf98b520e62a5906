"""The watch of slices kills an arbiter whose heartbeat stops, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpupool.node.sharing.slices import pages
from gpupool.node.sharing.slices.context_sizes import ContextSizes
from gpupool.node.sharing.slices.lease_folder import CONTROL, LeaseFolder
from gpupool.node.sharing.slices.watch import MAX_MISSED_BEATS, SliceWatch, Tenant

CHECKS = 3 * MAX_MISSED_BEATS


def write_beat(folder: Path, value: int) -> LeaseFolder:
    """Write the control file of a lease with one GPU, as the arbiter has left it."""
    folder.mkdir(exist_ok=True)
    data = bytearray(pages.control_size(1))
    data[pages.heartbeat_offset() : pages.heartbeat_offset() + 4] = value.to_bytes(4, "little")
    (folder / CONTROL).write_bytes(data)
    return LeaseFolder(1, folder, 1)


@pytest.fixture
def reasons(tmp_path: Path) -> Callable[[Callable[[int], LeaseFolder]], list[str]]:
    """Return a function that runs checks, each with the folder of the newest lease, and returns reasons of kills."""

    def watch(folder_at: Callable[[int], LeaseFolder]) -> list[str]:
        killed: list[str] = []
        arbiter: Any = SimpleNamespace(pid=4711, kill=killed.append)
        now: list[Tenant] = []
        host: Any = SimpleNamespace(folder=tmp_path)
        watching = SliceWatch(arbiter, lambda: now, host, ContextSizes(tmp_path / "sizes"))
        for number in range(CHECKS):
            now[:] = [Tenant(folder_at(number), (), {})]
            asyncio.run(watching.check())
        return killed

    return watch


def test_stopped_heartbeat_ends_the_arbiter(reasons: Any, tmp_path: Path) -> None:
    folder = write_beat(tmp_path / "lease", 7)
    assert set(reasons(lambda _number: folder)) == {"its heartbeat stands still"}


def test_changing_heartbeat_is_well(reasons: Any, tmp_path: Path) -> None:
    assert reasons(lambda number: write_beat(tmp_path / "lease", number)) == []


def test_equal_heartbeats_of_different_leases_are_well(reasons: Any, tmp_path: Path) -> None:
    """Short leases after each other: each is too new to have had a heartbeat."""
    assert reasons(lambda number: write_beat(tmp_path / f"lease-{number}", 0)) == []


def test_lease_without_files_is_well(reasons: Any, tmp_path: Path) -> None:
    assert reasons(lambda _number: LeaseFolder(1, tmp_path / "ended", 1)) == []
