"""Places in the queue: who counts as submitted when, and what that does to the order."""

from __future__ import annotations

import pytest

from gpupool.domain.access import Project
from gpupool.domain.gpu import GpuRequest
from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.order import MOST_LATE_S, TURN_LATE_S, Order, Ordering
from gpupool.scheduling.pastruns import FEW, MOST_KINDS, PastRuns
from gpupool.scheduling.scheduler import LeaseReleased, NodeChanged, PendingAdded, ProjectChanged, Scheduler
from gpupool.scheduling.values import PendingReplica, Settings
from gpupool.simulate.clusters import parse_cluster


def past(*runs: tuple[str, str, int, float]) -> PastRuns:
    known = PastRuns()
    for run in runs:
        known.add(*run)
    return known


def test_a_kind_with_few_runs_is_judged_by_its_user_then_the_project_then_the_pool() -> None:
    known = past(*[("a", "ann", 1000, 10.0)] * FEW, ("a", "ann", 8000, 500.0))
    assert known.mean_s("a", "ann", 1000) == pytest.approx(10)
    wider = known.mean_s("a", "ann", 8000)
    assert wider is not None
    assert 90 < wider < 110
    assert known.mean_s("a", "bob", 1000) == known.mean_s("b", "eve", 1000) == wider


def test_nothing_is_expected_before_enough_has_ended() -> None:
    assert past(*[("a", "ann", 1000, 10.0)] * (FEW - 1)).mean_s("a", "ann", 1000) is None


def test_later_runs_count_more_and_few_kinds_are_remembered() -> None:
    known = past(*[("a", "ann", 1000, 10.0)] * 50, *[("a", "ann", 1000, 1000.0)] * 50)
    assert (known.mean_s("a", "ann", 1000) or 0) > 700
    for number in range(MOST_KINDS):
        known.add(f"p{number}", "ann", 1000, 1.0)
    assert len(known._kinds) == MOST_KINDS


def test_places_are_bounded() -> None:
    long = past(*[("a", "ann", 64_000, 1e9)] * FEW)
    assert Ordering(Order.SHORTEST, past=long).late_s("a", "ann", 64_000, 0.0) == MOST_LATE_S
    assert Ordering(Order.FAIR, past=long).late_s("a", "ann", 64_000, 1e9) == 0
    turns = Ordering(Order.FAIR, 7200.0)
    assert [turns.late_s("a", "ann", 1000, served) for served in (7199, 7200, 1e6)] == [0, TURN_LATE_S, 1e6]


def _scheduler(order: Order) -> Scheduler:
    scheduler = Scheduler(Settings(order=order))
    scheduler.apply_all(NodeChanged(node) for node in parse_cluster("1x1xT4"))
    scheduler.apply(ProjectChanged(Project("p")))
    return scheduler


def _run(scheduler: Scheduler, name: str, user: str, now: float, lasts: float) -> None:
    scheduler.apply(PendingAdded(_waits(name, user, now), now))
    assert [grant.workload for grant in scheduler.decide(now).grants] == [name]
    scheduler.apply(LeaseReleased((WorkloadId(name), 0), lasts))


def _waits(name: str, user: str, at: float) -> PendingReplica:
    return PendingReplica(WorkloadId(name), 0, "p", user, GpuRequest(1), at, preemptible=True)


def _first(scheduler: Scheduler, *waiting: PendingReplica) -> str:
    for replica in waiting:
        scheduler.apply(PendingAdded(replica, 20_000))
    (grant,) = scheduler.decide(20_000).grants
    return grant.workload


def test_short_work_overtakes_what_is_expected_to_be_long_but_not_what_has_waited_longer_than_that() -> None:
    for order, soon, later in ((Order.SHORTEST, "short", "long"), (Order.FAIR, "long", "long")):
        for at, expected in ((10_500, soon), (15_000, later)):
            scheduler = _scheduler(order)
            for number in range(FEW):
                _run(scheduler, f"l{number}", "ann", 1000 * number, 1000)
                _run(scheduler, f"s{number}", "bob", 1000 * number, 1)
            assert _first(scheduler, _waits("long", "ann", 10_000), _waits("short", "bob", at)) == expected
