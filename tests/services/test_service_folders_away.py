"""Failover while workloads wait for a folder on another head: they start when it has arrived, or end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pool_world import ADMIN, ANN, World

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import FileEntry, FileTree, user_space
from gpupool.domain.work.workload import ReplicaState, Workload, WorkloadState
from gpupool.scheduling.explain.wait_reason import WaitCode
from gpupool.services.files.missing import FETCH_TIMEOUT_S, PAUSE_S
from gpupool.services.ports.files import Folder, Piece
from gpupool.store.blobs import StoredBlobs

QUEUED, RUNNING, FAILED = WorkloadState.QUEUED, WorkloadState.RUNNING, WorkloadState.FAILED
SAID = b"what the program reads"
MANIFEST = FileTree((FileEntry("said", 0o644, 0, len(SAID), hashlib.sha256(SAID).hexdigest()),)).to_bytes()
TREE = hashlib.sha256(MANIFEST).hexdigest()
MINE = {"tree": TREE, "gpus": {"count": 2}}


class FirstHead:
    """The head that received the folder; ``up``: it is reachable."""

    def __init__(self, *contents: bytes) -> None:
        self.contents_here = {hashlib.sha256(data).hexdigest(): data for data in contents}
        self.up = False
        self.asked = 0

    def names(self) -> Sequence[str]:
        return ["first"]

    async def needed(self, head: str) -> Sequence[Folder]:
        raise AssertionError("who leads asks nobody what is needed")

    async def contents(self, head: str, space: str, wanted: Sequence[tuple[str, int]]) -> AsyncGenerator[Piece, None]:
        self.asked += 1
        if not self.up:
            raise GpupoolError(ErrorCode.POOL_UNREACHABLE, "first does not answer.", "")
        assert space == user_space("ann")
        for sha256, offset in wanted:
            data = self.contents_here.get(sha256)
            yield Piece(sha256, None if data is None else len(data), offset, (data or b"")[offset:])


async def until(look: Callable[[], object]) -> None:
    """Wait for threads that look for folders, which ``settle`` does not know."""
    for _ in range(10_000):
        if look():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came about")


async def rounds(world: World, first: FirstHead, count: int = 2) -> None:
    """Let this number of rounds begin; the ends of all but the last were seen."""
    for _ in range(count):
        asked = first.asked
        await world.pass_time(PAUSE_S + 1)
        await until(lambda asked=asked: first.asked > asked)
    await world.settle()


async def move(world: World, folder: Path, first: FirstHead | None) -> None:
    """Make another machine the leader, with its own files."""
    world.blobs, world.other_heads = StoredBlobs(folder), first
    await world.reboot()


async def begun(world: World, tmp_path: Path, **request: Any) -> tuple[Workload, Workload]:
    """Submit work that holds all GPUs, and work with a folder that waits behind it."""
    blobs = world.blobs = StoredBlobs(tmp_path / "first")
    await world.reboot()
    await blobs.put(user_space("ann"), [SAID, MANIFEST])
    await blobs.mark(user_space("ann"), TREE)
    before = await world.submit(gpus={"count": 2})
    waiting = await world.submit(**{**MINE, **request})
    assert (before.state, waiting.state) == (RUNNING, QUEUED)
    return before, waiting


async def lead_moves_at_the_start(world: World, tmp_path: Path, before: Workload, waiting: Workload) -> FirstHead:
    """Move the leadership when the work has its place and its node does not know it yet."""
    world.agent.losses += ["before"] * 50  # the node receives nothing more from the first head
    world.agent.end(world.program(before), 0)
    mirror = world.now.engine.mirror
    await until(lambda: mirror.replicas[waiting.id][0].state is ReplicaState.STARTING)
    world.agent.losses.clear()
    first = FirstHead(SAID, MANIFEST)
    await move(world, tmp_path / "second", first)
    return first


async def why(world: World, ref: str) -> Any:
    return await world.services.workloads.why(ADMIN, ref)


def test_workload_starts_with_its_folder_when_other_head_returns(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        first = FirstHead(SAID, MANIFEST)
        await move(world, tmp_path / "second", first)
        await world.end(before)
        await rounds(world, first)
        assert await world.state(waiting.id) is QUEUED
        told = await why(world, waiting.id)
        assert told.code is WaitCode.FOLDER
        assert "first may have it but cannot be reached" in told.sentence
        assert 0 < told.numbers["given_up_in_s"] < FETCH_TIMEOUT_S
        first.up = True
        await world.pass_time(PAUSE_S + 1)
        await until(lambda: world.is_running(waiting))
        assert world.blobs is not None
        assert await world.blobs.read(user_space("ann"), hashlib.sha256(SAID).hexdigest(), 0, 100) == SAID
        assert not await world.blobs.is_marked(user_space("bob"), TREE)

    world.do(story())


def test_placed_work_keeps_its_place_until_its_folder_arrives(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        first = await lead_moves_at_the_start(world, tmp_path, before, waiting)
        await rounds(world, first)
        assert not world.is_running(waiting)
        assert await world.state(waiting.id) is not FAILED
        first.up = True
        await world.pass_time(PAUSE_S + 1)
        await until(lambda: world.is_running(waiting))

    world.do(story())


def test_placed_work_can_be_stopped_while_it_waits_for_its_folder(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        await lead_moves_at_the_start(world, tmp_path, before, waiting)
        await world.services.workloads.stop(ADMIN, waiting.id)
        await world.pass_time(2)
        await until(lambda: waiting.id not in world.now.engine.mirror.workloads)
        assert await world.state(waiting.id) is WorkloadState.STOPPED
        other = await world.submit(gpus={"count": 2})
        assert other.state is RUNNING

    world.do(story())


def test_workload_fails_if_no_head_has_its_folder(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        first = FirstHead(MANIFEST)  # and not its contents
        first.up = True
        await move(world, tmp_path / "second", first)
        await until(lambda: first.asked >= 2)
        await until(lambda: waiting.id not in world.now.engine.mirror.workloads)
        [row] = await world.replicas(waiting.id)
        assert (row.state, row.attempt, str(row.reason)) == (ReplicaState.FAILED, 0, "START_FAILED")
        assert "files are not on the leader" in row.message
        assert "sent to another head" in (await why(world, waiting.id)).sentence
        assert world.is_running(before)
        asked = first.asked
        await world.pass_time(PAUSE_S * 3)
        assert first.asked == asked

    world.do(story())


def test_unreachable_head_is_awaited_for_one_hour(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        _, waiting = await begun(world, tmp_path)
        first = FirstHead(SAID, MANIFEST)
        await move(world, tmp_path / "second", first)
        await rounds(world, first)
        await world.pass_time(FETCH_TIMEOUT_S - 60)
        await rounds(world, first)
        assert await world.state(waiting.id) is QUEUED
        await world.pass_time(60)
        asked = first.asked
        await world.pass_time(PAUSE_S + 1)
        await until(lambda: first.asked > asked or world.now.engine.mirror.workloads.get(waiting.id) is None)
        await until(lambda: waiting.id not in world.now.engine.mirror.workloads)
        assert await world.state(waiting.id) is FAILED
        [row] = await world.replicas(waiting.id)
        assert str(row.reason) == "START_FAILED"

    world.do(story())


@pytest.mark.parametrize("others", [None, "none known"])
def test_workload_fails_at_placement_if_there_is_no_other_head(
    world: World, tmp_path: Path, others: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        first = FirstHead()
        monkeypatch.setattr(first, "names", list)
        await move(world, tmp_path / "second", first if others else None)
        assert (await why(world, waiting.id)).code is WaitCode.WAITING_FOR_GPU
        await world.end(before)
        await until(lambda: waiting.id not in world.now.engine.mirror.workloads)
        [row] = await world.replicas(waiting.id)
        assert (row.state, str(row.reason)) == (ReplicaState.FAILED, "START_FAILED")
        assert "files are not on the leader" in row.message

    world.do(story())


def test_other_and_stopped_work_does_not_wait_for_the_folder(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        first = FirstHead(SAID, MANIFEST)
        await move(world, tmp_path / "second", first)
        other = await world.submit(ANN, gpus={"count": 1})
        await world.end(before)
        assert world.is_running(other)
        await world.services.workloads.stop(ADMIN, waiting.id)
        asked = first.asked
        for _ in range(3):
            await world.pass_time(PAUSE_S + 1)
        await until(lambda: not world.now._missing_folders.folders)
        assert first.asked <= asked + 1

    world.do(story())
