"""Properties of gangs, min-runtimes and names, over generated histories of small pools."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_world import NOW

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node, NodeReport
from gpupool.domain.people.access import Project
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.scheduler import LeaseReleased, NodeChanged, PendingAdded, ProjectChanged, Scheduler
from gpupool.scheduling.values import Decisions, EvictionKind, PendingReplica, ReplicaKey, RunningReplica

drawn = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)

NO_GPU = GpuRequest(0)
requests = st.sampled_from([GpuRequest(1), GpuRequest(2), GpuRequest(1, 500), GpuRequest(1, 300), NO_GPU])
racks = st.lists(st.tuples(st.integers(1, 4), st.sampled_from("xy")), min_size=1, max_size=3)
quotas = st.lists(st.sampled_from([None, 0, 1000, 2000, 3000]), min_size=2, max_size=2)


@dataclass(frozen=True)
class Job:
    """One replica, or the members of a gang; in a mixed gang even indices request ``other``."""

    project: str
    request: GpuRequest
    training: bool
    priority: int
    gang: Gang | None
    other: GpuRequest = NO_GPU

    def asks(self, index: int) -> GpuRequest:
        return self.other if self.gang is not None and self.gang.mixed and index % 2 == 0 else self.request

    def replicas(self, number: int) -> list[PendingReplica]:
        name = WorkloadId(f"w{number:03}")
        return [
            PendingReplica(
                workload=name,
                index=index,
                project=self.project,
                user="ann",
                request=self.asks(index),
                cpus=0.0 if self.asks(index).count else 1.0,
                queued_at=NOW + number / 1000,
                priority=self.priority,
                preemptible=self.training,
                gang=self.gang,
            )
            for index in range(self.gang.most if self.gang else 1)
        ]


def gangs() -> st.SearchStrategy[Gang | None]:
    some = st.builds(
        lambda least, more, within, mixed: Gang(least, least + more, within.strip("!"), within.endswith("!"), mixed),
        st.integers(2, 3),
        st.integers(0, 2),
        st.sampled_from(["", "rack", "rack!"]),
        st.booleans(),
    )
    return st.one_of(st.none(), some)


jobs = st.builds(Job, st.sampled_from(["red", "blue"]), requests, st.booleans(), st.integers(0, 1), gangs(), requests)
training = jobs.map(lambda job: replace(job, training=True))
protected = jobs.map(lambda job: replace(job, training=False))
# Training first; then work that may evict it, by quota or priority; meanwhile workloads end.
Step = Job | float | int
scripts = st.tuples(
    st.lists(training, min_size=2, max_size=6),
    st.lists(st.one_of(jobs, st.sampled_from([1.0, 70.0]), st.integers(0, 9)), min_size=1, max_size=8),
).map(lambda both: [*both[0], 1.0, 70.0, *both[1], 1.0, 1.0, 70.0, 1.0])


class Pool:
    """A scheduler in a small pool; evicted replicas end one cycle later and wait again."""

    def __init__(self, nodes: list[Node], bounds: list[int | None]) -> None:
        self.scheduler = Scheduler()
        self.now, self.count = NOW, 0
        self.specs: dict[ReplicaKey, PendingReplica] = {}
        self.trace: list[Decisions] = []
        self.scheduler.apply_all(NodeChanged(node) for node in nodes)
        named = zip(("red", "blue"), bounds, strict=True)
        self.scheduler.apply_all(ProjectChanged(Project(name, quota)) for name, quota in named)

    def play(self, script: list[Step]) -> Pool:
        for step in script:
            match step:
                case Job():
                    self.add(step)
                case int():
                    self.end(step)
                case float():
                    self.now += step
                    self.decide()
        return self

    def add(self, job: Job) -> None:
        for replica in job.replicas(self.count):
            self.specs[replica.key] = replica
            self.scheduler.apply(PendingAdded(replica, self.now))
        self.count += 1

    def end(self, number: int) -> None:
        """End a whole workload."""
        names = sorted({key[0] for key in self.scheduler.demand.running})
        if names:
            for key in [k for k in self.scheduler.demand.running if k[0] == names[number % len(names)]]:
                self.scheduler.apply(LeaseReleased(key))

    def decide(self) -> None:
        before = dict(self.scheduler.demand.running)
        leaving = [key for key, r in before.items() if r.releasing]
        decisions = self.scheduler.decide(self.now)
        self.trace.append(decisions)
        self.look(before, decisions)
        for key in leaving:
            self.scheduler.apply(LeaseReleased(key))
            self.scheduler.apply(PendingAdded(replace(self.specs[key], queued_at=self.now), self.now))

    def look(self, before: dict[ReplicaKey, RunningReplica], decisions: Decisions) -> None:
        """Check that gangs are whole and that evictions are allowed."""
        running = self.scheduler.demand.running
        staying = Counter(key[0] for key, r in running.items() if not r.releasing)
        touched = {grant.workload for grant in decisions.grants} | {e.workload for e in decisions.evictions}
        for name in touched:
            gang = self.specs[name, 0].gang
            assert gang is None or staying[name] == 0 or gang.least <= staying[name] <= gang.most
            if gang is not None and gang.strict:
                nodes = {r.lease.node for key, r in running.items() if key[0] == name and not r.releasing}
                found = (self.scheduler.cluster.nodes[self.scheduler.cluster.rows[node]] for node in nodes)
                assert len({node.all_labels["rack"] for node in found if node is not None}) <= 1
        for eviction in decisions.evictions:
            assert self.specs[eviction.key].preemptible
            if eviction.kind is not EvictionKind.STALE_GANG:
                started = min(r.started_at for key, r in before.items() if key[0] == eviction.workload)
                assert self.now - started >= 60


def make(nodes: list[tuple[int, str]], names: list[str]) -> list[Node]:
    """Return nodes that differ in their CPUs."""
    made = []
    for number, ((gpus, rack), name) in enumerate(zip(nodes, names, strict=True)):
        cards = tuple(Gpu(f"{name}-{i}", i, "T4", 16_000) for i in range(gpus))
        report = NodeReport(name, 64.0 - number, 256_000, cards, emulated=True, boot_id="b", agent_version="0")
        made.append(Node(replace(report, labels={"rack": rack})))
    return made


def told(pool: Pool, names: dict[str, str]) -> list[object]:
    """Return all decisions of a history with renamed nodes."""
    return [
        (
            [(g.key, names[g.node], [s.gpu_index for s in g.shares]) for g in decisions.grants],
            [(e.key, e.for_workload, e.kind) for e in decisions.evictions],
            [(h.key, names[h.node], h.kind, h.starts_at) for h in decisions.holds],
        )
        for decisions in pool.trace
    ]


@drawn
@given(racks, quotas, scripts)
def test_gangs_stay_whole_and_young_or_protected_work_is_not_evicted(
    nodes: list[tuple[int, str]], bounds: list[int | None], script: list[Step]
) -> None:
    Pool(make(nodes, [f"n{at}" for at in range(len(nodes))]), bounds).play(script)


@drawn
@given(racks, quotas, scripts)
def test_decisions_do_not_depend_on_names(
    nodes: list[tuple[int, str]], bounds: list[int | None], script: list[Step]
) -> None:
    names, others = [f"n{at}" for at in range(len(nodes))], [f"m{9 - at}" for at in range(len(nodes))]
    one, other = (Pool(make(nodes, which), bounds).play(script) for which in (names, others))
    same = dict(zip(names, names, strict=True))
    assert told(one, same) == told(other, dict(zip(others, names, strict=True)))


@drawn
@given(racks, st.lists(st.one_of(protected, st.sampled_from([1.0, 400.0]), st.integers(0, 9)), max_size=14))
def test_placement_does_not_depend_on_order_of_distinct_nodes(nodes: list[tuple[int, str]], script: list[Step]) -> None:
    names = [f"n{at}" for at in range(len(nodes))]
    one = Pool(make(nodes, names), [None, None]).play([*script, 1.0])
    other = Pool(list(reversed(make(nodes, names))), [None, None]).play([*script, 1.0])
    same = dict(zip(names, names, strict=True))
    assert told(one, same) == told(other, same)


@drawn
@given(racks, quotas, scripts)
def test_evictions_end_under_constant_demand_of_gangs(
    nodes: list[tuple[int, str]], bounds: list[int | None], script: list[Step]
) -> None:
    pool = Pool(make(nodes, [f"n{at}" for at in range(len(nodes))]), bounds).play(script)
    evictions = 0
    for _ in range(80):
        pool.now += 70
        pool.decide()
        evictions += len(pool.trace[-1].evictions)
        if not (pool.trace[-1].evictions or pool.trace[-1].grants or pool.scheduler.demand.releasing):
            break
    else:
        raise AssertionError(f"still moving: {pool.trace[-3:]}")
    assert evictions <= 2 * len(pool.specs)
