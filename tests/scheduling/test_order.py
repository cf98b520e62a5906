"""Positions in the queue: the effective submission time, and its effect on the order."""

from __future__ import annotations

import pytest

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Project
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.scheduler import LeaseReleased, NodeChanged, PendingAdded, ProjectChanged, Scheduler
from gpupool.scheduling.state.user_order import MAX_KINDS, MAX_LATE_S, MIN_RUNS, TURN_LATE_S, Order, Ordering, PastRuns
from gpupool.scheduling.values import PendingReplica
from gpupool.simulate.clusters import parse_cluster


def past(*runs: tuple[str, str, int, float]) -> PastRuns:
    known = PastRuns()
    for run in runs:
        known.add(*run)
    return known


def test_kind_with_few_runs_uses_user_then_project_then_pool() -> None:
    known = past(*[("a", "ann", 1000, 10.0)] * MIN_RUNS, ("a", "ann", 8000, 500.0))
    assert known.mean_s("a", "ann", 1000) == pytest.approx(10)
    wider = known.mean_s("a", "ann", 8000)
    assert wider is not None
    assert 90 < wider < 110
    assert known.mean_s("a", "bob", 1000) == known.mean_s("b", "eve", 1000) == wider


def test_no_expectation_before_enough_runs_have_ended() -> None:
    assert past(*[("a", "ann", 1000, 10.0)] * (MIN_RUNS - 1)).mean_s("a", "ann", 1000) is None


def test_later_runs_have_more_weight_and_kinds_are_bounded() -> None:
    known = past(*[("a", "ann", 1000, 10.0)] * 50, *[("a", "ann", 1000, 1000.0)] * 50)
    assert (known.mean_s("a", "ann", 1000) or 0) > 700
    for number in range(MAX_KINDS):
        known.add(f"p{number}", "ann", 1000, 1.0)
    assert len(known._kinds) == MAX_KINDS


def test_queue_position_change_is_bounded() -> None:
    long = past(*[("a", "ann", 64_000, 1e9)] * MIN_RUNS)
    assert Ordering(Order.SHORTEST, past=long).late_s("a", "ann", 64_000, 0.0) == MAX_LATE_S
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


def test_short_work_overtakes_long_work_for_a_bounded_time() -> None:
    for order, soon, later in ((Order.SHORTEST, "short", "long"), (Order.FAIR, "long", "long")):
        for at, expected in ((10_500, soon), (15_000, later)):
            scheduler = _scheduler(order)
            for number in range(MIN_RUNS):
                _run(scheduler, f"l{number}", "ann", 1000 * number, 1000)
                _run(scheduler, f"s{number}", "bob", 1000 * number, 1)
            assert _first(scheduler, _waits("long", "ann", 10_000), _waits("short", "bob", at)) == expected
