"""GPU time, waiting times, costs and reports."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View
from gpupool.domain.usage import GroupBy, Period


class UsageRowView(View):
    """GPU seconds held by one user in one project; ``leases`` counts the leases of the period."""

    project: str
    user: str
    gpu_seconds: float
    leases: int


class UsageLineView(View):
    """GPU seconds of one project, user, node and so on (``key``; empty: of none, or all).

    ``allocated_s``: held. ``requested_s``: requested, from submission to end; null by node and model. ``used_s``:
    computing, and ``idle_s``: held and not computing, as measured; null without measurements. ``measured_s``: the part
    of ``allocated_s`` with measurements. ``leases`` counts grants in the period. ``cost`` is null if a rate is missing.
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
    """GPU time between two times; ``lines`` always, ``rows`` only for the default grouping."""

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

    ``started`` counts those that have started, ``waiting`` those that still wait, ``never`` those that ended without a
    start.
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
    """GPU seconds between two times: of all GPUs in the pool, and of available ones.

    GPUs that had failed, or whose node was cordoned or down, are not available.
    """

    since: float
    until: float
    gpu_seconds: float
    available_gpu_seconds: float


class WaitsView(View):
    """Waiting times of workloads that were submitted between two times."""

    since: float
    until: float
    by: GroupBy
    step: Period | None
    zone: str
    lines: list[WaitLineView]


class LossLineView(View):
    """GPU seconds after the last checkpoint that evictions and failed nodes lost, and the number of losses."""

    key: str
    evictions: int
    lost_gpu_s: float


class ReportSuggestionView(View):
    """A workload of a report for which a smaller request would do."""

    workload: str
    name: str
    user: str
    sentence: str


class ReportView(View):
    """Usage by user and project, its course over time, waiting times and lost work, all up to one moment.

    In ``timeline``, users and projects with less usage are combined under the key ``others``. A report by workload has
    ``suggestions`` for the largest ones.
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
    suggestions: list[ReportSuggestionView] = Field(default_factory=list)


Rate = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
ModelWord = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f]*$")]


class RatesView(View):
    """Cost of an hour of a whole GPU: by model, and of any other model; null: no rate."""

    currency: str
    default: float | None
    models: dict[str, float]


class RatesBody(Body):
    """Changes of the rates; omitted fields stay. Null for a model removes its rate."""

    currency: Annotated[str, Field(max_length=8, pattern=r"^[^\x00-\x20\x7f]*$")] | None = None
    default: Rate | None = None
    models: Annotated[dict[ModelWord, Rate | None], Field(max_length=100)] = Field(default_factory=dict)
