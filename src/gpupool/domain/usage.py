"""Use of the pool: GPU time by user and project, wait times, and costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.nodes.gpu import model_matches


class GroupBy(StrEnum):
    """The key by which GPU time is grouped."""

    PROJECT = "project"
    USER = "user"
    DEPARTMENT = "department"
    NODE = "node"
    MODEL = "model"
    WORKLOAD = "workload"
    MEMBER = "member"  # a user in a project
    POOL = "pool"  # one sum over everything


class Period(StrEnum):
    """The step of a timeline; days and longer steps follow the calendar of a time zone."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a timeline: their length, and the time zone of their calendar (empty: the pool's)."""

    period: Period
    zone: str = ""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """A filter of GPU time; None: all."""

    project: str | None = None
    user: str | None = None
    node: str | None = None
    model: str | None = None


ALL_USAGE = UsageFilter()


@dataclass(frozen=True, slots=True)
class GpuTime:
    """GPU seconds (thousandths of a GPU times seconds, divided by 1000).

    ``allocated_s``: held under leases. ``requested_s``: requested, from submission to end; None where requests have no
    such key (by node, by model). ``used_s``: computing. ``idle_s``: held by replicas that computed on none of their
    GPUs. Both are None without measurements. ``measured_s``: the allocated time with samples. ``leases``: the number of
    leases in the period.
    """

    allocated_s: float = 0.0
    requested_s: float | None = None
    used_s: float | None = None
    idle_s: float | None = None
    measured_s: float = 0.0
    leases: int = 0

    @property
    def used_part(self) -> float | None:
        """Return the used part of the measured GPU time; above 1 if slices computed in idle time of other slices."""
        return None if self.used_s is None or not self.measured_s else self.used_s / self.measured_s


@dataclass(frozen=True, slots=True)
class UsageLine:
    """GPU time of one project, user, node ... (``key``), in one step of a timeline or in total.

    ``key`` of a workload is its id; ``project`` and ``user`` are set where they are known (by member, workload). ``at``
    and ``until`` are the bounds of the step. ``cost`` is None if a part of it has no rate.
    """

    key: str
    at: float
    until: float
    time: GpuTime
    project: str = ""
    user: str = ""
    name: str = ""
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class LossLine:
    """GPU seconds of work that evictions and failed nodes lost in a period, and the number of such ends."""

    key: str
    evictions: int
    lost_gpu_s: float


@dataclass(frozen=True, slots=True)
class WaitLine:
    """Wait times until the first start, of workloads submitted in a period; None: none of them has started.

    ``started``, ``waiting`` (still queued) and ``never`` (ended without a start) are counts. Seconds; percentiles by
    nearest rank.
    """

    key: str
    at: float
    until: float
    started: int
    waiting: int
    never: int
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    longest_s: float | None = None


@dataclass(frozen=True, slots=True)
class CostRates:
    """The cost of an hour of a whole GPU: by model name (``a100``), and for other models (``default``)."""

    currency: str = ""
    default: float | None = None
    models: tuple[tuple[str, float], ...] = ()

    def __bool__(self) -> bool:
        return self.default is not None or bool(self.models)

    def rate_of(self, model: str) -> float | None:
        """Return the rate of a GPU model: by exact name, else by the longest matching name, else the default."""
        exact = [rate for name, rate in self.models if name == model]
        if exact:
            return exact[0]
        named = [(len(name), rate) for name, rate in self.models if model_matches(name, model)]
        return max(named)[1] if named else self.default

    def cost_of(self, seconds_by_model: Iterable[tuple[str, float]]) -> float | None:
        """Return the cost of GPU seconds; None if a model has no rate."""
        total = 0.0
        for model, seconds in seconds_by_model:
            if not seconds:
                continue
            rate = self.rate_of(model)
            if rate is None:
                return None
            total += seconds / 3600 * rate
        return total
