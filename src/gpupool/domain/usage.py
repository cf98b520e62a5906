"""What was used of the pool, by whom, how long it was waited for, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.gpu import names_model


class By(StrEnum):
    """What GPU time is told apart by."""

    PROJECT = "project"
    USER = "user"
    DEPARTMENT = "department"
    NODE = "node"
    MODEL = "model"
    WORKLOAD = "workload"
    MEMBER = "member"  # a user in a project
    POOL = "pool"  # not at all: one sum


class Period(StrEnum):
    """The steps of a timeline; days and longer are those of a time zone's calendar."""

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
class Scope:
    """Which GPU time is meant; None: all."""

    project: str | None = None
    user: str | None = None
    node: str | None = None
    model: str | None = None


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class GpuTime:
    """GPU seconds (thousandths of a GPU times seconds, divided by 1000).

    ``allocated_s``: held under leases. ``requested_s``: asked for, from submission to end; None where what was asked
    for cannot be told apart like this (by node, by model). ``used_s``: computing, and ``idle_s``: held by replicas that
    computed on none of their GPUs; both None where nothing was measured. ``measured_s``: the part of what was allocated
    while somebody looked. ``leases`` were held at some time of it.
    """

    allocated_s: float = 0.0
    requested_s: float | None = None
    used_s: float | None = None
    idle_s: float | None = None
    measured_s: float = 0.0
    leases: int = 0

    @property
    def used_part(self) -> float | None:
        """Of the GPU time that was measured, the part used; above 1 where slices computed while neighbours did not."""
        return None if self.used_s is None or not self.measured_s else self.used_s / self.measured_s


@dataclass(frozen=True, slots=True)
class UsageLine:
    """GPU time of one project, user, node ... (``key``), in one step of a timeline or altogether.

    ``key`` of a workload is its id; ``project`` and ``user`` are given where they are known (by member, workload).
    ``at`` and ``until`` are the bounds of the step. ``cost`` is None where no rate covers all of it.
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
class WaitLine:
    """How long workloads submitted in a time waited for their first start; None: none of them has started.

    ``started`` did, ``waiting`` have not yet, ``never`` ended without. Seconds; percentiles by nearest rank.
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
    """What an hour of a whole GPU costs: by model as somebody would name it (``a100``), and any other (``default``)."""

    currency: str = ""
    default: float | None = None
    models: tuple[tuple[str, float], ...] = ()

    def __bool__(self) -> bool:
        return self.default is not None or bool(self.models)

    def rate_of(self, model: str) -> float | None:
        """The rate of a GPU model: that of its very name, else of the longest name that means it, else the default."""
        exact = [rate for name, rate in self.models if name == model]
        if exact:
            return exact[0]
        named = [(len(name), rate) for name, rate in self.models if names_model(name, model)]
        return max(named)[1] if named else self.default

    def cost_of(self, seconds_by_model: Iterable[tuple[str, float]]) -> float | None:
        """What GPU seconds cost; None where a model has no rate."""
        total = 0.0
        for model, seconds in seconds_by_model:
            if not seconds:
                continue
            rate = self.rate_of(model)
            if rate is None:
                return None
            total += seconds / 3600 * rate
        return total
