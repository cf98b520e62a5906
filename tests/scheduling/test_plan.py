"""A dry run predicts what happens, and changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import World, pending, pendings, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.explain.plan import Plan
from gpupool.scheduling.explain.wait_reason import WaitCode
from gpupool.scheduling.scheduler import PendingAdded, Scheduler
from gpupool.scheduling.values import EvictionKind, PendingReplica


def plan(w: World, *texts: str) -> Plan:
    return w.scheduler.plan([arriving(w, text) for text in texts], w.now)


def arriving(w: World, text: str) -> PendingReplica:
    return pending(f"{text} wait=0")


def test_plan_names_place_of_start() -> None:
    found = plan(world("a 1xT4; b 2xA100", "", "r1 red 1 on a:0"), "p1 red 2 model=a100")
    assert [(g.node, [s.gpu_index for s in g.shares]) for g in found.starts] == [("b", [0, 1])]
    assert (found.waiting, found.why, found.displaced) == (0, None, ())


def test_plan_names_wait_reason_and_estimate() -> None:
    found = plan(world("a 1xT4", "", "r1 red 1 on a:0 end=300"), "p1 red 1")
    assert (found.starts, found.waiting) == ((), 1)
    assert found.why is not None
    assert (found.why.code, found.why.position, found.why.estimate_s) == (WaitCode.WAITING_FOR_GPU, 1, 300)


def test_plan_counts_replicas_that_start() -> None:
    found = plan(world("a 2xT4"), "p1 red 1", "p2 red 1", "p3 red 1")
    assert [str(grant.workload) for grant in found.starts] == ["p1", "p2"]
    assert found.waiting == 1


def test_plan_names_victims() -> None:
    w = world("a 2xT4", "", "r1 red 1 on a:0 train; r2 red 1 on a:1 train", "red quota=0; blue quota=2")
    found = plan(w, "p1 blue 2")
    assert [(d.project, d.kind, d.replicas, d.permille) for d in found.displaced] == [
        ("red", EvictionKind.RECLAIM, 2, 2000)
    ]
    assert found.waiting == 1


def test_plan_reports_starts_and_victims_together() -> None:
    w = world("a 2xT4", "", "r1 red 1 on a:0 train", "red quota=0; blue quota=2")
    found = plan(w, "p1 blue 1", "p2 blue 1")
    assert [str(grant.workload) for grant in found.starts] == ["p1"]
    assert [(d.project, d.replicas) for d in found.displaced] == [("red", 1)]


def test_gang_is_planned_as_a_whole() -> None:
    w = world("a 2xT4; b 2xT4", "", "r1 red 1 on a:0 end=60")
    three, four = (pendings(f"p1 red 1 gang={n} wait=0") for n in (3, 4))
    assert (len(w.scheduler.plan(three, w.now).starts), w.scheduler.plan(three, w.now).waiting) == (3, 0)
    found = w.scheduler.plan(four, w.now)
    assert (found.starts, found.waiting) == ((), 4)
    assert found.why is not None
    assert (found.why.code, found.why.estimate_s) == (WaitCode.GANG, 60)


def test_plan_of_waiting_workload_is_refused() -> None:
    w = world("a 1xT4", "p1 red 1")
    with pytest.raises(ValueError, match="waits"):
        plan(w, "p1 red 1")


# --- no change of state

NAMES = st.sampled_from(["red", "blue", "green"])
REQUESTS = st.sampled_from(["1", "2", "4", "0.5", "0.25", "2x0.5", "8000M", "1 model=t4"])
EXTRAS = st.sampled_from(
    ["", "train", "train prio=3", "max=60", "train max=500", "prio=2", "cpus=4", "wait=900", "gang=2", "train gang=2-3"]
)
PENDING = st.lists(st.tuples(NAMES, REQUESTS, EXTRAS), max_size=8)
RUNNING = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(["1", "0.5"]),
        st.integers(0, 5),
        st.sampled_from(["", "train", "train end=90", "end=40"]),
    ),
    max_size=6,
)


def made_of(waiting: list[tuple[str, str, str]], active: list[tuple[str, str, int, str]]) -> World:
    taken: dict[int, float] = {}
    lines = []
    for number, (project, request, slot, extra) in enumerate(active):
        if taken.get(slot, 0) + float(request) <= 1:
            taken[slot] = taken.get(slot, 0) + float(request)
            lines.append(f"r{number} {project} {request} on {'ab'[slot // 4]}:{slot % 4} {extra}")
    queue = [f"q{number} {' '.join(words)}" for number, words in enumerate(waiting)]
    return world(
        "a 4xT4; b 2xA100",
        "; ".join(queue),
        "; ".join(lines),
        "red quota=1; blue quota=2; green quota=0",
        "ann limit=5",
    )


def everything(scheduler: Scheduler) -> dict[str, Any]:
    """Return the whole state of a scheduler, except caches of derivable values."""
    demand, cluster = scheduler.demand, scheduler.cluster
    arrays = {
        f"{type(room).__name__}.{name}": value.tolist()
        for room in (cluster, demand.ledger)
        for name, value in vars(room).items()
        if isinstance(value, np.ndarray) and name != "touched"
    }
    queues = {
        project: {
            shape: {key: list(group.entries) for key, group in groups.items()} for shape, groups in shapes.items()
        }
        for project, shapes in demand.project_queues.items()
    }
    caches = {"project_queues", "holders", "ordering", "ledger", "shapes", "accounts", "_heads", "_entries", "_log"}
    caches |= {
        "user_division",
        "_least_needs",
        "_first_groups",
        "_starved_changed",
    }  # the first is compared with the ledger before each use
    needs = demand.least_needs()
    table, every = demand.first_groups(), np.arange(len(demand.first_groups().project))
    firsts = {
        shape: sorted(
            zip(table.project[at].tolist(), table.size[at].tolist(), table.queued_at[at].tolist(), strict=True)
        )
        for shape in demand.shape_projects
        if len(at := np.flatnonzero(table.of_shapes({shape}, every)))
    }
    rest = {
        name: copy.deepcopy(value, {id(s): s for s in demand.shape_projects})
        for name, value in vars(demand).items()
        if name not in caches
    }
    rest["_maturing"], rest["_sleeping"] = sorted(rest["_maturing"]), sorted(rest["_sleeping"])
    return arrays | {
        "project_queues": queues,
        "needs": {pair: need for pair, need in enumerate(needs.tolist()) if need},
        "firsts": firsts,
        "rest": rest,
        "holds": scheduler.holds,
        "shapes": set(demand.shapes._known),
        "log": len(cluster.log),
        "claims": set(cluster.claims),
        "users": list(demand.ledger.users),
    }


@settings(max_examples=60, deadline=None)
@given(PENDING, RUNNING, st.tuples(NAMES, REQUESTS, EXTRAS), st.booleans(), st.sampled_from([2, 10_000]))
def test_plan_changes_nothing_and_predicts_the_result(
    waiting: list[tuple[str, str, str]],
    active: list[tuple[str, str, int, str]],
    asked: tuple[str, str, str],
    rested: bool,
    looks: int,
) -> None:
    w = made_of(waiting, active)
    w.scheduler.settings = replace(w.scheduler.settings, max_looks=looks)
    if rested:
        w.scheduler.decide(w.now)
    w.scheduler.demand.wake(w.now)
    w.scheduler.demand.mature(w.now - w.scheduler.settings.reserve_after_s)  # changes that only time causes
    new = pendings(f"new {' '.join(asked)}")
    before, learnt = everything(w.scheduler), w.scheduler.placer.scorer.work.version
    said = w.scheduler.plan(new, w.now)
    assert everything(w.scheduler) == before
    assert w.scheduler.plan(new, w.now) == said
    w.scheduler.apply_all(PendingAdded(one, w.now) for one in new)
    cycles = [w.scheduler.decide(w.now)]
    while cycles[-1].more:
        cycles.append(w.scheduler.decide(w.now))
    granted = {g for cycle in cycles for g in cycle.grants if g.workload == WorkloadId("new")}
    if w.scheduler.placer.scorer.work.version == learnt:
        assert granted == set(said.starts)
    assert {g.key for g in granted} == {g.key for g in said.starts}  # the place may change because of learned requests
    evicted = [e for cycle in cycles for e in cycle.evictions if e.for_workload == WorkloadId("new")]
    assert len(evicted) == sum(d.replicas for d in said.displaced)
