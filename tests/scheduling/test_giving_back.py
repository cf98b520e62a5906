"""Reclaim and preemption: the choice of victims, no useless eviction, and termination."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, World, world

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node, NodeReport
from gpupool.domain.people.access import Project
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.eviction.actions import RETRY_S
from gpupool.scheduling.scheduler import (
    LeaseReleased,
    NodeChanged,
    NodeRemoved,
    PendingAdded,
    ProjectChanged,
    Scheduler,
)
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.queue import Demand
from gpupool.scheduling.state.running import RunningTable
from gpupool.scheduling.values import PendingReplica, ReplicaKey, RunningReplica

drawn = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


# --- no useless eviction


@dataclass(frozen=True)
class Victim:
    """A possible victim: one job, or a gang of single GPUs with the minimum ``least``."""

    gpus: int
    priority: int
    members: int = 1
    least: int = 1

    def lines(self, name: str, places: list[tuple[str, int]]) -> list[str]:
        if self.members == 1:
            where = f"{places[0][0]}:{''.join(str(slot) for _, slot in places)}"
            return [f"{name} red {self.gpus} on {where} train prio={self.priority}"]
        gang = f"gang={self.least}-{self.members}"
        return [f"{name}.{at} red 1 on {node}:{slot} train {gang}" for at, (node, slot) in enumerate(places)]


victims = st.one_of(
    st.builds(Victim, st.integers(1, 3), st.integers(0, 1)),
    st.builds(
        lambda members, spare: Victim(members, 0, members, max(1, members - spare)),
        st.integers(2, 4),
        st.integers(0, 2),
    ),
)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[int], list[str]]:
    """Generate nodes of at most four GPUs, with victims on them."""
    nodes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    free = [(f"n{node}", slot) for node, gpus in enumerate(nodes) for slot in range(gpus)]
    lines: list[str] = []
    for number, victim in enumerate(draw(st.lists(victims, min_size=1, max_size=6))):
        if victim.members == 1:
            home = draw(st.sampled_from(range(len(nodes))))
            places = [place for place in free if place[0] == f"n{home}"][: victim.gpus]
        else:
            places = draw(st.permutations(free))[: victim.members] if free else []
        if len(places) == victim.gpus:
            free = [place for place in free if place not in places]
            lines += victim.lines(f"r{number}", places)
    return nodes, lines


def fits_without(nodes: list[int], lines: list[str], wanted: str, gone: set[str]) -> bool:
    """Return whether the waiting job starts without these victims, and with all others protected."""
    rest = [line.replace(" train", "") for line in lines if line.split()[0] not in gone]
    w = world(nodes_line(nodes), wanted, "; ".join(rest), "red quota=0; blue quota=99")
    w.step()
    return "p1" in w.granted


def nodes_line(nodes: list[int]) -> str:
    return "; ".join(f"n{at} {gpus}xT4" for at, gpus in enumerate(nodes))


def smaller(evicted: set[str], lines: list[str]) -> list[set[str]]:
    """Return the largest smaller sets that leave every gang its minimum or evict all of it."""
    found = []
    for unit in sorted({name.partition(".")[0] for name in evicted}):
        mine = sorted(name for name in evicted if name.partition(".")[0] == unit)
        members = [line for line in lines if line.split()[0].partition(".")[0] == unit]
        least, _, most = next((w for w in members[0].split() if w.startswith("gang=")), "gang=0-1")[5:].partition("-")
        spare = int(most) - int(least)
        keep = min(spare, len(mine) - 1)
        found += [evicted - set(mine) | set(some) for some in combinations(mine, keep)]
    return found


@drawn
@given(crowds(), st.sampled_from(["1", "2", "3", "1 gang=2", "1 gang=3", "2 gang=2"]))
def test_no_useless_eviction(crowd: tuple[list[int], list[str]], want: str) -> None:
    nodes, lines = crowd
    wanted = f"p1 blue {want}"
    w = world(nodes_line(nodes), wanted, "; ".join(lines), "red quota=0; blue quota=99")
    w.step()
    members = {
        f"{e.workload}.{e.index}" if "gang=" in line_of(lines, e.workload) else e.workload for e in w.last.evictions
    }
    if not members:
        return
    assert fits_without(nodes, lines, wanted, members)
    for fewer in smaller(members, lines):
        assert not fits_without(nodes, lines, wanted, fewer), (members, fewer)


def line_of(lines: list[str], workload: str) -> str:
    return next(line for line in lines if line.split()[0].partition(".")[0] == workload)


# --- termination


@st.composite
def demands(draw: st.DrawFn) -> tuple[list[int], list[Project], list[PendingReplica]]:
    """Generate at least ten projects with jobs and gangs that together want more than there is."""
    nodes = draw(st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=4))
    quotas = draw(st.lists(st.sampled_from([None, 0, 500, 1000, 2000, 3000]), min_size=10, max_size=12))
    projects = [Project(f"p{at:02}", quota) for at, quota in enumerate(quotas)]
    wanted = st.sampled_from([GpuRequest(1), GpuRequest(1), GpuRequest(2), GpuRequest(4), GpuRequest(1, 500)])
    waiting: list[PendingReplica] = []
    for number in range(draw(st.integers(12, 30))):
        gang = draw(st.sampled_from([None, None, None, Gang(2, 2), Gang(2, 3)]))
        first = PendingReplica(
            workload=WorkloadId(f"w{number:03}"),
            index=0,
            project=draw(st.sampled_from(projects)).name,
            user=draw(st.sampled_from(["ann", "bob"])),
            request=draw(wanted),
            queued_at=NOW + number / 100,
            priority=draw(st.integers(0, 1)),
            preemptible=draw(st.integers(0, 4)) > 0,
            gang=gang,
        )
        waiting += [replace(first, index=index) for index in range(gang.most if gang else 1)]
    return nodes, projects, waiting


def make_node(name: str, gpus: int) -> Node:
    found = tuple(Gpu(f"{name}-{i}", i, "A100", 80_000) for i in range(gpus))
    return Node(NodeReport(name, 64.0, 256_000, found, emulated=True, boot_id="b", agent_version="0"))


class Pool:
    """Waiting work stays forever; evicted work waits again."""

    def __init__(self, nodes: list[int], projects: list[Project]) -> None:
        self.scheduler, self.now, self.evictions = Scheduler(), NOW, 0
        self.specs: dict[ReplicaKey, PendingReplica] = {}
        self.scheduler.apply_all(NodeChanged(make_node(f"n{at}", gpus)) for at, gpus in enumerate(nodes))
        self.scheduler.apply_all(ProjectChanged(project) for project in projects)

    def add(self, replica: PendingReplica) -> None:
        self.specs[replica.key] = replica
        self.scheduler.apply(PendingAdded(replica, self.now))

    def step(self) -> bool:
        leaving = [key for key, r in self.scheduler.demand.running.items() if r.releasing]
        self.now += 70
        decisions = self.scheduler.decide(self.now)
        self.evictions += len(decisions.evictions)
        for key in leaving:
            self.scheduler.apply(LeaseReleased(key))
            self.scheduler.apply(PendingAdded(self.specs[key], self.now))
        return bool(decisions.grants or decisions.evictions or leaving)

    def rest(self, rounds: int) -> None:
        for _ in range(rounds):
            if not self.step():
                return
        raise AssertionError(f"still moving after {rounds} rounds and {self.evictions} evictions")


@settings(parent=drawn, max_examples=40)
@given(demands())
def test_evictions_end_under_constant_demand_of_many_projects(
    demand: tuple[list[int], list[Project], list[PendingReplica]],
) -> None:
    nodes, projects, waiting = demand
    pool = Pool(nodes, projects)
    for at, replica in enumerate(waiting):
        pool.add(replica)
        if at % 7 == 0:
            pool.step()
    pool.rest(80)
    assert pool.evictions <= 3 * len(waiting)
    before = dict(pool.scheduler.demand.running)
    for _ in range(5):
        assert not pool.step()
    assert before == pool.scheduler.demand.running


# --- the arrays


def as_seen(holders: RunningTable) -> dict[ReplicaKey, tuple[object, ...]]:
    """Return the arrays independent of slot numbers."""
    columns = ("row", "project", "priority", "permille", "evictable", "releasing", "gpu", "gmem", "marks", "cpu", "mem")
    return {
        key: (
            *(getattr(holders, name)[slot].tolist() for name in columns),
            sorted(str(holders.keys[at]) for at in holders.members(int(holders.gang[slot])))
            if holders.gang[slot] >= 0
            else [],
            int(holders.gang_size[holders.gang[slot]]) if holders.gang[slot] >= 0 else 0,
        )
        for key, slot in holders.slots.items()
    }


@settings(parent=drawn, max_examples=40)
@given(demands(), st.lists(st.integers(0, 60), max_size=20))
def test_arrays_equal_rebuilt_arrays(
    demand: tuple[list[int], list[Project], list[PendingReplica]], ends: list[int]
) -> None:
    nodes, projects, waiting = demand
    pool = Pool(nodes, projects)
    for replica in waiting:
        pool.add(replica)
    pool.step()
    for end in ends:
        keys = sorted(pool.scheduler.demand.running)
        if end == 0:
            pool.scheduler.apply(NodeRemoved("n0"))
        elif end == 1:
            pool.scheduler.apply(NodeChanged(make_node("n0", 8)))
        elif keys:
            pool.scheduler.apply(LeaseReleased(keys[end % len(keys)]))
        if end % 3 == 0:
            pool.step()
        if end % 2 == 0:
            pool.scheduler.demand.first_groups()  # it is updated at any time
    cluster, running = pool.scheduler.cluster, pool.scheduler.demand
    running.holders.catch_up(cluster)
    fresh = RunningTable()
    for key, replica in running.running.items():
        fresh.start(replica, running.accounts[key])
    fresh.catch_up(cluster)
    assert as_seen(running.holders) == as_seen(fresh)
    assert firsts_in_table(running) == firsts_in_queues(running)


def firsts_in_table(demand: Demand) -> dict[tuple[int, Shape], tuple[int, float]]:
    table, found = demand.first_groups(), {}
    for shape in demand.shape_projects:
        rows = np.flatnonzero(table.of_shapes({shape}, np.arange(len(table.project))))
        assert sorted(table.projects_with(shape).tolist()) == sorted(demand.shape_projects[shape])
        for row in rows.tolist():
            found[int(table.project[row]), shape] = int(table.size[row]), float(table.queued_at[row])
    for project in demand.project_queues:
        rows = np.flatnonzero(table.of_shapes(set(demand.shape_projects), np.arange(len(table.project))))
        first = int(table.first(rows, len(demand.ledger.projects))[project])
        shape = min(demand.heads(project).values(), key=lambda head: head[0])[1].shape
        assert table.of_shapes({shape}, np.array([first])).all()
    return found


def firsts_in_queues(demand: Demand) -> dict[tuple[int, Shape], tuple[int, float]]:
    return {
        (project, shape): (group.size, group.entries[0][2].queued_at)
        for project in demand.project_queues
        for shape, (_, group) in demand.heads(project).items()
    }


def by_member(pool: Pool) -> Counter[RunningReplica]:
    """Return what runs, without the numbers of equal members: which of two gets which place is not decided."""
    found = pool.scheduler.demand.running.values()
    return Counter(replace(r, lease=replace(r.lease, index=0)) for r in found)


@settings(parent=drawn, max_examples=40)
@given(demands(), st.data())
def test_ending_replicas_are_counted_as_after_rebuild(
    demand: tuple[list[int], list[Project], list[PendingReplica]], data: st.DataObject
) -> None:
    nodes, projects, waiting = demand
    told, anew = Pool(nodes, projects), Pool(nodes, projects)
    for pool in (told, anew):
        for waits in waiting:
            pool.add(waits)
        pool.step()
    running = sorted(told.scheduler.demand.running)
    for key in data.draw(st.lists(st.sampled_from(running), max_size=5)) if running else ():
        told.scheduler.demand.leaves(key)
        anew.scheduler.demand.start(replace(anew.scheduler.demand.running[key], releasing=True))
    one, other = told.scheduler.demand, anew.scheduler.demand
    for what in ("running", "releasing", "evictable", "priorities_evictable"):
        assert getattr(one, what) == getattr(other, what), what
    assert as_seen(one.holders) == as_seen(other.holders)
    gangs = {key[0] for key in one.running}
    assert [getattr(one.gangs.get(gang), "running", None) for gang in sorted(gangs)] == [
        getattr(other.gangs.get(gang), "running", None) for gang in sorted(gangs)
    ]
    for pool in (told, anew):
        pool.rest(80)
    assert by_member(told) == by_member(anew)


@settings(parent=drawn, max_examples=40)
@given(demands())
def test_decision_changes_no_array(
    demand: tuple[list[int], list[Project], list[PendingReplica]],
) -> None:
    nodes, projects, waiting = demand
    pool = Pool(nodes, projects)
    for replica in waiting[: len(waiting) // 2]:
        pool.add(replica)
    pool.step()
    for replica in waiting[len(waiting) // 2 :]:
        pool.add(replica)
    s = pool.scheduler
    s.demand.wake(NOW + 5000)
    before = arrays(s)
    s.plan([], NOW + 5000)  # a whole decision that is not applied
    assert arrays(s) == before


def arrays(s: Scheduler) -> dict[str, bytes]:
    parts = {**vars(s.cluster), **{f"ledger {name}": column for name, column in vars(s.demand.ledger).items()}}
    return {name: c.tobytes() for name, c in parts.items() if isinstance(c, np.ndarray) and name != "touched"}


# --- gangs as victims


def evicted_in(w: World) -> list[tuple[str, int]]:
    return sorted((str(e.workload), e.index) for e in w.last.evictions)


GANG = "; ".join(f"r1.{at} red 1 on a:{at} train gang=2-4 age={900 - at}" for at in range(4))


def test_optional_members_are_evicted_newest_first() -> None:
    w = world("a 4xT4", "p1 blue 2", GANG, "red quota=0; blue quota=4")
    w.step()
    assert evicted_in(w) == [("r1", 2), ("r1", 3)]
    assert not any("gang" in e.reason for e in w.last.evictions)


def test_gang_below_its_minimum_is_evicted_whole() -> None:
    w = world("a 4xT4", "p1 blue 3", GANG, "red quota=0; blue quota=4")
    w.step()
    assert evicted_in(w) == [("r1", at) for at in range(4)]
    assert all(e.reason.endswith("Its gang cannot run with fewer than 2 members.") for e in w.last.evictions)


def test_whole_gang_is_evicted_including_unhelpful_members() -> None:
    w = world(
        "a 1xT4; b 1xA100",
        "p1 blue 1 model=a100",
        "r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on b:0 train gang=2",
        "red quota=0; blue quota=4",
    )
    w.step()
    assert evicted_in(w) == [("r1", 0), ("r1", 1)]


def test_single_victims_precede_gangs() -> None:
    w = world(
        "a 2xT4; b 2xT4",
        "p1 blue 2",
        "r1.0 red 1 on a:0 train gang=3; r1.1 red 1 on a:1 train gang=3; r1.2 red 1 on b:0 train gang=3;"
        "r2 red 1 on b:1 train",
        "red quota=0; blue quota=4",
    )
    w.step()
    assert len(evicted_in(w)) == 3  # the gang alone frees a whole node


def test_gang_chooses_rack_with_fewest_victims() -> None:
    nodes = "a 2xT4 rack=x; b 2xT4 rack=y; c 2xT4 rack=y"
    running = "; ".join(f"r{n}{s} red 1 on {n}:{s} train age={900 if n == 'a' else 950}" for n in "abc" for s in (0, 1))
    w = world(nodes, "p1 blue 2 gang=2 within=rack", running, "red quota=0; blue quota=6")
    w.step()
    assert {str(e.workload)[1] for e in w.last.evictions} == {"b", "c"}
    w = world(nodes, "p1 blue 2 gang=3 within=rack!", running, "red quota=0; blue quota=6")
    w.step()
    assert not w.last.evictions


# --- bounds on searching


def test_bounded_search_continues_in_next_cycle() -> None:
    owed = "; ".join(f"p{at} b{at} 2 wait={100 + at}" for at in range(8))
    running = "; ".join(f"r{at} red 1 on n{at}:0 train; s{at} red 1 on n{at}:1" for at in range(8))
    nodes = "; ".join(f"n{at} 2xT4" for at in range(8)) + "; z 2xT4"
    projects = "red quota=0; " + "; ".join(f"b{at} quota=2" for at in range(8))
    full = "; t0 red 1 on z:0 train; t1 red 1 on z:1 train"
    w = world(nodes, owed, running + full, projects, max_looks=1)
    w.step()
    assert w.last.exhausted
    assert w.last.wake_at == w.now + RETRY_S
    for _ in range(60):
        w.now += 1
        w.step()
        if not w.last.exhausted and not w.last.evictions and not w.last.grants:
            break
    assert "@z" in w.places()
    assert sorted(set(w.evicted)) == ["t0", "t1"]


def test_workload_without_result_is_searched_last_next_time() -> None:
    """With one search per cycle, a hopeless workload does not block the search for others."""
    w = world(
        "a 2xT4; b 1xA100",
        "p1 blue 1 model=t4 wait=900; p2 green 1 model=a100",
        "r1 red 1 on a:0; r2 red 1 on a:1 cpus=1; r3 red 1 on b:0 train",
        "red quota=0; blue quota=1; green quota=1",
        max_looks=2,
    )
    for _ in range(10):
        w.step()
        w.now += 1
    assert "p2@b" in w.places()


def test_searches_slow_down_while_only_time_passes() -> None:
    nodes = "; ".join(f"n{at} 2xT4" for at in range(4))
    owed = "; ".join(f"p{at} b{at} 2 cpus={at + 1}" for at in range(4))
    running = "; ".join(f"{name}{at} red 1 on n{at}:{slot} train" for at in range(4) for slot, name in enumerate("rs"))
    w = world(nodes, owed, running, "red quota=7; " + "; ".join(f"b{at} quota=2" for at in range(4)), max_looks=1)

    def search(cycles: int) -> list[bool]:
        """Run cycles, each when the previous one asks for it; return whether all work has been searched."""
        complete = []
        for _ in range(cycles):
            decisions = w.scheduler.decide(w.now)
            assert not decisions.evictions, "red exceeds its quota by one GPU, and each job needs two"
            assert decisions.wake_at is not None
            complete.append(not decisions.exhausted)
            w.now = decisions.wake_at
        return complete

    begun, complete = w.now, search(60)
    assert not complete[0]
    assert complete == sorted(complete)
    assert w.now - begun > 4 * 60 * RETRY_S
    w.scheduler.apply(PendingAdded(replace(w.scheduler.demand.pending[WorkloadId("p1"), 0], index=1), w.now))
    begun = w.now
    assert search(2) == [False, False], "a replica was added"
    assert w.now - begun <= 2 * RETRY_S


# --- input of the API


def test_integer_time_is_accepted() -> None:
    decisions = []
    for now in (NOW, int(NOW)):
        w = world("a 2xT4", "p1 blue 2 wait=900", "r1 red 1 on a:0 end=100.5; r2 red 1 on a:1 end=50.25")
        decisions.append(w.scheduler.decide(now))
    assert decisions[0] == decisions[1]
    assert [hold.starts_at for hold in decisions[1].holds] == [NOW + 100.5]


def test_protection_after_eviction_has_known_end() -> None:
    running = "r1 red 1 on a:0 train age=100 evictions=2; r2 red 1 on b:0 train age=100 evictions=3"
    w = world("a 1xT4; b 1xT4", "p1 blue 1 train", running)
    w.step()
    assert evicted_in(w) == []
    assert w.last.wake_at == NOW + 140
    said = w.scheduler.explain((WorkloadId("p1"), 0), w.now).estimate_s
    assert said is not None
    assert 140 <= said <= 170


def test_min_runtime_of_running_replica_applies() -> None:
    running = "r1 red 1 on a:0 train age=100 min=200; r2 red 1 on b:0 train age=100 min=50"
    w = world("a 1xT4; b 1xT4", "p1 blue 1; p2 blue 1", running, "red quota=0; blue quota=2", min_runtime_s=150)
    w.step()
    assert evicted_in(w) == [("r2", 0)]
    assert w.last.wake_at == NOW + 100
