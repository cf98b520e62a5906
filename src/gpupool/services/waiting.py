"""Why a workload stands where it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf

from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.units import format_duration
from gpupool.domain.workload import Replica, ReplicaState, Workload, WorkloadState
from gpupool.scheduling.background import Background
from gpupool.scheduling.explain import Explanation, WaitCode
from gpupool.scheduling.values import Held
from gpupool.services.aside import Aside
from gpupool.services.engine import Engine
from gpupool.services.foresight import Foresight
from gpupool.services.lookup import Lookup

GUESS_S = 5e-5  # what an estimate may cost for each live workload, before one was made


class WhyService:
    """Asks the scheduler about what queues, and says the rest itself."""

    def __init__(self, engine: Engine, lookup: Lookup) -> None:
        self._engine = engine
        self._lookup = lookup
        self.folder_away: Callable[[Workload], Explanation] = _folder_away
        self.aside = Aside(lambda: GUESS_S * len(engine.mirror.workloads))
        self.foresight = Foresight(engine)

    async def why(self, workload: Workload, index: int | None = None, *, foretell: bool = True) -> Explanation:
        """The first rule that stands in the way of a replica (None: the workload's next), or how it stands.

        Without ``foretell`` there is no estimate: that takes long in a large pool, where it is made beside the loop.
        Raises ``GpupoolError(NOT_FOUND)`` for an index there is not.
        """
        if index is not None:
            replica = await self._lookup.replica(workload, index)
            if replica.state is not ReplicaState.PENDING:
                return Explanation(WaitCode.NOT_WAITING, _stands(workload, replica))
        if workload.state.final:
            return await self._ended(workload)
        background = await self.foresight.background(workload) if foretell else None  # what follows is of one moment
        held = self._engine.demand.held(workload)
        counts = self._engine.mirror.counts.get(workload.id, Counter())
        if not counts[ReplicaState.PENDING]:
            return Explanation(WaitCode.NOT_WAITING, f"{workload.name} is {workload.state}.")
        if held is not None:
            return self.held(workload, held)
        if background is None:
            return self._queued(workload, index, None)
        found = await self.aside.do(partial(self._queued, workload, index, background))
        if index is None:
            await self.foresight.note(self._engine.mirror.workloads.get(workload.id, workload), found)
        return found

    def _queued(self, workload: Workload, index: int | None, background: Background | None) -> Explanation:
        """What the scheduler says of a replica in the queue."""
        demand = self._engine.demand
        key = demand.first_offered(workload.id, index)
        if key is None:
            counts = self._engine.mirror.counts.get(workload.id, Counter())
            placed = sum(n for state, n in counts.items() if state.placed)
            sentence = f"{placed} of its replicas run; its parallelism is {workload.parallelism}."
            return Explanation(WaitCode.PARALLELISM, sentence, numbers={"parallelism": workload.parallelism})
        now = self._engine.ports.clock.now()
        found = demand.scheduler.explain(key, now, background=background, foretell=background is not None)
        return found or Explanation(WaitCode.STARTING_SOON, f"{workload.name} is about to start.")

    def held(self, workload: Workload, held: Held) -> Explanation:
        """What keeps a workload out of the queue."""
        if held is Held.DEPENDENCY:
            waits_for = [self._name(d.workload) for d in workload.after if d.workload in self._engine.mirror.workloads]
            sentence = f"waits for {', '.join(waits_for[:5]) or 'other workloads'} to end."
            return Explanation(WaitCode.DEPENDENCY, sentence, estimate_basis="it depends on when other work ends")
        if held is Held.WINDOW:
            return self._closed(workload)
        if held is Held.FOLDER:
            return self.folder_away(workload)
        return Explanation(
            WaitCode.SUSPENDED,
            f"{workload.name} is suspended.",
            would_help=(f"gpupool resume {workload.name}",),
            estimate_basis="it starts after it is resumed",
        )

    def _closed(self, workload: Workload) -> Explanation:
        demand = self._engine.demand
        opens = demand.windows.opens_at(workload)
        basis = "the opening of its time window, if something is free then"
        return Explanation(
            WaitCode.WINDOW,
            demand.windows.note(workload),
            numbers={"opens_at": opens} if opens < inf else {},
            estimate_s=opens - self._engine.ports.clock.now() if opens < inf else None,
            estimate_basis=basis if opens < inf else "its time windows never open together",
        )

    def _name(self, workload_id: WorkloadId) -> str:
        found = self._engine.mirror.workloads.get(workload_id)
        return found.name if found is not None else workload_id

    async def _ended(self, workload: Workload) -> Explanation:
        replicas = await self._lookup.replicas(workload)
        bad = [r for r in replicas if r.state is ReplicaState.FAILED] or list(replicas)
        last = bad[0] if bad else None
        sentence = f"{workload.name} has ended: {workload.state}"
        if last is not None and last.message:
            sentence += f" ({last.reason}: {last.message})"
        if workload.state is WorkloadState.SUCCEEDED and workload.started_at and workload.finished_at:
            sentence += f" after {format_duration(workload.finished_at - workload.started_at)}"
        helps = ("gpupool logs " + workload.name,) if last is not None and last.reason is Reason.EXITED else ()
        return Explanation(WaitCode.NOT_WAITING, sentence + ".", would_help=helps)


def _folder_away(workload: Workload) -> Explanation:
    return Explanation(WaitCode.FOLDER, f"{workload.name} waits for its folder.")


def _stands(workload: Workload, replica: Replica) -> str:
    said = f" ({replica.reason}: {replica.message})" if replica.message else ""
    return f"{workload.name}/{replica.index} is {replica.state}{said}."
