"""Preemptible work is moved when that lets another workload start, and never otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from scheduling_world import NOW, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.eviction.consolidation import MAX_SHAPES, MIN_INTERVAL_S, RETRY_S
from gpupool.scheduling.scheduler import LeaseReleased, LeaseTaken, PendingAdded, PendingRemoved
from gpupool.scheduling.values import EvictionKind, HoldKind


@dataclass(frozen=True)
class Case:
    name: str
    nodes: str
    running: str
    pending: str
    expect: str  # places of running replicas at the end
    moved: str = ""
    projects: str = ""


CASES = [
    Case(
        "two halves make a whole",
        "a 2xT4",
        "r1 red 0.5 on a:0 train; r2 red 0.5 on a:1 train",
        "p1 red 1 wait=99",
        "p1@a r1@a r2@a",
        "r1",
    ),
    Case(
        "across nodes",
        "a 1xT4; b 1xT4",
        "r1 red 0.4 on a:0 train; r2 red 0.5 on b:0 train",
        "p1 red 1 wait=99",
        "p1@a r1@b r2@b",
        "r1",
    ),
    Case(
        "the smaller is moved",
        "a 1xT4; b 1xT4",
        "r1 red 0.5 on a:0 train; r2 red 0.3 on b:0 train",
        "p1 red 1 wait=99",
        "p1@b r1@a r2@a",
        "r2",
    ),
    Case(
        "a node is emptied for a large one",
        "a 4xT4; b 4xT4",
        "r1 red 1 on a:0 train; r2 red 2 on b:01 train",
        "p1 red 4 wait=99",
        "p1@a r1@b r2@b",
        "r1",
    ),
    Case(
        "not before it has waited",
        "a 2xT4",
        "r1 red 0.5 on a:0 train; r2 red 0.5 on a:1 train",
        "p1 red 1 wait=9",
        "p1@a r1@a r2@a",
        "r1",
    ),
    Case("protected work stays", "a 2xT4", "r1 red 0.5 on a:0; r2 red 0.5 on a:1", "p1 red 1 wait=99", "r1@a r2@a"),
    Case(
        "the one that may move is moved",
        "a 2xT4",
        "r1 red 0.5 on a:0; r2 red 0.5 on a:1 train",
        "p1 red 1 wait=99",
        "p1@a r1@a r2@a",
        "r2",
    ),
    Case(
        "no new place, no move",
        "a 2xT4",
        "r1 red 0.6 on a:0 train; r2 red 0.6 on a:1 train",
        "p1 red 1 wait=99",
        "r1@a r2@a",
    ),
    Case(
        "not more moved than starts",
        "a 2xT4",
        "r1 red 0.8 on a:0 train; r2 red 0.1 on a:1; r3 red 0.1 on a:1",
        "p1 red 0.3 wait=99",
        "p1@a r1@a r2@a r3@a",
    ),
    Case(
        "no more moves than needed",
        "a 3xT4",
        "r1 red 0.5 on a:0 train; r2 red 0.2 on a:1 train; r3 red 0.2 on a:2 train",
        "p1 red 1 wait=99; p2 red 1 wait=98",
        "p1@a p2@a r1@a r2@a r3@a",
        "r1 r2",  # the free half next to r1 is usable for others
    ),
    Case(
        "a model has to fit the moved too",
        "a 1xT4; b 1xA100",
        "r1 red 0.5 on a:0 train model=t4; r2 red 0.4 on b:0 train model=a100",
        "p1 red 1 wait=99",
        "r1@a r2@b",
    ),
    Case(
        "beyond the quota nobody is moved",
        "a 2xT4",
        "r1 red 0.5 on a:0 train; r2 red 0.5 on a:1 train",
        "p1 red 1 wait=99",
        "r1@a r2@a",
        projects="red quota=0.5",
    ),
    Case(
        "nobody is moved for less important work",
        "a 2xT4",
        "r1 red 0.5 on a:0 train prio=1; r2 red 0.5 on a:1 train prio=1",
        "p1 red 1 wait=99",
        "r1@a r2@a",
    ),
    Case(
        "who has just started stays",
        "a 2xT4",
        "r1 red 0.5 on a:0 train age=5; r2 red 0.5 on a:1 train age=5",
        "p1 red 1 wait=99",
        "r1@a r2@a",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_consolidation_moves_expected_replicas(case: Case) -> None:
    w = world(case.nodes, case.pending, case.running, case.projects)
    for _ in range(100 if case.name == "not before it has waited" else 1):
        w.step()
        w.now += 1
    if case.name != "who has just started stays":
        w.settle()
    assert w.places() == case.expect
    assert " ".join(sorted(set(w.evicted))) == case.moved
    assert len(w.evicted) == len(set(w.evicted))  # no replica is moved twice


def test_moved_replicas_have_their_new_place_held() -> None:
    w = world("a 1xT4; b 1xT4", "p1 red 1 wait=99", "r1 red 0.4 on a:0 train; r2 red 0.5 on b:0 train")
    decisions = w.scheduler.decide(NOW)
    assert [(e.workload, e.kind) for e in decisions.evictions] == [("r1", EvictionKind.CONSOLIDATE)]
    assert "restarts on b" in decisions.evictions[0].reason
    assert {(h.workload, h.kind, h.node) for h in decisions.holds} == {
        ("p1", HoldKind.NOMINATED, "a"),
        ("r1", HoldKind.MOVED, "b"),
    }
    w.scheduler.apply(PendingAdded(replace(w.waiting[WorkloadId("p1"), 0], workload=WorkloadId("p2")), NOW))
    w.scheduler.apply(PendingRemoved((WorkloadId("p2"), 0)))
    taker = replace(w.waiting[WorkloadId("p1"), 0], workload=WorkloadId("p3"))
    w.scheduler.apply(PendingAdded(replace(taker, request=replace(taker.request, permille=500)), NOW))
    later = w.scheduler.decide(NOW + 1)
    assert not later.grants  # half of b is free, and held
    assert not later.evictions
    w.leave((WorkloadId("r1"), 0))
    w.evicted.append("r1")
    assert {g.workload: g.node for g in w.scheduler.decide(NOW + 2).grants}["p1"] == "a"


def test_move_of_stopped_replica_holds_nothing() -> None:
    w = world("a 1xT4; b 1xT4", "p1 red 1 wait=99", "r1 red 0.4 on a:0 train; r2 red 0.5 on b:0 train")
    assert w.scheduler.decide(NOW).evictions
    w.scheduler.apply(LeaseReleased((WorkloadId("r1"), 0)))  # and it stays away
    decisions = w.scheduler.decide(NOW + 1)
    assert [grant.workload for grant in decisions.grants] == ["p1"]
    assert not decisions.holds


def test_gangs_and_work_of_unknown_request_are_not_moved() -> None:
    w = world("a 2xT4", "p1 red 1 wait=99", "r1 red 0.5 on a:0 train; r2 red 0.5 on a:1 train")
    for key, running in list(w.running.items()):
        w.scheduler.apply(LeaseTaken(replace(running, request=None)))
        assert key in w.scheduler.demand.running
    assert not w.scheduler.decide(NOW).evictions


def test_disabled_consolidation_moves_nothing() -> None:
    running = "r1 red 0.5 on a:0 train; r2 red 0.5 on a:1 train"
    w = world("a 2xT4", "p1 red 1 wait=99", running, max_consolidations=0)
    assert not w.scheduler.decide(NOW).evictions


def test_search_interval_grows_while_nothing_changes() -> None:
    running = "r1 red 0.6 on a:0 train; r2 red 0.6 on b:0 train; r3 red 0.6 on c:0 train"
    w = world("a 1xT4; b 1xT4; c 1xT4", "p1 red 1 wait=99", running)
    begun, looks = w.now, 0
    while w.now < begun + 3600 and (wake_at := w.scheduler.decide(w.now).wake_at) is not None:
        w.now, looks = wake_at, looks + 1
    assert 3 < looks < 20
    w.scheduler.apply(PendingAdded(replace(w.scheduler.demand.pending[WorkloadId("p1"), 0], index=1), w.now))
    w.scheduler.decide(w.now)
    assert w.scheduler.demand.moves_pause_s <= 20, "a replica was added: soon"


def test_bounded_search_reaches_the_last_of_many_shapes() -> None:
    running = "r1 red 0.5 on a:0 train; r2 red 0.5 on a:1 train"
    too_large = "; ".join(f"p{at} red 1 cpus={100 + at} wait={999 - at}" for at in range(5 * MAX_SHAPES))
    w = world("a 2xT4 cpus=8", f"{too_large}; last red 1 wait=99", running)
    begun = w.now
    while not (evictions := w.scheduler.decide(w.now).evictions):
        w.now += MIN_INTERVAL_S
        assert w.now < begun + RETRY_S + 60
    assert {eviction.for_workload for eviction in evictions} == {WorkloadId("last")}
