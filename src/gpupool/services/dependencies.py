"""Who waits for the end of other work, and whether that will still come."""

from __future__ import annotations

from collections.abc import Iterable

from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import Workload, WorkloadState
from gpupool.services.mirror import Mirror


class Dependencies:
    """``finished_states`` remembers how workloads ended that others wait for.

    ``unmet`` are workloads that wait for what can never be any more.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._waiting: dict[WorkloadId, set[WorkloadId]] = {}  # by what they wait for
        self._awaited: set[WorkloadId] = set()
        self.finished_states: dict[WorkloadId, WorkloadState] = {}
        self.unmet: set[WorkloadId] = set()

    def learn(self, workload: Workload) -> None:
        """A workload is new, or has changed."""
        self._awaited.update(dependency.workload for dependency in workload.after)
        if workload.state.final and workload.id in self._awaited:
            self.finished_states[workload.id] = workload.state

    def learn_all(self, workloads: Iterable[Workload]) -> None:
        """Begin with these."""
        for workload in workloads:
            self.learn(workload)

    def wait(self, workload: Workload) -> None:
        """It is in nobody's queue yet, and to be told when what it waits for ends."""
        for dependency in workload.after:
            self._waiting.setdefault(dependency.workload, set()).add(workload.id)

    def waiting_for(self, workload: Workload) -> Iterable[WorkloadId]:
        """Who is to be looked at, now that this is as it is."""
        return self._waiting.get(workload.id, ()) if workload.state.final else ()

    def forget(self, workload: WorkloadId) -> None:
        """It is gone."""
        self._waiting.pop(workload, None)

    def forget_waiting(self) -> None:
        """Nobody waits; who does will say so."""
        self._waiting = {}

    def met(self, workload: Workload) -> bool:
        """Whether all that it waits for has ended as it should; if that can never be, it is ``unmet``."""
        met = [self._met(d.workload, success_only=d.success_only) for d in workload.after]
        if False in met:
            self.unmet.add(workload.id)
        return all(met)

    def _met(self, dependency: WorkloadId, *, success_only: bool) -> bool | None:
        """True: met; None: not yet; False: never."""
        if dependency in self._mirror.workloads:
            return None
        state = self.finished_states.get(dependency, WorkloadState.SUCCEEDED)
        return not success_only or state is WorkloadState.SUCCEEDED
