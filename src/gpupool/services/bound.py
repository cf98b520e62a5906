"""Clients that a workload is bound to, while it waits for its GPUs.

Once the program runs, its shepherd watches the client itself; before that, only the client's open wait shows that it is
still there.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from gpupool.domain.ids import WorkloadId


class BoundClients:
    """Who waits for which client-bound workload; ``monotonic`` gives seconds that never jump."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._open: Counter[WorkloadId] = Counter()
        self._silent_since: dict[WorkloadId, float] = {}

    @contextlib.contextmanager
    def waiting(self, workload: WorkloadId) -> Iterator[None]:
        """The client of this workload is there for the length of the block."""
        self._open[workload] += 1
        self._silent_since.pop(workload, None)
        try:
            yield
        finally:
            self._open[workload] -= 1
            if not self._open[workload]:
                del self._open[workload]
                self._silent_since[workload] = self._monotonic()

    def silent_for_s(self, workload: WorkloadId) -> float:
        """Seconds since when no client of this workload has been heard."""
        if workload in self._open:
            return 0.0
        now = self._monotonic()
        return now - self._silent_since.setdefault(workload, now)

    def forget(self, workload: WorkloadId) -> None:
        """The workload does not wait any more."""
        self._silent_since.pop(workload, None)
