"""The agent's decision to return the GPUs of lazy programs, and its order with records, reports and grants."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ProcessSpec, ProcessStatus
from gpupool.node.agent import lazy_gpus
from gpupool.node.agent.attempt import AttemptEntry, first_status
from gpupool.node.agent.lazy_gpus import LazyGpus
from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.host.records import StartRequest
from gpupool.node.ports import NodeProgram

GPUS = (GpuShare("GPU-1", 0, 500, 1024),)
KEY = "w0000000001.0.1"


class Modes:
    """The sharing modes: one lease, of which a process uses CUDA or has the pages, or not."""

    def __init__(self) -> None:
        self.used = self.mapped = False
        self.wanted: float | None = 5.0
        self.pages = True

    def wanted_at(self, _mode: str, _program: NodeProgram) -> float | None:
        return self.wanted

    def in_use(self, _mode: str, _program: NodeProgram) -> bool:
        return self.used

    def suspending(self, _mode: str) -> None:
        return None

    def detach(self, _mode: str, _program: NodeProgram, _pids: Callable[[], frozenset[int]]) -> bool:
        self.pages = self.pages and self.mapped
        self.wanted = self.wanted if self.mapped else None
        return not self.mapped


class SuspendableModes(Modes):
    """A lease whose processes were being suspended when the last agent was killed; a resumption waits for ``ready``."""

    def __init__(self) -> None:
        super().__init__()
        self.suspended, self.ready = "GPU-1", asyncio.Event()
        self.calls: list[str] = []

    def suspending(self, _mode: str) -> Any:
        return self

    def suspended_gpu(self, _program: NodeProgram) -> str:
        return self.suspended

    def want_gpus(self, _program: NodeProgram) -> None:
        self.wanted = 9.0

    async def suspend(self, _program: NodeProgram, _pids: Callable[[], frozenset[int]], _timeout_s: float) -> None:
        self.calls.append("suspend")
        self.suspended = "GPU-1"

    async def resume(self, _program: NodeProgram, _pids: Callable[[], frozenset[int]]) -> None:
        await self.ready.wait()
        self.calls.append("resume")
        self.suspended = ""


class Programs:
    """The agent with one lazy program that has GPUs of epoch 7."""

    def __init__(self, folder: Path) -> None:
        spec = ProcessSpec(KEY, 3, ("true",), {}, "/", lease=3, lazy=True, gpus=GPUS, gpu_epoch=7, return_after_s=60.0)
        request = StartRequest(spec, {}, (), "", folder)
        place = ReplicaFolder(folder / KEY)
        place.path.mkdir()
        self.entry = AttemptEntry(place, request, replace(first_status(request, ""), gpu_wanted_at=5.0))
        self.entries = {KEY: self.entry}
        self.sharing: Any = Modes()
        self.reports: list[ProcessStatus] = []

    def program(self, entry: AttemptEntry) -> NodeProgram:
        return NodeProgram(entry.request.spec, {}, entry.folder.path)

    def pids_of(self, _entries: Iterable[AttemptEntry]) -> frozenset[int]:
        return frozenset()

    def changed(self, status: ProcessStatus) -> None:
        self.reports.append(status)

    @property
    def recorded(self) -> StartRequest:
        found = StartRequest.read(self.entry.folder)
        assert found is not None
        return found


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def gpus(programs: Programs, now: list[float]) -> LazyGpus:
    return LazyGpus(programs, lambda: now[0])


def test_programs_are_looked_at_from_their_start_to_their_end(
    programs: Programs, gpus: LazyGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: asyncio.Queue[None] = asyncio.Queue()
    look = gpus.look

    async def count() -> None:
        await look()
        looks.put_nowait(None)

    async def story() -> None:
        entries, programs.entries = programs.entries, {}
        running = asyncio.create_task(gpus.run())
        await asyncio.sleep(0.05)
        assert looks.empty(), "no such program has started"
        programs.entries = entries
        gpus.add(programs.entry)
        for _ in range(3):
            await looks.get()
        programs.entries = {}
        await looks.get()
        await asyncio.sleep(0.05)
        assert looks.qsize() <= 1, "it has ended"
        running.cancel()

    monkeypatch.setattr(gpus, "look", count)
    monkeypatch.setattr(lazy_gpus, "LOOK_INTERVAL_S", 0.01)
    asyncio.run(asyncio.wait_for(story(), 20))


def test_gpus_are_returned_after_the_time_without_use(programs: Programs, gpus: LazyGpus, now: list[float]) -> None:
    async def story() -> None:
        for used, passed_s in ((False, 59), (True, 1), (False, 0), (False, 59)):
            programs.sharing.used = used
            now[0] += passed_s
            await gpus.look()
        assert not programs.reports
        now[0] += 1
        await gpus.look()
        (report,) = programs.reports
        assert (report.gpu_epoch, report.gpu_returned, report.gpu_wanted_at) == (0, 7, None)
        spec = programs.recorded.spec
        assert (spec.gpus, spec.gpu_epoch, spec.gpu_returned) == ((), 0, 7)
        assert first_status(programs.recorded, "").gpu_returned == 7, "the next agent reports it, too"
        programs.sharing.wanted = None
        await gpus.look()
        assert len(programs.reports) == 1
        programs.sharing.wanted = 9.0
        await gpus.look()
        assert programs.reports[1].gpu_wanted_at == 9.0

    asyncio.run(story())


def test_pages_that_a_process_has_keep_the_gpus(programs: Programs, gpus: LazyGpus, now: list[float]) -> None:
    async def story() -> None:
        programs.sharing.mapped = True
        for _ in range(5):
            await gpus.look()
            now[0] += 60
        assert not programs.reports
        assert programs.entry.request.spec.gpus == GPUS

    asyncio.run(story())


def test_return_is_reported_only_after_it_is_written(programs: Programs, gpus: LazyGpus, now: list[float]) -> None:
    """Otherwise the next agent could give GPUs back to the program that the pool has given to another one."""

    async def story() -> None:
        shutil.rmtree(programs.entry.folder.path)
        await gpus.look()
        now[0] += 60
        await gpus.look()
        assert not programs.sharing.pages
        assert not programs.reports
        assert programs.entry.status.gpu_epoch == 7
        programs.entry.folder.path.mkdir()
        await gpus.look()
        assert programs.recorded.spec.gpu_returned == programs.reports[0].gpu_returned == 7

    asyncio.run(story())


def test_returned_gpus_are_not_given_again(programs: Programs) -> None:
    entry = programs.entry
    entry.give_gpus(7, GPUS)
    entry.return_gpus()
    for epoch in (6, 7):
        with pytest.raises(GpupoolError) as refused:
            entry.give_gpus(epoch, GPUS)
        assert refused.value.code is ErrorCode.STALE_WRITE
    entry.give_gpus(8, GPUS)
    assert entry.request.spec.gpus == GPUS


def test_no_return_while_gpus_are_given(programs: Programs, gpus: LazyGpus, now: list[float]) -> None:
    async def story() -> None:
        await gpus.look()
        now[0] += 60
        async with gpus.changing(KEY):
            look = asyncio.create_task(gpus.look())
            await asyncio.sleep(0.05)
            assert programs.sharing.pages
            assert not look.done()
        await look
        assert not programs.sharing.pages

    asyncio.run(story())


def test_suspension_that_the_pool_asks_for_follows_an_unfinished_one(programs: Programs, gpus: LazyGpus) -> None:
    async def story() -> None:
        modes = programs.sharing = SuspendableModes()
        await gpus.look()
        for _ in range(2):  # the pool repeats what the agent may have missed
            gpus.suspend(programs.entry, 20.0)
        await asyncio.sleep(0.01)
        assert not modes.calls
        modes.ready.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=5)
        assert modes.calls == ["resume", "suspend"]
        assert (programs.reports[-1].gpu_epoch, programs.reports[-1].suspended_gpu) == (0, "GPU-1")

    asyncio.run(story())
