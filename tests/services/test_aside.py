"""Expensive answers come from a forked copy: the event loop continues, state is unchanged, and no copy stays."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.explain import forked_worker
from gpupool.services.explain.forked_worker import ForkedWorker


def dear() -> ForkedWorker:
    return ForkedWorker(lambda: 1.0)


def busy(seconds: float) -> int:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return os.getpid()


def opened() -> list[str]:
    """Return the open files of this process, except for this listing."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if not link.endswith("/fd")]


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_cheap_work_runs_in_process_and_expensive_work_in_copy() -> None:
    assert asyncio.run(ForkedWorker(lambda: 0.0).run(os.getpid)) == os.getpid()
    assert asyncio.run(dear().run(os.getpid)) != os.getpid()


def test_event_loop_continues_during_work_in_copy() -> None:
    async def both() -> int:
        task, turns = asyncio.create_task(dear().run(lambda: busy(0.2))), 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert asyncio.run(both()) > 10


def test_work_that_was_cheap_runs_in_process_next_time() -> None:
    work = dear()

    async def twice() -> list[int]:
        return [await work.run(os.getpid) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first != os.getpid()
    assert second == os.getpid()


def test_copy_sees_current_state_and_its_changes_are_discarded() -> None:
    known = [1]

    def add() -> list[int]:
        known.append(2)
        return known

    assert asyncio.run(dear().run(add)) == [1, 2]
    assert known == [1]


def test_exception_of_work_is_raised_in_caller() -> None:
    def refuse() -> None:
        raise GpupoolError(ErrorCode.NOT_FOUND, "It is gone.", "Look again.")

    with pytest.raises(GpupoolError, match="gone"):
        asyncio.run(dear().run(refuse))


def killed_at_once(here: int) -> str:
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return "here"


@pytest.mark.parametrize("end", ["killed", "unpicklable", "no copy"])
def test_work_runs_in_process_if_copy_gives_no_answer(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, before = os.getpid(), children()
    work: Callable[[], object] = lambda: killed_at_once(here)  # noqa: E731
    if end == "unpicklable":
        work = lambda: lambda: "here"  # noqa: E731
    if end == "no copy":
        monkeypatch.setattr(forked_worker.os, "fork", lambda: (_ for _ in ()).throw(OSError("no memory")))
    answer = asyncio.run(dear().run(work))
    assert (answer() if callable(answer) else answer) == "here"
    assert children() <= before


def test_copy_that_waits_for_a_lock_of_another_thread_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork has only one thread: a lock that another thread holds at that moment is never released in the copy."""
    monkeypatch.setattr(forked_worker, "MAX_WALL_S", 0.2)
    here, lock, before = os.getpid(), threading.Lock(), children()
    with lock:
        answer = asyncio.run(dear().run(lambda: "here" if os.getpid() == here else str(lock.acquire())))
    assert answer == "here"
    assert children() <= before


def test_copy_has_only_its_pipe_open(tmp_path: Path) -> None:
    with (tmp_path / "database").open("w") as ours:
        assert ours.name in opened()
        found = asyncio.run(dear().run(opened))
    assert len(found) == 1
    assert found[0].startswith("pipe:")


def test_cancelled_caller_ends_the_copy() -> None:
    async def hang_up() -> None:
        task = asyncio.create_task(dear().run(lambda: busy(600.0)))
        while children() <= before:  # noqa: ASYNC110 - the kernel rings no bell
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = children()
    asyncio.run(hang_up())  # returns long before the copy would
    assert children() <= before


def test_signal_to_copy_does_not_reach_the_process() -> None:
    heard: list[int] = []

    def stop_yourself() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def listen() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.append, 1)
        here = os.getpid()
        await dear().run(lambda: stop_yourself() if os.getpid() != here else None)
        await asyncio.sleep(0.01)

    asyncio.run(listen())
    assert not heard
