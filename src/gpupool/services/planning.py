"""Dry runs: where and when a request would start if it were submitted now. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import Workload, WorkloadKind
from gpupool.scheduling.explain import Explanation, WaitCode
from gpupool.scheduling.plan import Plan
from gpupool.scheduling.values import Held, PendingReplica
from gpupool.services.engine import Engine
from gpupool.services.offers import pending
from gpupool.services.register import Register
from gpupool.services.submission import Prepared, SubmissionService
from gpupool.services.waiting import WhyService
from gpupool.specs.request import WorkloadRequest

MOST_PLANNED = 1_000  # replicas that one plan looks at


@dataclass(frozen=True, slots=True)
class Foretold:
    """A plan for a request: ``workload`` as it would have been written; of its replicas the first ``asked``."""

    workload: Workload
    asked: int
    plan: Plan


class PlanService:
    """Puts a request before the scheduler as a submission would, and takes it back."""

    def __init__(self, engine: Engine, register: Register, submission: SubmissionService, waiting: WhyService) -> None:
        self._engine = engine
        self._register = register
        self._submission = submission
        self._waiting = waiting

    async def plan(self, actor: Actor, request: WorkloadRequest) -> Foretold:
        """What would become of a request. Refused as a submission of it would be (``GpupoolError``)."""
        prepared = await self._submission.prepare(actor, request)
        workload = prepared.workload
        if workload.kind is WorkloadKind.EXEC:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "A program on another workload's GPUs waits for nothing.",
                "Ask for GPUs, to hear when there are some.",
            )
        await self._submission.note_dependencies(workload)
        background = await self._waiting.foresight.background(workload)
        demand, now = self._engine.demand, self._engine.ports.clock.now()
        replicas, held = self._replicas(prepared), demand.held(workload)
        if held is not None:
            return Foretold(workload, len(replicas), Plan((), len(replicas), self._held(workload, held)))
        plan = await self._waiting.aside.do(partial(demand.scheduler.plan, replicas, now, background))
        return Foretold(workload, len(replicas), plan)

    def _held(self, workload: Workload, held: Held) -> Explanation:
        unmet = self._engine.demand.dependencies.unmet
        if workload.id not in unmet:
            return self._waiting.held(workload, held)
        unmet.discard(workload.id)
        sentence = "what it has to wait for did not succeed: it would never start."
        return Explanation(WaitCode.DEPENDENCY, sentence, estimate_basis="it would never start")

    def _replicas(self, prepared: Prepared) -> list[PendingReplica]:
        """Those that would be in the queue at once."""
        workload = prepared.workload
        rules = self._register.project(workload.project).rules
        most = MOST_PLANNED if workload.gang is None else workload.gang.most
        return [pending(workload, row, rules) for row in prepared.replicas[: min(workload.parallelism, most)]]
