"""The cached state of a kernel: two threads read it, the event stream's and that of a start."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import cast

import pytest

from gpupool.client import Client
from gpupool.jupyter import watch
from gpupool.jupyter.watch import KernelPhase, KernelState, WatchedKernel

WAITING = KernelState("w1", "kernel", KernelPhase.WAITING)


def test_slow_answer_does_not_replace_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((KernelPhase.STARTING, KernelPhase.RUNNING))
    asked, answered = threading.Event(), threading.Event()

    read_state = watch.read_state

    def read(client: Client, workload: str) -> KernelState:
        if workload != WAITING.workload:  # a watcher of this process that has not ended yet
            return read_state(client, workload)
        phase = next(answers)
        if phase is KernelPhase.STARTING:
            asked.set()
            assert answered.wait(30)
        return replace(WAITING, phase=phase)

    monkeypatch.setattr(watch, "read_state", read)
    kernel = WatchedKernel(WAITING, lambda: None)
    client = cast("Client", None)  # nothing is asked of it
    first = threading.Thread(target=kernel.refresh, args=(client,))
    first.start()
    assert asked.wait(30)
    second = threading.Thread(target=kernel.refresh, args=(client,))
    second.start()
    second.join(0.2)
    answered.set()
    first.join()
    second.join()
    assert kernel.state.phase is KernelPhase.RUNNING
