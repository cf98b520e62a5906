"""Wait reasons: why a workload is in its present state, and events that tell when an evicted replica continues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.units import format_duration
from gpupool.domain.work.ending import ending_of, replica_ending
from gpupool.domain.work.lifecycle import POOL, join_clauses
from gpupool.domain.work.workload import Replica, ReplicaState, Workload
from gpupool.scheduling.explain.background import Background
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.scheduling.state.cluster import NODE
from gpupool.scheduling.values import BlockReason
from gpupool.services.control.database_outage import ignore_outage
from gpupool.services.control.engine import Engine
from gpupool.services.control.lookup import Lookup
from gpupool.services.explain.estimates import EstimateService
from gpupool.services.explain.forked_worker import ForkedWorker
from gpupool.services.lifecycle.reserved_gpus import is_reservation

CHECK_INTERVAL_S = 1.0
MAX_NAMED_RESERVATIONS = 3
MAX_NOTICES_PER_CHECK = 32  # for the others, `gpupool why` has the answer
ASSUMED_COST_S = 5e-5  # time for an estimate for each live workload, before the first measurement

_PAST_TENSE: dict[str, str] = {"succeeded": "succeeded", "failed": "failed", "stopped": "been stopped"}
_WAITS_FOR_GPUS = frozenset({WaitCode.WAITING_FOR_GPU, WaitCode.GANG})

log = structlog.get_logger("gpupool.wait_reason")


@dataclass(frozen=True, slots=True)
class Obstacles:
    """Causes of waits that other services know.

    ``folder`` explains a workload whose folder is on another head. ``mig`` returns a clause about a node's last error
    with a MIG instance; empty without one.
    """

    folder: Callable[[Workload], Explanation]
    mig: Callable[[str], str]


class WaitReasonService:
    """Explains waiting workloads, with the scheduler for those in the queue."""

    def __init__(self, engine: Engine, lookup: Lookup, obstacles: Obstacles) -> None:
        self._engine = engine
        self._lookup = lookup
        self._obstacles = obstacles
        self.worker = ForkedWorker(lambda: ASSUMED_COST_S * len(engine.mirror.workloads))
        self.estimates = EstimateService(engine)

    async def why(self, workload: Workload, index: int | None = None, *, foretell: bool = True) -> Explanation:
        """Return the first rule that keeps a replica waiting (None: the workload's next replica), or its state.

        Without ``foretell`` there is no estimate; an estimate takes long in a large pool and is made in a fork.
        Raises ``GpupoolError(NOT_FOUND)`` for an unknown index.
        """
        replica = None if index is None else await self._lookup.replica(workload, index)
        if workload.state.final or (replica is not None and replica.state.final):
            return await self._ended(workload, index)
        if replica is not None and replica.state is not ReplicaState.PENDING and not replica.waits_for_gpus:
            return Explanation(WaitCode.NOT_WAITING, _state_of(workload, replica))
        background = (
            await self._background(workload) if foretell else None
        )  # no await after this: the rest reads one state
        held = self._engine.feed.held(workload)
        counts = self._engine.mirror.counts.get(workload.id, Counter())
        lazy = self._engine.mirror.replica(workload.id, 0) if workload.limits.separate_gpus else None
        if not counts[ReplicaState.PENDING] and (lazy is None or not lazy.waits_for_gpus):
            note = "" if lazy is None else _holds_nothing(lazy)
            return Explanation(WaitCode.NOT_WAITING, f"{workload.name} is {workload.state}.{note}")
        if held is not None:
            return self.held(workload, held)
        if background is None:
            return self._queued(workload, index, None)
        found = await self.worker.run(partial(self._queued, workload, index, background))
        if index is None:
            with ignore_outage():
                await self.estimates.note(self._engine.mirror.workloads.get(workload.id, workload), found)
        return found

    async def _background(self, workload: Workload) -> Background | None:
        """Return past run times for an estimate; None during a database outage."""
        with ignore_outage():
            return await self.estimates.background(workload)
        return None

    def _queued(self, workload: Workload, index: int | None, background: Background | None) -> Explanation:
        """Explain a replica in the queue with the scheduler."""
        feed = self._engine.feed
        key = feed.first_offered(workload.id, index)
        if key is None:
            counts = self._engine.mirror.counts.get(workload.id, Counter())
            placed = sum(n for state, n in counts.items() if state.placed)
            sentence = f"{placed} of its replicas run; its parallelism is {workload.parallelism}."
            return Explanation(WaitCode.PARALLELISM, sentence, numbers={"parallelism": workload.parallelism})
        now = self._engine.ports.clock.now()
        found = feed.scheduler.explain(key, now, background=background, foretell=background is not None)
        if found is not None and workload.program.workspace:
            stored_on = dict(workload.gpus.labels).get(NODE)
            found = replace(found, sentence=join_clauses(found.sentence, f"its workspace is stored on {stored_on}"))
        node = "" if found is None else str(found.numbers.get("node", ""))
        if found is not None and found.code is WaitCode.MIG_INSTANCE and (problem := self._obstacles.mig(node)):
            found = replace(found, sentence=join_clauses(found.sentence, problem))
        if found is not None and found.code in _WAITS_FOR_GPUS and (held := self._reserved_gpus(workload)):
            found = replace(found, sentence=join_clauses(found.sentence, held))
        row = self._engine.mirror.replica(workload.id, 0)
        if found is not None and row is not None and row.suspended_gpu:
            found = replace(found, sentence=join_clauses(found.sentence, "it is suspended and needs its own GPU"))
        return found or Explanation(WaitCode.STARTING_SOON, f"{workload.name} is about to start.")

    def _reserved_gpus(self, workload: Workload) -> str:
        """Return a clause about the GPUs that are held for stopped workspaces; empty if there are none."""
        mirror = self._engine.mirror
        found = [mirror.workloads[id_] for id_ in mirror.reservations.values() if id_ != workload.id]
        holding = [each for each in found if mirror.counts[each.id][ReplicaState.RUNNING]]
        if not holding:
            return ""
        names = ", ".join(f"{each.name} ({each.user})" for each in holding[:MAX_NAMED_RESERVATIONS])
        more = f" and {len(holding) - MAX_NAMED_RESERVATIONS} more" if len(holding) > MAX_NAMED_RESERVATIONS else ""
        gpus = sum(each.gpus.count for each in holding)
        return f"{gpus} GPU{'s are' if gpus > 1 else ' is'} reserved for stopped workspaces: {names}{more}"

    def held(self, workload: Workload, held: BlockReason) -> Explanation:
        """Explain why a workload is not in the queue."""
        if held is BlockReason.DEPENDENCY:
            waits_for = [self._name(d.workload) for d in workload.after if d.workload in self._engine.mirror.workloads]
            sentence = f"waits for {', '.join(waits_for[:5]) or 'other workloads'} to end."
            return Explanation(WaitCode.DEPENDENCY, sentence, estimate_basis="it depends on when other work ends")
        if held is BlockReason.WINDOW:
            return self._closed(workload)
        if held is BlockReason.FOLDER:
            return self._obstacles.folder(workload)
        if held is BlockReason.BUDGET:
            return self._used_up(workload)
        if is_reservation(workload):
            return Explanation(WaitCode.SUSPENDED, "its workspace uses the GPUs, or waits for them in its place.")
        return Explanation(
            WaitCode.SUSPENDED,
            f"{workload.name} is suspended.",
            would_help=(f"gpupool resume {workload.name}",),
            estimate_basis="it starts after it is resumed",
        )

    def _used_up(self, workload: Workload) -> Explanation:
        budgets, now = self._engine.feed.budgets, self._engine.ports.clock.now()
        _, renewed_at = budgets.month(now)
        return Explanation(
            WaitCode.GPU_HOURS,
            budgets.sentence(workload, now),
            numbers={"opens_at": renewed_at},
            estimate_s=renewed_at - now,
            estimate_basis="a new month begins then, if GPUs are free",
        )

    def _closed(self, workload: Workload) -> Explanation:
        windows = self._engine.feed.windows
        opens = windows.opens_at(workload)
        basis = "its time window opens then, if GPUs are free"
        return Explanation(
            WaitCode.WINDOW,
            windows.note(workload),
            numbers={"opens_at": opens} if opens < inf else {},
            estimate_s=opens - self._engine.ports.clock.now() if opens < inf else None,
            estimate_basis=basis if opens < inf else "its time windows never open together",
        )

    def _name(self, workload_id: WorkloadId) -> str:
        found = self._engine.mirror.workloads.get(workload_id)
        return found.name if found is not None else workload_id

    async def _ended(self, workload: Workload, index: int | None) -> Explanation:
        replicas = await self._lookup.replicas(workload)
        ended = replica_ending(workload, replicas[index]) if index is not None else ending_of(workload, replicas)
        if ended is None:
            return Explanation(WaitCode.NOT_WAITING, f"{workload.name} has ended: {workload.state}.")
        state = replicas[ended.index].state if index is not None else workload.state
        name = workload.name if index is None else f"{workload.name}/{index}"
        helps = (ended.remedy,) if ended.remedy else ()
        return Explanation(ended.code, f"{name} has {_PAST_TENSE[state]}: {ended.sentence}.", would_help=helps)


class ResumptionNotices:
    """Checks evicted replicas once a second; those that already run again get no event."""

    def __init__(self, engine: Engine, waiting: WaitReasonService) -> None:
        self._engine = engine
        self._waiting = waiting

    async def run(self) -> None:
        """Run for ever."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.note_requeued()
            except GpupoolError as error:
                log.warning("could not record when replicas continue", code=error.code)

    async def note_requeued(self) -> None:
        """Write the events for replicas that were evicted since the last call."""
        for row in self._engine.feed.take_requeued()[:MAX_NOTICES_PER_CHECK]:
            workload = self._engine.mirror.workloads.get(row.workload)
            if workload is None or not self._waits(row):
                continue
            why = await self._waiting.why(workload)
            if self._waits(row) and why.code is not WaitCode.NOT_WAITING:
                await self._note(row, _resumption_sentence(why))

    def _waits(self, row: Replica) -> bool:
        now = self._engine.mirror.replica(row.workload, row.index)
        return now is not None and now.state is ReplicaState.PENDING and now.attempt == row.attempt

    async def _note(self, row: Replica, sentence: str) -> None:
        event = Event(self._engine.ports.clock.now(), POOL, Reason.QUEUED_AGAIN, sentence, row.workload, row.index)
        await self._engine.transact(lambda draft: draft.note(event))


def _resumption_sentence(why: Explanation) -> str:
    place = f"at position {why.position} in its project, " if why.position else ""
    when = "start time unknown" if why.estimate_s is None else f"starts in about {format_duration(why.estimate_s)}"
    basis = f" ({why.estimate_basis})" if why.estimate_basis else ""
    return f"queued again: {place}{when}{basis}"


def _holds_nothing(replica: Replica) -> str:
    """Return the sentence that a running replica has no GPUs and does not wait for them; empty if it has."""
    if replica.suspended_gpu and replica.gpu_lease is None:
        return " It is suspended: it holds no GPU until it uses CUDA again."
    return " It holds no GPU: its program has not used CUDA." if replica.gpu_wanted_at is None else ""


def _state_of(workload: Workload, replica: Replica) -> str:
    why = f" ({replica.reason}: {replica.message})" if replica.message else ""
    return f"{workload.name}/{replica.index} is {replica.state}{why}."
