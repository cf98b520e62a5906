"""Tells whether this machine let its processes run: what a test measures while it did not is no fault of the tested.

A virtual machine's processors are taken away for tens of milliseconds when others need them. A tenant that has the GPU
at such a moment cannot use it, independent of the arbiter.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Self

BEAT_S = 0.005
_USUAL_S = 0.010  # what a thread may wait for its processor among a dozen others


class Metronome:
    """A thread on each processor that wants to run every 5 ms; ``late_s`` tells by how much each was late."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._late: dict[int, list[tuple[float, float]]] = {cpu: [] for cpu in os.sched_getaffinity(0)}
        self._threads = [threading.Thread(target=self._beat, args=(cpu,), daemon=True) for cpu in self._late]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def late_s(self, since: float, until: float) -> float:
        """Return how long the worst processor kept its thread waiting, in total, between two monotonic times."""
        return max(sum(late for at, late in beats if since <= at <= until) for beats in self._late.values())

    def _beat(self, cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread alone
        while not self._over.is_set():
            due = time.monotonic() + BEAT_S
            time.sleep(BEAT_S)
            if (now := time.monotonic()) > due + _USUAL_S:
                self._late[cpu].append((now, now - due))
