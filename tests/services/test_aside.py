"""Long answers come from a copy of the process: the loop goes on, nothing of ours is touched, and no copy stays."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services import aside
from gpupool.services.aside import Aside


def dear() -> Aside:
    return Aside(lambda: 1.0)


def busy(seconds: float) -> int:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return os.getpid()


def opened() -> list[str]:
    """What this process holds open, but for the listing itself."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if not link.endswith("/fd")]


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_cheap_work_is_done_here_and_dear_work_in_a_copy() -> None:
    assert asyncio.run(Aside(lambda: 0.0).do(os.getpid)) == os.getpid()
    assert asyncio.run(dear().do(os.getpid)) != os.getpid()


def test_the_loop_goes_on_meanwhile() -> None:
    async def both() -> int:
        task, turns = asyncio.create_task(dear().do(lambda: busy(0.2))), 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert asyncio.run(both()) > 10


def test_work_that_turns_out_cheap_is_done_here_from_then_on() -> None:
    work = dear()

    async def twice() -> list[int]:
        return [await work.do(os.getpid) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first != os.getpid()
    assert second == os.getpid()


def test_the_answer_is_of_the_moment_and_what_the_copy_changes_stays_there() -> None:
    known = [1]

    def add() -> list[int]:
        known.append(2)
        return known

    assert asyncio.run(dear().do(add)) == [1, 2]
    assert known == [1]


def test_what_the_work_raises_is_raised_here() -> None:
    def refuse() -> None:
        raise GpupoolError(ErrorCode.NOT_FOUND, "It is gone.", "Look again.")

    with pytest.raises(GpupoolError, match="gone"):
        asyncio.run(dear().do(refuse))


def killed_at_once(here: int) -> str:
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return "here"


@pytest.mark.parametrize("end", ["killed", "unpicklable", "no copy"])
def test_without_an_answer_of_the_copy_it_is_worked_out_here(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, before = os.getpid(), children()
    work: Callable[[], object] = lambda: killed_at_once(here)  # noqa: E731
    if end == "unpicklable":
        work = lambda: lambda: "here"  # noqa: E731
    if end == "no copy":
        monkeypatch.setattr(aside.os, "fork", lambda: (_ for _ in ()).throw(OSError("no memory")))
    answer = asyncio.run(dear().do(work))
    assert (answer() if callable(answer) else answer) == "here"
    assert children() <= before


def test_a_copy_holds_nothing_open_but_its_pipe(tmp_path: Path) -> None:
    with (tmp_path / "database").open("w") as ours:
        assert ours.name in opened()
        found = asyncio.run(dear().do(opened))
    assert len(found) == 1
    assert found[0].startswith("pipe:")


def test_who_hangs_up_ends_the_copy() -> None:
    async def hang_up() -> None:
        task = asyncio.create_task(dear().do(lambda: busy(20.0)))
        while children() <= before:  # noqa: ASYNC110 - the kernel rings no bell
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    began, before = time.monotonic(), children()
    asyncio.run(hang_up())
    assert children() <= before
    assert time.monotonic() - began < 15.0


def test_a_signal_to_the_copy_is_not_heard_here() -> None:
    heard: list[int] = []

    def stop_yourself() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def listen() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.append, 1)
        here = os.getpid()
        await dear().do(lambda: stop_yourself() if os.getpid() != here else None)
        await asyncio.sleep(0.01)

    asyncio.run(listen())
    assert not heard
