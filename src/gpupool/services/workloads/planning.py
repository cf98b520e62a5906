"""Dry runs: where and when a request would start if it were submitted now. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor
from gpupool.domain.work.workload import Workload, WorkloadKind
from gpupool.scheduling.explain.plan import Plan
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.scheduling.values import BlockReason, PendingReplica
from gpupool.services.control.engine import Engine
from gpupool.services.control.scheduler_requests import pending
from gpupool.services.explain.wait_reason import WaitReasonService
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.workloads.submission import Prepared, SubmissionService
from gpupool.specs.request import WorkloadRequest

MAX_PLANNED_REPLICAS = 1_000


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A plan for the first ``asked`` replicas of ``workload``, which is as a submission would write it."""

    workload: Workload
    asked: int
    plan: Plan


class PlanService:
    """Simulates the submission of a request in the scheduler."""

    def __init__(
        self, engine: Engine, identities: IdentityCache, submission: SubmissionService, waiting: WaitReasonService
    ) -> None:
        self._engine = engine
        self._identities = identities
        self._submission = submission
        self._waiting = waiting

    async def plan(self, actor: Actor, request: WorkloadRequest) -> PlannedRequest:
        """Plan a request; raises the same ``GpupoolError`` as its submission."""
        prepared = await self._submission.prepare(actor, request)
        workload = prepared.workload
        if workload.kind is WorkloadKind.EXEC:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "A program on the GPUs of another workload never waits, so it cannot be planned.",
                "Request GPUs instead.",
            )
        await self._submission.note_dependencies(workload)
        background = await self._waiting.estimates.background(workload)
        feed, now = self._engine.feed, self._engine.ports.clock.now()
        replicas, held = self._replicas(prepared), feed.held(workload)
        if held is not None:
            return PlannedRequest(workload, len(replicas), Plan((), len(replicas), self._held(workload, held)))
        plan = await self._waiting.worker.run(partial(feed.scheduler.plan, replicas, now, background))
        return PlannedRequest(workload, len(replicas), plan)

    def _held(self, workload: Workload, held: BlockReason) -> Explanation:
        if not self._engine.feed.dependencies.impossible(workload):
            return self._waiting.held(workload, held)
        sentence = "a workload that it depends on did not succeed, so it would never start."
        return Explanation(WaitCode.DEPENDENCY, sentence, estimate_basis="it would never start")

    def _replicas(self, prepared: Prepared) -> list[PendingReplica]:
        """Return the replicas that would be in the queue at once."""
        workload = prepared.workload
        rules = self._identities.project(workload.project).rules
        most = MAX_PLANNED_REPLICAS if workload.gang is None else workload.gang.most
        return [pending(workload, row, rules) for row in prepared.replicas[: min(workload.parallelism, most)]]
