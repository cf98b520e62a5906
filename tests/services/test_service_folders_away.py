"""After the lead has moved work whose folder is on another head waits: it starts when that has come, or ends."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pool_world import ADMIN, ANN, World

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import FileEntry, Tree, space_of
from gpupool.domain.workload import ReplicaState, Workload, WorkloadState
from gpupool.scheduling.explain import WaitCode
from gpupool.services.files.away import AWAIT_S, PAUSE_S
from gpupool.services.files.ports import Folder, Piece
from gpupool.store.blobs import KeptBlobs

QUEUED, RUNNING, FAILED = WorkloadState.QUEUED, WorkloadState.RUNNING, WorkloadState.FAILED
SAID = b"what the program reads"
MANIFEST = Tree((FileEntry("said", 0o644, 0, len(SAID), hashlib.sha256(SAID).hexdigest()),)).to_bytes()
TREE = hashlib.sha256(MANIFEST).hexdigest()
MINE = {"tree": TREE, "gpus": {"count": 2}}


class FirstHead:
    """The head that took the folder; ``up``: it can be asked."""

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
        assert space == space_of("ann")
        for sha256, offset in wanted:
            data = self.contents_here.get(sha256)
            yield Piece(sha256, None if data is None else len(data), offset, (data or b"")[offset:])


async def until(look: Callable[[], object]) -> None:
    """Folders are looked for by threads, of which ``settle`` does not know."""
    for _ in range(10_000):
        if look():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came about")


async def rounds(world: World, first: FirstHead, count: int = 2) -> None:
    """Let so many more rounds begin: of all but the last the end has been seen."""
    for _ in range(count):
        asked = first.asked
        await world.pass_time(PAUSE_S + 1)
        await until(lambda asked=asked: first.asked > asked)
    await world.settle()


async def move(world: World, folder: Path, first: FirstHead | None) -> None:
    """Another machine leads from now on, with files of its own."""
    world.blobs, world.other_heads = KeptBlobs(folder), first
    await world.reboot()


async def begun(world: World, tmp_path: Path, **request: Any) -> tuple[Workload, Workload]:
    """Work that holds all GPUs, and work with a folder that waits behind it."""
    blobs = world.blobs = KeptBlobs(tmp_path / "first")
    await world.reboot()
    await blobs.put(space_of("ann"), [SAID, MANIFEST])
    await blobs.mark(space_of("ann"), TREE)
    before = await world.submit(gpus={"count": 2})
    waiting = await world.submit(**{**MINE, **request})
    assert (before.state, waiting.state) == (RUNNING, QUEUED)
    return before, waiting


async def lead_moves_at_the_start(world: World, tmp_path: Path, before: Workload, waiting: Workload) -> FirstHead:
    """The lead moves when the work has its place and its node has not heard of it."""
    world.agent.losses += ["before"] * 50  # the node hears of nothing that the first head says from here on
    world.agent.end(world.program(before), 0)
    mirror = world.now.engine.mirror
    await until(lambda: mirror.replicas[waiting.id][0].state is ReplicaState.STARTING)
    world.agent.losses.clear()
    first = FirstHead(SAID, MANIFEST)
    await move(world, tmp_path / "second", first)
    return first


async def why(world: World, ref: str) -> Any:
    return await world.services.workloads.why(ADMIN, ref)


def test_it_starts_with_its_folder_when_the_other_head_is_back(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        first = FirstHead(SAID, MANIFEST)
        await move(world, tmp_path / "second", first)
        await world.end(before)
        await rounds(world, first)
        assert await world.state(waiting.id) is QUEUED
        told = await why(world, waiting.id)
        assert told.code is WaitCode.FOLDER
        assert "first may have it and cannot be asked" in told.sentence
        assert 0 < told.numbers["given_up_in_s"] < AWAIT_S
        first.up = True
        await world.pass_time(PAUSE_S + 1)
        await until(lambda: world.is_running(waiting))
        assert world.blobs is not None
        assert await world.blobs.read(space_of("ann"), hashlib.sha256(SAID).hexdigest(), 0, 100) == SAID
        assert not await world.blobs.is_marked(space_of("bob"), TREE)

    world.do(story())


def test_work_that_had_its_place_keeps_it_until_its_folder_has_come(world: World, tmp_path: Path) -> None:
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


def test_work_that_had_its_place_can_be_stopped_meanwhile(world: World, tmp_path: Path) -> None:
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


def test_it_ends_when_every_head_says_that_it_has_it_not(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        before, waiting = await begun(world, tmp_path)
        first = FirstHead(MANIFEST)  # and not what is in it
        first.up = True
        await move(world, tmp_path / "second", first)
        await until(lambda: first.asked >= 2)
        await world.pass_time(1)
        [row] = await world.replicas(waiting.id)
        assert (row.state, row.attempt, str(row.reason)) == (ReplicaState.FAILED, 0, "START_FAILED")
        assert "not kept here" in row.message
        assert "head that does not lead now" in (await why(world, waiting.id)).sentence
        assert world.is_running(before)
        asked = first.asked
        await world.pass_time(PAUSE_S * 3)
        assert first.asked == asked

    world.do(story())


def test_a_head_that_stays_away_is_waited_for_an_hour_and_no_longer(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        _, waiting = await begun(world, tmp_path)
        first = FirstHead(SAID, MANIFEST)
        await move(world, tmp_path / "second", first)
        await rounds(world, first)
        await world.pass_time(AWAIT_S - 60)
        await rounds(world, first)
        assert await world.state(waiting.id) is QUEUED
        await world.pass_time(60)
        asked = first.asked
        await world.pass_time(PAUSE_S + 1)
        await until(lambda: first.asked > asked or world.now.engine.mirror.workloads.get(waiting.id) is None)
        await world.pass_time(1)
        assert await world.state(waiting.id) is FAILED
        [row] = await world.replicas(waiting.id)
        assert str(row.reason) == "START_FAILED"

    world.do(story())


@pytest.mark.parametrize("others", [None, "none known"])
def test_where_there_is_no_other_head_it_ends_when_it_is_placed(
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
        assert "not kept here" in row.message

    world.do(story())


def test_other_work_and_work_that_is_stopped_do_not_wait_for_it(world: World, tmp_path: Path) -> None:
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
        await until(lambda: not world.now._away._away)
        assert first.asked <= asked + 1

    world.do(story())
