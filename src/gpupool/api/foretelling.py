"""What the scheduler says of the future, as the API answers it."""

from __future__ import annotations

from gpupool.api import mapping
from gpupool.api import schemas as view
from gpupool.domain.workload import WorkloadState
from gpupool.scheduling.explain import Explanation
from gpupool.scheduling.values import Grant
from gpupool.services.planning import Foretold


def why_view(state: WorkloadState, why: Explanation) -> view.WhyView:
    """Why a workload stands where it stands."""
    return view.WhyView(
        state=state,
        code=why.code.value,
        sentence=why.sentence,
        position=why.position or None,
        ahead_in_project=why.ahead_in_project,
        ahead_total=why.ahead_total,
        numbers=dict(why.numbers),
        would_help=list(why.would_help),
        estimate_s=why.estimate_s,
        estimate_basis=why.estimate_basis,
        estimate_low_s=why.estimate_low_s,
        estimate_high_s=why.estimate_high_s,
    )


def plan_view(found: Foretold) -> view.PlanView:
    """What a submission would come to."""
    workload, plan = found.workload, found.plan
    return view.PlanView(
        name=workload.name,
        kind=workload.kind,
        project=workload.project,
        preemptible=workload.preemptible,
        gpus=mapping.gpu_request_view(workload.gpus, workload.compute),
        max_time_s=workload.limits.max_time_s,
        completions=workload.completions,
        asked=found.asked,
        starts_now=not plan.waiting,
        starts=[_start_view(grant) for grant in plan.starts],
        why=None if plan.why is None else why_view(WorkloadState.QUEUED, plan.why),
        displaced=[
            view.DisplacedView(project=d.project, kind=d.kind, replicas=d.replicas, permille=d.permille)
            for d in plan.displaced
        ],
    )


def _start_view(grant: Grant) -> view.StartView:
    gpus = [mapping.share_view(share) for share in grant.shares]
    return view.StartView(index=grant.index, node=grant.node, gpus=gpus, sharing=grant.sharing)
