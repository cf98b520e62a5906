"""Views of dry runs and estimates."""

from __future__ import annotations

from gpupool.api.schemas.work.plans import DisplacedView, PlanView, StartView
from gpupool.api.schemas.work.workloads import WhyView
from gpupool.api.views import mapping
from gpupool.domain.work.workload import WorkloadState
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.scheduling.values import Grant
from gpupool.services.workloads.planning import PlannedRequest


def why_view(state: WorkloadState, why: Explanation) -> WhyView:
    """Return why a workload is in its state."""
    return WhyView.of(why, state=state, code=why.code.value, position=why.position or None, numbers=dict(why.numbers))


def plan_view(found: PlannedRequest) -> PlanView:
    """Return the view of a dry run."""
    workload, plan = found.workload, found.plan
    return PlanView.of(
        workload,
        gpus=mapping.gpu_request_view(workload.gpus, workload.compute),
        max_time_s=workload.limits.max_time_s,
        asked=found.asked,
        starts_now=not plan.waiting,
        starts=[_start_view(grant) for grant in plan.starts],
        why=None if plan.why is None else why_view(WorkloadState.QUEUED, plan.why),
        displaced=[DisplacedView.of(d) for d in plan.displaced],
    )


def _start_view(grant: Grant) -> StartView:
    return StartView.of(grant, gpus=[mapping.share_view(share) for share in grant.shares])
