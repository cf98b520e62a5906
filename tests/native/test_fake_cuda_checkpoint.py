"""Another process is locked, its memory leaves the GPU and comes back, and it continues with what it stored."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_cuda_harness import Pool, counters
from native_harness import MIB

pytest.importorskip("cuda.bindings")

PROGRAM = Path(__file__).with_name("fake_cuda_checkpoint_clients.py")
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
SIZE_MIB, CARD_MIB = 64, 16384


class Client:
    """One of the programs; each line that it gets is answered by one line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def is_silent(self, seconds: float) -> bool:
        return not select.select([self.process.stdout], [], [], seconds)[0]


@contextmanager
def client(pool: Pool, *arguments: object) -> Iterator[Client]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        env=pool.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def pool(native_out: Path, fake_gpus: Path) -> Pool:
    return Pool(native_out / "fake", fake_gpus)


@pytest.fixture
def worker(pool: Pool) -> Iterator[Client]:
    with client(pool, "stepping", SIZE_MIB) as made:
        assert made.answer() == "ready"
        yield made


@pytest.fixture
def controller(pool: Pool, worker: Client) -> Iterator[Client]:
    with client(pool, "controlling", worker.process.pid) as made:
        yield made


def test_memory_leaves_the_gpu_and_comes_back_unchanged(pool: Pool, worker: Client, controller: Client) -> None:
    assert worker.ask("step") is True
    used = counters(pool)[worker.process.pid].memory_bytes
    assert used > SIZE_MIB * MIB
    result, state, free = controller.ask("lock")
    assert (result, state) == ("SUCCESS", LOCKED)
    worker.tell("step")
    assert worker.is_silent(0.3), "calls of a locked process wait"
    assert controller.ask("checkpoint") == ["SUCCESS", CHECKPOINTED, free + used // MIB]
    assert counters(pool)[worker.process.pid].memory_bytes == 0
    assert controller.ask("restore") == ["SUCCESS", LOCKED, free]
    assert worker.is_silent(0.3)
    assert controller.ask("unlock") == ["SUCCESS", RUNNING, free]
    assert worker.answer() is True
    assert worker.ask("step") is True
    assert counters(pool)[worker.process.pid].memory_bytes == used


def test_steps_out_of_order_are_refused(controller: Client) -> None:
    for word in ("checkpoint", "restore", "unlock"):
        assert controller.ask(word)[:2] == ["ILLEGAL_STATE", RUNNING]
    assert controller.ask("lock")[0] == "SUCCESS"
    for word in ("lock", "restore"):
        assert controller.ask(word)[:2] == ["ILLEGAL_STATE", LOCKED]
    assert controller.ask("checkpoint")[0] == "SUCCESS"
    for word in ("lock", "checkpoint", "unlock"):
        assert controller.ask(word)[:2] == ["ILLEGAL_STATE", CHECKPOINTED]


def test_restore_without_room_is_refused_and_works_later(pool: Pool, worker: Client, controller: Client) -> None:
    for word in ("lock", "checkpoint"):
        assert controller.ask(word)[0] == "SUCCESS"
    with client(pool, "holding", SIZE_MIB) as other:
        assert other.answer() == "ready"
        assert controller.ask("restore")[:2] == ["OUT_OF_MEMORY", CHECKPOINTED]
        assert counters(pool)[worker.process.pid].memory_bytes == 0
    assert controller.ask("restore")[:2] == ["SUCCESS", LOCKED]
    assert controller.ask("unlock")[0] == "SUCCESS"
    assert worker.ask("step") is True


def test_lock_waits_for_a_call_within_its_timeout(pool: Pool) -> None:
    with client(pool, "waiting") as busy, client(pool, "controlling", busy.process.pid) as controller:
        assert busy.answer() == "ready"
        while (found := controller.ask("lock 50"))[0] == "SUCCESS":  # its call had not begun
            assert controller.ask("unlock")[0] == "SUCCESS"
        assert found[:2] == ["NOT_READY", RUNNING]
        assert controller.ask("lock")[:2] == ["SUCCESS", LOCKED]
        assert busy.answer() == "done"


def test_locked_process_that_is_killed_leaves_no_memory(pool: Pool, worker: Client, controller: Client) -> None:
    assert controller.ask("lock")[0] == "SUCCESS"
    worker.process.kill()
    worker.process.wait()
    result, state, free = controller.ask("checkpoint")
    assert (result, state) == ("INVALID_VALUE", None)
    assert free > CARD_MIB - SIZE_MIB - 512


@pytest.mark.parametrize("pid", [0, -1, 1])
def test_process_without_a_gpu_is_unknown(pool: Pool, pid: int) -> None:
    with client(pool, "controlling", pid) as controller:
        assert controller.ask("lock")[:2] == ["INVALID_VALUE", None]


def test_process_cannot_lock_itself(pool: Pool) -> None:
    with client(pool, "controlling", "self") as controller:
        assert controller.ask("lock")[0] == "INVALID_VALUE"
