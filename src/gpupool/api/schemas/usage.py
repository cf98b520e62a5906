"""GPU time, waiting times, costs and reports of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View
from gpupool.domain.usage import GroupBy, Period


class UsageRowView(View):
    """GPU seconds held by one user in one project; ``leases`` were held at some time of it."""

    project: str
    user: str
    gpu_seconds: float
    leases: int


class UsageLineView(View):
    """GPU seconds of one project, user, node ... (``key``; empty: of none, or all).

    ``allocated_s``: held. ``requested_s``: asked for, from submission to end; null by node and model. ``used_s``:
    computing, and ``idle_s``: held and not computing, as measured; null where nothing was measured. ``measured_s``: the
    part of ``allocated_s`` while it was measured. ``leases`` were granted in it. ``cost`` is null where no rate
    covers all of it.
    """

    key: str
    name: str = ""
    project: str = ""
    user: str = ""
    at: float
    until: float
    allocated_s: float
    requested_s: float | None
    used_s: float | None
    idle_s: float | None
    measured_s: float
    leases: int
    cost: float | None


class UsageView(View):
    """GPU time between two times; ``rows`` where nothing else was asked for, ``lines`` always."""

    since: float
    until: float
    rows: list[UsageRowView]
    by: GroupBy = GroupBy.MEMBER
    step: Period | None = None
    zone: str = "UTC"
    currency: str = ""
    lines: list[UsageLineView] = Field(default_factory=list)


class WaitLineView(View):
    """Waiting time until the first start, in seconds, of workloads submitted in a period; null if none has started.

    ``started`` did, ``waiting`` have not yet, ``never`` ended without.
    """

    key: str
    at: float
    until: float
    started: int
    waiting: int
    never: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    longest_s: float | None


class CapacityView(View):
    """GPU seconds between two times: of all GPUs in the pool, and of those that could be handed out.

    GPUs that had failed, or whose node was cordoned or down, are not available.
    """

    since: float
    until: float
    gpu_seconds: float
    available_gpu_seconds: float


class WaitsView(View):
    """Waiting times of what was submitted between two times."""

    since: float
    until: float
    by: GroupBy
    step: Period | None
    zone: str
    lines: list[WaitLineView]


class LossLineView(View):
    """GPU seconds of work after the last checkpoint that evictions and failed nodes lost, and how often."""

    key: str
    evictions: int
    lost_gpu_s: float


class ReportView(View):
    """Usage by user and project, its course over time, waiting times and lost work, all up to one moment.

    In ``timeline`` those who used less are one line, of the key ``others``.
    """

    since: float
    until: float
    by: GroupBy
    step: Period
    zone: str
    made_at: float
    currency: str
    lines: list[UsageLineView]
    total: UsageLineView
    timeline: list[UsageLineView]
    others: str
    waits: list[WaitLineView]
    waits_total: WaitLineView | None
    losses: list[LossLineView]
    lost_gpu_s: float


Rate = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
ModelWord = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f]*$")]


class RatesView(View):
    """Cost of an hour of a whole GPU: by model, and of any other model; null: no rate."""

    currency: str
    default: float | None
    models: dict[str, float]


class RatesBody(Body):
    """Changes of the rates; fields left out stay. Null for a model removes its rate."""

    currency: Annotated[str, Field(max_length=8, pattern=r"^[^\x00-\x20\x7f]*$")] | None = None
    default: Rate | None = None
    models: Annotated[dict[ModelWord, Rate | None], Field(max_length=100)] = Field(default_factory=dict)
