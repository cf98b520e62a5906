"""Clients of client-bound workloads that wait for GPUs.

When the program runs, its shepherd watches the client. Before that, only the client's open wait request shows that it
is still there.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from gpupool.domain.ids import WorkloadId


class ClientBindings:
    """Counts the clients that wait for each client-bound workload; ``monotonic`` returns seconds that never jump."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._open: Counter[WorkloadId] = Counter()
        self._silent_since: dict[WorkloadId, float] = {}

    @contextlib.contextmanager
    def waiting(self, workload: WorkloadId) -> Iterator[None]:
        """Count a client of this workload for the length of the block."""
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
        """Return the seconds since the last client of this workload left."""
        if workload in self._open:
            return 0.0
        now = self._monotonic()
        return now - self._silent_since.setdefault(workload, now)

    def forget(self, workload: WorkloadId) -> None:
        """Remove a workload that no longer waits."""
        self._silent_since.pop(workload, None)
