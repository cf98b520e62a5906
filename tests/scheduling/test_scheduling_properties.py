"""Invariants of the scheduler under generated events."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_world import NOW

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node, NodeReport
from gpupool.domain.people.access import Project
from gpupool.scheduling.fairness.fair_share import Shares
from gpupool.scheduling.fairness.reclaim_rule import ROUNDING
from gpupool.scheduling.placement.replica import Placer
from gpupool.scheduling.scheduler import (
    LeaseReleased,
    NodeChanged,
    PendingAdded,
    PendingRemoved,
    ProjectChanged,
    Scheduler,
    decide,
)
from gpupool.scheduling.state.cluster import ClusterState, Shapes
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica, ReplicaKey

MODELS = {"T4": 16_000, "A100": 80_000}

requests = st.one_of(
    st.builds(GpuRequest, st.integers(1, 3), st.sampled_from([100, 250, 333, 500, 700, 1000])),
    st.builds(lambda mib: GpuRequest(1, 1000, mib), st.sampled_from([1, 4_000, 16_000, 40_000])),
    st.builds(lambda model: GpuRequest(1, 500, None, (model,)), st.sampled_from(sorted(MODELS))),
)
clusters = st.lists(st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=4), min_size=1, max_size=3)

small = st.lists(st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=3), min_size=1, max_size=2)


def make_node(name: str, models: list[str], cpus: float = 8.0) -> Node:
    gpus = tuple(Gpu(f"{name}-{i}", i, model, MODELS[model]) for i, model in enumerate(models))
    return Node(NodeReport(name, cpus, 64_000, gpus, emulated=True, boot_id="b", agent_version="0"))


@st.composite
def replicas(draw: st.DrawFn) -> PendingReplica:
    number = draw(st.integers(0, 10**9))
    return PendingReplica(
        workload=WorkloadId(f"w{number}"),
        index=0,
        project=draw(st.sampled_from(["red", "blue", "free"])),
        user=draw(st.sampled_from(["ann", "bob"])),
        request=draw(requests),
        queued_at=NOW - draw(st.integers(0, 1000)),
        priority=draw(st.integers(0, 2)),
        preemptible=draw(st.booleans()),
        cpus=draw(st.sampled_from([0.0, 1.0, 3.0])),
        memory_mib=draw(st.sampled_from([0, 1000])),
        max_time_s=draw(st.sampled_from([None, 10.0, 1000.0])),
    )


@st.composite
def projects(draw: st.DrawFn) -> list[Project]:
    bound = st.one_of(st.none(), st.sampled_from([0, 500, 1000, 2000, 4000]))
    return [Project(name, draw(bound), draw(st.booleans()), draw(bound), draw(bound)) for name in ("red", "blue")]


steps = st.lists(st.one_of(replicas(), st.integers(0, 100), st.sampled_from([1.0, 30.0, 400.0])), max_size=30)


@st.composite
def contention(draw: st.DrawFn) -> list[PendingReplica | int | float]:
    """Fill nodes with training; then add work that may evict it by quota or priority."""
    wanted = st.sampled_from([GpuRequest(1), GpuRequest(2), GpuRequest(1, 500), GpuRequest(2, 300)])
    first = draw(st.lists(st.builds(replace, replicas(), request=wanted), min_size=4, max_size=10))
    then = draw(st.lists(st.builds(replace, replicas(), request=wanted), min_size=1, max_size=6))
    training = [replace(r, preemptible=True, project=draw(st.sampled_from(["red", "red", "blue"]))) for r in first]
    script: list[PendingReplica | int | float] = [*training, 1.0, 100.0]
    for replica in then:
        script += [replica, draw(st.sampled_from([1.0, 1.0, 100.0]))]
    return script


class Watched:
    """A scheduler whose decisions are checked; victims end one cycle later."""

    def __init__(self, nodes: list[list[str]], projects_: list[Project]) -> None:
        self.scheduler = Scheduler()
        self.now = NOW
        self.specs: dict[ReplicaKey, PendingReplica] = {}
        self.evictions = 0
        self.trace: list[object] = []
        for number, models in enumerate(nodes):
            self.scheduler.apply(NodeChanged(make_node(f"n{number}", models)))
        for project in projects_:
            self.scheduler.apply(ProjectChanged(project))

    def add(self, replica: PendingReplica) -> None:
        if replica.key not in self.specs:
            self.specs[replica.key] = replica
            self.scheduler.apply(PendingAdded(replica, self.now))

    def end(self, number: int) -> None:
        keys = sorted(self.scheduler.demand.running)
        if keys:
            self.scheduler.apply(LeaseReleased(keys[number % len(keys)]))

    def decide(self) -> bool:
        leaving = [key for key, r in self.scheduler.demand.running.items() if r.releasing]
        takers = {hold.key for hold in self.scheduler.holds}
        decisions = self.scheduler.decide(self.now)
        takers |= {(e.for_workload, e.for_index) for e in decisions.evictions if e.kind is EvictionKind.RECLAIM}
        self.trace.append(decisions)
        self.evictions += len(decisions.evictions)
        self._check()
        for eviction in decisions.evictions:
            victim, evictor = self.specs[eviction.key], self.specs[eviction.for_workload, eviction.for_index]
            if eviction.kind is EvictionKind.CONSOLIDATE:
                assert victim.preemptible
                assert victim.priority <= evictor.priority
            else:
                self._check_eviction(victim, evictor, takers)
        for key in leaving:
            if key in self.scheduler.demand.running:
                self.scheduler.apply(LeaseReleased(key))
                self.scheduler.apply(PendingAdded(self.specs[key], self.now))
        return bool(decisions.grants or decisions.evictions or leaving)

    def _check_eviction(self, victim: PendingReplica, evictor: PendingReplica, takers: set[ReplicaKey]) -> None:
        """Allow evictions by priority inside a project, and by quota or fair share between projects.

        Work on whole GPUs counts each GPU of which others use a part as a whole one, at most.
        Holds for others than ``takers`` were created later, from free capacity or by moves: they use no right.
        """
        assert victim.preemptible
        if victim.project == evictor.project:
            assert victim.priority < evictor.priority
            return
        rules = {p.name: p.quota_permille for p in self.scheduler.demand.ledger.projects}
        running, holds = self.scheduler.demand.running.values(), self.scheduler.holds
        held = {name: sum(r.lease.permille for r in running if r.lease.project == name) for name in rules}
        quota, counted = rules[victim.project], held[victim.project]
        if evictor.request.permille == 1000:
            shares = [share for r in running if r.lease.project == victim.project for share in r.lease.shares]
            counted = 1000 * len({share.gpu_uuid for share in shares})
        assert quota is None or counted > quota
        ledger, capacity = self.scheduler.demand.ledger, self.scheduler.cluster.capacity_permille()
        fair = dict(zip((p.name for p in ledger.projects), Shares(ledger, capacity, self.now).fair, strict=True))
        staying = sum(r.lease.permille for r in running if r.lease.project == evictor.project and not r.releasing)
        nominated = [h for h in holds if h.kind is HoldKind.MOVED or (h.kind is HoldKind.NOMINATED and h.key in takers)]
        promised = sum(s.permille for h in nominated if self.specs[h.key].project == evictor.project for s in h.shares)
        slack = 50 + ROUNDING * 1000 * evictor.request.count  # starts count as use at once; workloads are indivisible
        assert staying + promised <= max(rules[evictor.project] or 0, fair[evictor.project] + slack)

    def _check(self) -> None:
        cluster, ledger = self.scheduler.cluster, self.scheduler.demand.ledger
        assert not len(cluster.log)
        assert (cluster.gpu_free >= 0).all()
        assert (cluster.gmem_free >= 0).all()
        assert (cluster.cpu_free >= 0).all()
        assert (cluster.mem_free >= 0).all()
        for number, project in enumerate(ledger.projects):
            if project.limit_permille is not None:
                assert ledger.used[number] <= project.limit_permille
            if project.quota_permille is not None:
                assert ledger.firm[number] <= project.quota_permille
                assert project.over_quota or ledger.used[number] <= project.quota_permille
        for key, running in self.scheduler.demand.running.items():
            wanted = self.specs[key].request
            assert len(running.lease.shares) == wanted.count
            assert len({share.gpu_uuid for share in running.lease.shares}) == wanted.count
        total = sum(running.lease.permille for running in self.scheduler.demand.running.values())
        assert ledger.used.sum() == total == ledger.user_used.sum() == ledger.pair_used.sum()


def play(nodes: list[list[str]], projects_: list[Project], script: list[PendingReplica | int | float]) -> Watched:
    watched = Watched(nodes, projects_)
    for step in script:
        match step:
            case PendingReplica():
                watched.add(step)
            case float():
                watched.now += step
                watched.decide()
            case int():
                watched.end(step)
    return watched


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters, projects(), st.one_of(steps, contention()))
def test_no_double_grant_and_no_limit_exceeded(
    nodes: list[list[str]], projects_: list[Project], script: list[PendingReplica | int | float]
) -> None:
    play(nodes, projects_, script)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small, projects(), st.one_of(steps, contention()))
def test_evictions_end_under_constant_demand(
    nodes: list[list[str]], projects_: list[Project], script: list[PendingReplica | int | float]
) -> None:
    watched = play(nodes, projects_, script)
    evictions = watched.evictions
    for _ in range(60):
        watched.now += 70
        if not watched.decide():
            break
    else:
        raise AssertionError(f"still moving: {watched.trace[-4:]}")
    assert watched.evictions - evictions <= 2 * len(watched.specs)
    before = dict(watched.scheduler.demand.running)
    for _ in range(5):
        watched.now += 70
        assert not watched.decide()
    assert before == watched.scheduler.demand.running


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters, projects(), steps)
def test_equal_histories_give_equal_decisions(
    nodes: list[list[str]], projects_: list[Project], script: list[PendingReplica | int | float]
) -> None:
    assert play(nodes, projects_, script).trace == play(nodes, projects_, script).trace


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small, projects(), contention(), st.lists(replicas(), max_size=6))
def test_decide_leaves_arrays_unchanged(
    nodes: list[list[str]],
    projects_: list[Project],
    script: list[PendingReplica | int | float],
    more: list[PendingReplica],
) -> None:
    watched = play(nodes, projects_, script)
    for replica in more:
        watched.add(replica)
    s = watched.scheduler
    before = arrays(s)
    decide(s.placer, s.demand, watched.now + 500, s.holds)
    after = arrays(s)
    assert before == after


def arrays(s: Scheduler) -> dict[str, bytes]:
    skip = {"touched"}  # a change counter, not a quantity
    parts = {**vars(s.cluster), **{f"ledger {name}": column for name, column in vars(s.demand.ledger).items()}}
    return {name: c.tobytes() for name, c in parts.items() if isinstance(c, np.ndarray) and name not in skip}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters, st.lists(replicas(), max_size=15), st.randoms(use_true_random=False))
def test_decisions_do_not_depend_on_node_names(
    nodes: list[list[str]], queue: list[PendingReplica], rng: object
) -> None:
    results = []
    for order in (list(range(len(nodes))), list(reversed(range(len(nodes))))):
        watched = Watched([nodes[at] for at in order], [])
        for replica in queue:
            watched.add(replica)
        watched.decide()
        cluster = watched.scheduler.cluster
        rows = sorted(tuple(sorted(row)) for row in cluster.gpu_free.tolist())
        results.append((len(watched.scheduler.demand.running), rows))
    assert results[0] == results[1]


cells = st.lists(
    st.lists(st.tuples(st.sampled_from(sorted(MODELS)), st.sampled_from([0, 100, 300, 500, 999, 1000])), max_size=3),
    min_size=1,
    max_size=2,
)


@settings(max_examples=300, deadline=None)
@given(cells, requests, st.sampled_from([0.0, 4.0, 9.0]))
def test_place_is_found_if_and_only_if_it_exists(
    nodes: list[list[tuple[str, int]]], request: GpuRequest, cpus: float
) -> None:
    cluster = ClusterState()
    for number, gpus in enumerate(nodes):
        cluster.set_node(make_node(f"n{number}", [model for model, _ in gpus]))
        row = cluster.rows[f"n{number}"]
        for slot, (model, free) in enumerate(gpus):
            cluster.gpu_free[row, slot] = free
            cluster.gmem_free[row, slot] = MODELS[model] * free // 1000
        cluster.touch(row)
    claim = Placer(cluster).find(Shapes().get(request, cpus, 0))
    assert (claim is not None) == any(_fits(gpus, request) for gpus in nodes if cpus <= 8)
    if claim is not None:
        chosen = np.flatnonzero(claim.gpu)
        assert len(chosen) == request.count
        assert (cluster.gpu_free[claim.row] >= claim.gpu).all()
        assert (cluster.gmem_free[claim.row] >= claim.gmem).all()


def _fits(gpus: list[tuple[str, int]], request: GpuRequest) -> bool:
    def serves(model: str, free: int) -> bool:
        total = MODELS[model]
        enough = free >= request.permille_on(total) and total * free // 1000 >= request.memory_on(total)
        return enough and request.accepts_model(model)

    return any(all(serves(*gpu) for gpu in some) for some in combinations(gpus, request.count))


def test_removed_replica_is_not_started() -> None:
    watched = Watched([["T4"]], [])
    replica = PendingReplica(WorkloadId("w1"), 0, "red", "ann", GpuRequest(1), NOW)
    watched.add(replica)
    watched.scheduler.apply(PendingRemoved(replica.key))
    assert not watched.decide()
