"""Quotas of GPU models: a limit for protected work that requests the model, and a right to such GPUs."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_cases import Case, table
from scheduling_world import NOW, node, project, world

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Department, Project
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.scheduler import (
    DepartmentChanged,
    LeaseReleased,
    NodeChanged,
    PendingAdded,
    ProjectChanged,
    Scheduler,
)
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica, ReplicaKey

Demands = tuple[list[str], list[Department], list[Project], list[list[PendingReplica]]]
WHOLE = [GpuRequest(1)]
PARTS = [GpuRequest(1), GpuRequest(2), GpuRequest(1, 500), GpuRequest(3)]
WHOLE_OF_ANY = [replace(WHOLE[0], models=models) for models in ((), ("a100",), ("t4",))]

CASES = [
    Case(
        "protected work by name stays within it",
        "a 3xT4; b 3xA100",
        "p1 red 1 model=a100; p2 red 1 model=a100; p3 red 1 model=a100; p4 red 1 model=t4",
        "p1@b p2@b p4@a",
        projects="red quota=4 quota.a100=2",
    ),
    Case(
        "however the name is written",
        "a 3xA100",
        "p1 red 1 model=a100; p2 red 1 model=A100",
        "p1@a",
        projects="red quota=4 quota.A100=1",
    ),
    Case(
        "training does not count",
        "a 3xA100",
        "p1 red 1 model=a100 train; p2 red 1 model=a100 train; p3 red 1 model=a100",
        "p1@a p2@a p3@a",
        projects="red quota=3 quota.a100=1",
    ),
    Case(
        "what runs counts",
        "a 3xA100",
        "p1 red 1 model=a100",
        "r1@a",
        running="r1 red 1 on a:0 model=a100",
        projects="red quota=3 quota.a100=1",
    ),
    Case(
        "of another project it says nothing",
        "a 3xA100",
        "p1 blue 1 model=a100; p2 blue 1 model=a100",
        "p1@a p2@a",
        projects="red quota=3 quota.a100=1; blue quota=3",
    ),
]


TAKING = [
    Case(
        "a GPU of the model comes back from a project that is within its quota",
        "a 1xA100; b 1xT4",
        "p1 red 1 model=a100",
        "p1@a r1@b",
        running="r1 blue 1 on a:0 train",
        projects="red quota=1 quota.a100=1; blue quota=2",
        evicted="r1",
    ),
    Case(
        "it does not without a quota of the model",
        "a 1xA100; b 1xT4",
        "p1 red 1 model=a100",
        "r1@a",
        running="r1 blue 1 on a:0 train",
        projects="red quota=1; blue quota=2",
    ),
    Case(
        "training that asks by name has the right, too",
        "a 1xA100; b 1xT4",
        "p1 red 1 train model=A100",
        "p1@a r1@b",
        running="r1 blue 1 on a:0 train",
        projects="red quota=1 quota.a100=1; blue quota=2",
        evicted="r1",
    ),
    Case(
        "who does not ask by name does not have it",
        "a 1xA100; b 1xT4",
        "p1 red 1",
        "r1@a r2@b",
        running="r1 blue 1 on a:0 train; r2 blue 1 on b:0 train",
        projects="red quota=1 quota.a100=1; blue quota=2",
    ),
    Case(
        "it ends at the quota of the model",
        "a 3xA100",
        "p1 red 1 train model=a100; p2 red 1 train model=a100",
        "p1@a r1@a r3@a",
        running="r1 blue 1 on a:0 train age=300; r2 blue 1 on a:1 train age=200; r3 red 1 on a:2 train",
        projects="red quota=3 quota.a100=2; blue quota=3",
        evicted="r2",
    ),
    Case(
        "everything that the project holds of it counts",
        "a 2xA100",
        "p1 red 1 model=a100",
        "r1@a r2@a",
        running="r1 blue 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=2 quota.a100=1; blue quota=2",
    ),
    Case(
        "first from those beyond their quotas",
        "a 2xA100",
        "p1 red 1 model=a100",
        "p1@a r1@a",
        running="r1 blue 1 on a:0 train age=100; r2 green 1 on a:1 train age=900",
        projects="red quota=1 quota.a100=1; blue quota=2; green quota=0",
        evicted="r2",
    ),
    Case(
        "never from within a quota of the model",
        "a 1xA100",
        "p1 red 1 model=a100",
        "r1@a",
        running="r1 blue 1 on a:0 train",
        projects="red quota=1 quota.a100=1; blue quota=2 quota.a100=1",
    ),
    Case(
        "beyond a quota of the model, the newest",
        "a 2xA100",
        "p1 red 1 model=a100",
        "p1@a r1@a",
        running="r1 blue 1 on a:0 train age=900; r2 blue 1 on a:1 train age=100",
        projects="red quota=1 quota.a100=1; blue quota=2 quota.a100=1",
        evicted="r2",
    ),
    Case(
        "protected work stays",
        "a 1xA100",
        "p1 red 1 model=a100",
        "r1@a",
        running="r1 blue 1 on a:0",
        projects="red quota=1 quota.a100=1; blue quota=2",
    ),
    Case(
        "not within the minimum run time",
        "a 1xA100; b 1xT4",
        "p1 red 1 model=a100",
        "r1@a",
        running="r1 blue 1 on a:0 train age=10",
        projects="red quota=1 quota.a100=1; blue quota=2",
        then=(("wait 60", "p1@a r1@b"),),
        evicted="r1",
    ),
    Case(
        "who was sent back often is not left alone for it",
        "a 1xA100; b 1xT4",
        "p1 red 1 model=a100",
        "p1@a r1@b",
        running="r1 blue 1 on a:0 train age=100 evictions=5",
        projects="red quota=1 quota.a100=1; blue quota=2",
        evicted="r1",
    ),
    Case(
        "a part of a GPU",
        "a 2xA100",
        "p1 red 0.5 model=a100",
        "p1@a r2@a r3@a",
        running="r1 blue 0.5 on a:0 train age=100; r2 blue 0.5 on a:0 train age=200; r3 blue 1 on a:1 train age=300",
        projects="red quota=1 quota.a100=0.5; blue quota=4",
        evicted="r1",
    ),
    Case(
        "of a GPU's memory",
        "a 1xA100",
        "p1 red 40000M model=a100",
        "p1@a",
        running="r1 blue 1 on a:0 train",
        projects="red quota=1 quota.a100=0.5; blue quota=4",
        evicted="r1",
    ),
    Case(
        "a gang takes its places at once",
        "a 1xA100; b 1xA100; c 2xT4",
        "p1 red 1 train model=a100 gang=2",
        "p1@a p1@b r1@c r2@c",
        running="r1 blue 1 on a:0 train; r2 blue 1 on b:0 train",
        projects="red quota=2 quota.a100=2; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "a gang that would pass the quota of the model takes nothing",
        "a 1xA100; b 1xA100",
        "p1 red 1 train model=a100 gang=2",
        "r1@a r2@b",
        running="r1 blue 1 on a:0 train; r2 blue 1 on b:0 train",
        projects="red quota=2 quota.a100=1; blue quota=2",
    ),
    Case(
        "a gang is asked as a whole",
        "a 1xA100; b 1xT4; c 2xT4",
        "p1 red 1 model=a100",
        "p1@a r1@c r1@c",
        running="r1.0 blue 1 on a:0 train gang=2; r1.1 blue 1 on b:0 train gang=2",
        projects="red quota=1 quota.a100=1; blue quota=2",
        evicted="r1 r1",
    ),
    Case(
        "longer names and short ones mean the same GPUs",
        "a 1xA100; b 1xT4",
        "p1 red 1 model=a100",
        "r1@a",
        running="r1 blue 1 on a:0 train",
        projects="red quota=1 quota.a100=1; blue quota=2 quota.A-100=1",
    ),
]

SAFE = [
    Case(
        "what is held within a quota of a model stays, the newest though it is",
        "a 1xA100; b 2xT4",
        "p1 blue 1",
        "p1@b r1@a r2@b",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900; r3 red 1 on b:1 train age=800",
        projects="red quota=1 quota.a100=1; blue quota=1",
        evicted="r3",
    ),
    Case(
        "for who asks for the model by name without a quota of it, too",
        "a 1xA100; b 2xT4",
        "p1 blue 1 model=a100",
        "r1@a r2@b r3@b",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900; r3 red 1 on b:1 train age=800",
        projects="red quota=1 quota.a100=1; blue quota=1",
    ),
    Case(
        "without a quota of the model it goes",
        "a 1xA100; b 2xT4",
        "p1 blue 1 model=a100",
        "p1@a r2@b r3@b",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900; r3 red 1 on b:1 train age=800",
        projects="red quota=1; blue quota=1",
        evicted="r1",
    ),
    Case(
        "what is held beyond it goes",
        "a 2xA100",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100",
        projects="red quota=1 quota.a100=1; blue quota=1",
        evicted="r2",
    ),
    Case(
        "protected work on other GPUs uses up the quota, and the right with it",
        "a 1xA100; b 2xT4",
        "p1 red 1 train model=a100",
        "r1@a r2@b r3@b",
        running="r1 blue 1 on a:0 train; r2 red 1 on b:0; r3 red 1 on b:1",
        projects="red quota=2 quota.a100=1; blue quota=1",
    ),
    Case(
        "and with it what was safe",
        "a 1xA100; b 2xT4",
        "p1 blue 1 model=a100",
        "p1@a r2@b r3@b",
        running="r1 red 1 on a:0 train; r2 red 1 on b:0; r3 red 1 on b:1",
        projects="red quota=2 quota.a100=1; blue quota=1",
        evicted="r1",
    ),
    Case(
        "training on other GPUs does not; whose place it was takes that back",
        "a 1xA100; b 2xT4",
        "p1 red 1 train model=a100",
        "p1@a r1@b r2@b",
        running="r1 blue 1 on a:0 train; r2 red 1 on b:0 train age=900; r3 red 1 on b:1 train age=100",
        projects="red quota=1 quota.a100=1; blue quota=1",
        evicted="r1 r3",
    ),
    Case(
        "a department's quota bounds the right of its projects",
        "a 2xA100; b 2xT4",
        "p1 red 1 train model=a100; p2 pink 1 train model=a100",
        "p1@a r1@b r2@a",
        running="r1 blue 1 on a:0 train age=100; r2 blue 1 on a:1 train age=900",
        projects="red quota=1 quota.a100=1 dep=ml; pink quota=1 quota.a100=1 dep=ml; blue quota=4",
        departments="ml quota=1",
        evicted="r1",
    ),
    Case(
        "a gang that grew beyond it is not taken apart for that",
        "a 2xA100",
        "p1 blue 1 model=a100",
        "r1@a r1@a r1@a r2@a",
        running="r1.0 red 0.5 on a:0 train gang=2-3; r1.1 red 0.5 on a:0 train gang=2-3; "
        "r1.2 red 0.5 on a:1 train gang=2-3; r2 green 0.5 on a:1",
        projects="red quota=1 quota.a100=1; blue quota=1",
    ),
    Case(
        "it loses what it grew by",
        "a 2xA100",
        "p1 blue 0.5 model=a100",
        "p1@a r1@a r1@a r2@a",
        running="r1.0 red 0.5 on a:0 train gang=2-3 age=900; r1.1 red 0.5 on a:0 train gang=2-3 age=900; "
        "r1.2 red 0.5 on a:1 train gang=2-3; r2 green 0.5 on a:1",
        projects="red quota=1 quota.a100=1; blue quota=1",
        evicted="r1",
    ),
    Case(
        "who is on the way out is counted once as gone",
        "a 3xA100; b 1xA100 cordoned",
        "p1 red 1 train model=a100; p2 pink 1 train model=a100",
        "p2@a r1@a r4@a",
        running="r1 red 1 on a:0 train; r2 blue 1 on a:1 train age=100; r4 blue 1 on a:2 train age=900; "
        "r3 red 1 on b:0 train releasing",
        projects="red quota=3 quota.a100=1; blue quota=3; pink quota=1 quota.a100=1",
        evicted="r2",
    ),
    Case(
        "a reservation of its own does not count against the right",
        "a 1xA100; b 2xT4",
        "p1 red 1 model=a100 wait=900",
        "r1@a r2@b r3@b",
        running="r1 blue 1 on a:0 train age=10; r2 red 1 on b:0; r3 red 1 on b:1",
        projects="red quota=3 quota.a100=1; blue quota=1",
        reserved="",
        then=(("wait 60", "p1@a r2@b r3@b"),),
        evicted="r1",
    ),
    Case(
        "what is safe in a department is bounded by its quota as well",
        "a 1xA100; b 1xT4",
        "p1 blue 1 model=a100",
        "p1@a r2@b",
        running="r1 red 1 on a:0 train; r2 pink 1 on b:0",
        projects="red quota=1 quota.a100=1 dep=ml; pink quota=1 dep=ml; blue quota=1",
        departments="ml quota=1",
        evicted="r1",
    ),
    Case(
        "work that a turn is over for stays as well",
        "a 1xA100; b 1xT4",
        "p1 blue 1 train model=a100",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train age=5000; r2 red 1 on b:0 train age=5000",
        projects="red quota=1 quota.a100=1; blue quota=1",
        settings={"turn_s": 600.0},
    ),
]


@pytest.mark.parametrize("case", table(CASES + TAKING + SAFE))
def test_case(case: Case) -> None:
    case.check()


def test_wait_reason_names_model_quota_until_it_changes() -> None:
    w = world("a 3xA100", "p1 red 1 model=a100; p2 red 1 model=a100", projects="red quota=3 quota.a100=1")
    w.settle()
    why = w.scheduler.explain((WorkloadId("p2"), 0), NOW)
    assert why is not None
    assert "the quota by model of the project red is 1 GPU, 1 in use" in why.sentence.replace(".00", "")
    w.scheduler.apply(ProjectChanged(project("red quota=3")))
    w.settle()
    assert w.places() == "p1@a p2@a"


def test_eviction_message_names_model_quota() -> None:
    w = world(
        "a 1xA100; b 1xT4",
        "p1 red 1 model=a100",
        "r1 blue 1 on a:0 train",
        "red quota=1 quota.a100=1; blue quota=2",
    )
    w.step()
    (eviction,) = w.last.evictions
    assert eviction.reason.replace(".00", "") == (
        "blue has 1 GPUs of model a100; its quota for this model is 0; red reclaims its quota."
    )


def test_standing_shows_use_of_each_model() -> None:
    w = world(
        "a 2xA100; b 1xT4",
        "p1 red 1 model=a100",
        "r1 blue 1 on a:0 train; r2 red 1 on a:1; r3 red 1 on b:0 train releasing",
        "red quota=3 quota.A100=2 quota.t4=1; blue quota=2",
    )
    found = {row.project: row.of_models for row in w.scheduler.share_report(NOW).projects}
    assert [(of.model, of.quota_permille, of.held_permille) for of in found["red"]] == [
        ("a100", 2000, 1000),
        ("t4", 1000, 0),
    ]
    assert found["blue"] == ()


# --- termination, and all guaranteed GPUs are held


@st.composite
def demands(draw: st.DrawFn) -> Demands:
    """Generate projects with and without model quotas, some in a department, that want more than there is."""
    alike = draw(st.booleans())  # every workload requests whole GPUs by model
    nodes = draw(st.lists(st.sampled_from(["2xT4", "2xA100", "4xA100", "1xT4 2xA100", "4xT4"]), min_size=2, max_size=4))
    departments = [Department("ml", draw(st.sampled_from([None, 1000, 3000])))]
    projects = []
    for number in range(draw(st.integers(2, 6))):
        models = tuple(
            (name, permille)
            for name in ("a100", "t4")
            if (permille := draw(st.sampled_from([None, None, 500, 1000, 2000]))) is not None
        )
        more = draw(st.sampled_from([None, 0, 1000, 2000]))
        quota = None if more is None else more + sum(permille for _, permille in models)
        department = draw(st.sampled_from(["", "", "ml"]))
        projects.append(Project(f"p{number}", quota, model_quotas=models, department=department))
    some = [draw(waiting(number, projects, alike)) for number in range(draw(st.integers(6, 20)))]
    return nodes, departments, projects, some


@st.composite
def waiting(draw: st.DrawFn, number: int, projects: list[Project], alike: bool) -> list[PendingReplica]:
    """Draw one waiting replica, or the members of a gang."""
    wanted = draw(st.sampled_from(WHOLE if alike else PARTS))
    gang = draw(st.sampled_from([None] if alike else [None, None, None, Gang(2, 2), Gang(2, 3)]))
    first = PendingReplica(
        workload=WorkloadId(f"w{number:03}"),
        index=0,
        project=draw(st.sampled_from(projects)).name,
        user="ann",
        request=replace(wanted, models=draw(st.sampled_from([(), (), ("a100",), ("a100",), ("t4",)]))),
        queued_at=NOW + number / 100,
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        preemptible=draw(st.integers(0, 3)) > 0,
        gang=gang,
    )
    return [replace(first, index=index) for index in range(gang.most if gang else 1)]


class Pool:
    """Waiting work stays forever; evicted work waits again."""

    def __init__(self, nodes: list[str], departments: list[Department], projects: list[Project]) -> None:
        self.scheduler, self.now, self.evictions = Scheduler(), NOW, 0
        self.specs: dict[ReplicaKey, PendingReplica] = {}
        self.scheduler.apply_all(NodeChanged(node(f"n{at} {gpus}")) for at, gpus in enumerate(nodes))
        self.scheduler.apply_all(DepartmentChanged(department) for department in departments)
        self.scheduler.apply_all(ProjectChanged(project) for project in projects)

    def add(self, replica: PendingReplica) -> None:
        self.specs[replica.key] = replica
        self.scheduler.apply(PendingAdded(replica, self.now))

    def step(self) -> bool:
        leaving = [key for key, r in self.scheduler.demand.running.items() if r.releasing]
        self.now += 70
        safe = self.safe()
        decisions = self.scheduler.decide(self.now)
        ledger = self.scheduler.demand.ledger
        department = {p.name: p.department or p.name for p in ledger.projects}
        came = [grant.key for grant in decisions.grants] + [hold.key for hold in decisions.holds]
        grown = {department[self.specs[key].project] for key in came}  # and may have a smaller quota
        for eviction in decisions.evictions:
            whose, whom = self.specs[eviction.key].project, self.specs[eviction.for_workload, 0].project
            if whose != whom and department[whose] not in grown and eviction.kind is EvictionKind.RECLAIM:
                assert eviction.key not in safe, eviction
        self.evictions += len(decisions.evictions)
        for key in leaving:
            self.scheduler.apply(LeaseReleased(key))
            again = self.specs[key] = replace(self.specs[key], evictions=self.specs[key].evictions + 1)
            self.scheduler.apply(PendingAdded(again, self.now))
        return bool(decisions.grants or decisions.evictions or leaving)

    def rest(self, rounds: int) -> None:
        """Run until nothing moved for five rounds: a move that defragments may come later."""
        quiet = 0
        for _ in range(rounds):
            quiet = 0 if self.step() else quiet + 1
            if quiet == 5:
                return
        raise AssertionError(f"still moving after {rounds} rounds and {self.evictions} evictions")

    # --- guarantees, computed without the scheduler's books

    def held(self, project: str, model: str, *, protected: bool = False) -> int:
        return sum(
            share.permille
            for key, r in self.scheduler.demand.running.items()
            if r.lease.project == project and not r.releasing and not (protected and self.specs[key].preemptible)
            for share in r.lease.shares
            if not model or self.model_of(share.gpu_uuid) == model
        )

    def model_of(self, uuid: str) -> str:
        return next(g.model for gpus in self.scheduler.cluster.gpus for g in gpus if g.uuid == uuid).lower()

    def core(self, project: Project) -> int:
        core = self.held(project.name, "", protected=True) + self.coming(project.name, "", protected=True)
        for model, quota in project.model_quotas:
            within = min(self.held(project.name, model) + self.coming(project.name, model), quota)
            firm = self.held(project.name, model, protected=True) + self.coming(project.name, model, protected=True)
            core += max(0, within - firm)
        return core

    def coming(self, project: str, model: str, *, protected: bool = False) -> int:
        """Return the GPUs held for replicas that start as soon as others have ended."""
        return sum(
            share.permille
            for hold in self.scheduler.holds
            if hold.kind is HoldKind.NOMINATED and self.specs[hold.key].project == project
            if not (protected and self.specs[hold.key].preemptible)
            for share in hold.shares
            if not model or self.model_of(share.gpu_uuid) == model
        )

    def core_room(self, project: Project) -> float:
        ledger = self.scheduler.demand.ledger
        room = inf if project.quota_permille is None else project.quota_permille - self.core(project)
        if project.department:
            (quota,) = {d.quota_permille for d in ledger.departments if d is not None}
            inside = sum(self.core(other) for other in ledger.projects if other.department == project.department)
            room = min(room, inf if quota is None else quota - inside)
        return room

    def safe(self) -> set[ReplicaKey]:
        """Return the replicas on guaranteed GPUs only; with no more work for their project only these matter."""
        safe = set()
        for key, r in self.scheduler.demand.running.items():
            project = next(p for p in self.scheduler.demand.ledger.projects if p.name == r.lease.project)
            quotas, models = dict(project.model_quotas), {self.model_of(share.gpu_uuid) for share in r.lease.shares}
            within = all(self.held(project.name, m) <= quotas.get(m, -1) for m in models)
            gang = self.specs[key].gang is not None
            if within and not gang and not r.releasing and self.core_room(project) >= 0:
                safe.add(key)
        return safe


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(demands())
def test_evictions_end_and_model_quotas_are_held(demand: Demands) -> None:
    nodes, departments, projects, waiting = demand
    pool = Pool(nodes, departments, projects)
    for at, members in enumerate(waiting):
        for replica in members:
            pool.add(replica)
        if at % 4 == 0:
            pool.step()
    pool.rest(80)
    assert pool.evictions <= 3 * sum(map(len, waiting))
    if all(members[0].request in WHOLE_OF_ANY and len(members) == 1 for members in waiting):
        _all_is_held(pool)
        _quotas_are_held(pool)


def _all_is_held(pool: Pool) -> None:
    """Check that no replica waits for a GPU within a model quota while a reclaimable replica holds one.

    Nodes with holds are left out, because their GPUs may be promised, and so are projects with such holds.
    """
    safe, ledger = pool.safe(), pool.scheduler.demand.ledger
    kept = {hold.node for hold in pool.scheduler.holds}
    keeping = {pool.specs[hold.key].project for hold in pool.scheduler.holds}
    for waits in pool.scheduler.demand.pending.values():
        project = next(p for p in ledger.projects if p.name == waits.project)
        for model, quota in project.model_quotas:
            asks = waits.request.models == (model,) and project.name not in keeping
            room = min(quota - pool.held(project.name, model), pool.core_room(project))
            if not asks or min(room, ledger.room(pool.scheduler.demand.account_of(waits))) < 1000:
                continue
            for key, r in pool.scheduler.demand.running.items():
                others = r.preemptible and r.lease.project != waits.project and r.lease.node not in kept
                of_model = pool.model_of(r.lease.shares[0].gpu_uuid) == model
                assert not (others and of_model) or key in safe, (waits, r)


def _quotas_are_held(pool: Pool) -> None:
    """Check that no replica waits within quota while usable over-quota training of another project runs."""
    safe, ledger = pool.safe(), pool.scheduler.demand.ledger
    kept = {hold.node for hold in pool.scheduler.holds}
    keeping = {pool.specs[hold.key].project for hold in pool.scheduler.holds}
    by_name = {p.name: p for p in ledger.projects if not p.department and p.quota_permille is not None}
    for waits in pool.scheduler.demand.pending.values():
        project = by_name.get(waits.project)
        if project is None or project.name in keeping:
            continue
        within = pool.held(project.name, "") + 1000 <= (project.quota_permille or 0)
        if not within or ledger.room(pool.scheduler.demand.account_of(waits)) < 1000:
            continue
        for key, r in pool.scheduler.demand.running.items():
            other = by_name.get(r.lease.project)
            if other is None or other is project or not r.preemptible or r.lease.node in kept or key in safe:
                continue
            fits = not waits.request.models or pool.model_of(r.lease.shares[0].gpu_uuid) in waits.request.models
            assert not fits or pool.held(other.name, "") <= (other.quota_permille or 0), (waits, r)
