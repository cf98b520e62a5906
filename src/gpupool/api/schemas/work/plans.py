"""Dry runs of submissions."""

from __future__ import annotations

from gpupool.api.schemas.base import View
from gpupool.api.schemas.work.workloads import GpuRequestView, ShareView, WhyView
from gpupool.domain.work.workload import WorkloadKind
from gpupool.scheduling.values import EvictionKind


class StartView(View):
    """Placement of a replica that would start at once."""

    index: int
    node: str
    gpus: list[ShareView]
    sharing: str


class DisplacedView(View):
    """Running replicas of one project that would be evicted for one reason; ``permille`` is their allocation."""

    project: str
    kind: EvictionKind
    replicas: int
    permille: int


class PlanView(View):
    """A dry run of a submission: nothing is stored.

    Of ``completions`` replicas, ``asked`` would be queued at once, and those in ``starts`` would start at once: all of
    them if ``starts_now``. ``why`` explains the first one that would wait, as if it were queued. ``gpus``,
    ``preemptible`` and ``max_time_s`` are the request after the project's rules were applied.
    """

    name: str
    kind: WorkloadKind
    project: str
    preemptible: bool
    gpus: GpuRequestView
    max_time_s: float | None
    completions: int
    asked: int
    starts_now: bool
    starts: list[StartView]
    why: WhyView | None
    displaced: list[DisplacedView]
