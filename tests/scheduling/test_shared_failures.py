"""A search that fails speaks for others: the decisions are the same as if each group were searched for by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from scheduling_world import NOW, world

from gpupool.scheduling.eviction.preemption import Preemption
from gpupool.scheduling.eviction.reclaim import Reclaim
from gpupool.scheduling.eviction.time_slicing import _Rotation
from gpupool.scheduling.gang_placement import GangRefusals

PROJECTS, USERS = ["red", "blue", "green", "tan"], ["ann", "bob", "eve"]
GREEDY = "grey"  # holds most GPUs
SEEDS = 200


@dataclass(frozen=True)
class Pool:
    """A pool in words; see ``scheduling_world``."""

    nodes: str
    pending: str
    running: str
    projects: str
    users: str = ""
    turn_s: float = 0.0

    def decide(self) -> tuple[list[tuple[str, int, str]], list[str]]:
        """Return the starts and the evictions of one cycle."""
        options = {"turn_s": self.turn_s} if self.turn_s else {}
        decisions = world(
            self.nodes, self.pending, self.running, self.projects, self.users, **options
        ).scheduler.decide(NOW)
        starts = sorted((str(grant.workload), grant.index, grant.node) for grant in decisions.grants)
        return starts, sorted(str(eviction.workload) for eviction in decisions.evictions)


class Forgetful(set[Any]):
    """A set that stays empty."""

    def add(self, element: Any) -> None:
        """Add nothing."""


@contextmanager
def separate_searches() -> Iterator[None]:
    """Let no failed search speak for other groups."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Reclaim, Preemption, _Rotation):
            patch.setattr(kind, "__init__", _forgetful(kind.__init__))
        patch.setattr(Reclaim, "_fail_with", lambda *_args, **_options: None)
        patch.setattr(GangRefusals, "cover", lambda *_args: False)
        yield


def _forgetful(make: Any) -> Any:
    def init(self: Any, *args: Any) -> None:
        make(self, *args)
        for name in {"_hopeless", "_outgrown"} & vars(self).keys():
            setattr(self, name, Forgetful())

    return init


def full_pool(seed: int) -> Pool:
    """Return a pool that is almost full, with a few kinds of waiting work and many limits."""
    r = random.Random(seed)
    nodes = [(r.choice(["T4", "A100"]), r.randint(1, 3)) for _ in range(r.randint(1, 3))]
    running: list[str] = []
    for node, slot in [(node, slot) for node, (_, count) in enumerate(nodes) for slot in range(count)]:
        left = 1000
        while left and r.random() < 0.9:
            each = min(left, r.choice([1000, 1000, 500, 300, 700]))
            left -= each
            owner = f"{GREEDY if r.random() < 0.7 else r.choice(PROJECTS)}/{r.choice([*USERS, 'kim'])}"
            part, kind = each / 1000 if left or each < 1000 else 1, " train" if r.random() < 0.75 else ""
            place = f"on n{node}:{slot} age={r.choice([900, 9000])} prio={r.choice([0, 0, 0, 5])}"
            running.append(f"r{len(running)} {owner} {part} {place}{kind}")
    shapes = r.choices(["1", "1", "0.5", "0.8", "0.8", "0.3", "8000M", "8000M", "12000M", "2"], k=r.randint(1, 2))
    pending = [
        f"p{number} {r.choice(PROJECTS)}/{r.choice(USERS)} {r.choice(shapes)} prio={r.choice([0, 0, 0, 5])}"
        f"{' train' if r.random() < 0.7 else ''}{r.choice([''] * 6 + [' gang=2', ' gang=2-3', ' model=T4'])}"
        for number in range(r.randint(2, 7))
    ]
    quota = r.choice(["", " quota=0.2", " quota=1", " quota=2"])
    projects = [
        f"{name}{quota if r.random() < 0.8 else ''}{r.choice([''] * 8 + [' limit=0.4', ' limit=1', ' quota.t4=1'])}"
        for name in PROJECTS
    ]
    projects.append(f"{GREEDY}{r.choice(['', ' quota=0'])}")
    users = [f"{name} limit={r.choice([0.2, 0.4, 0.6, 1])}" for name in USERS if r.random() < 0.3]
    where = "; ".join(f"n{number} {count}x{model}" for number, (model, count) in enumerate(nodes))
    return Pool(where, *map("; ".join, (pending, running, projects, users)), r.choice([0.0, 600.0]))


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_decisions_are_those_of_separate_searches(first: int) -> None:
    for seed in range(first, first + 100):
        shared = full_pool(seed).decide()
        with separate_searches():
            assert full_pool(seed).decide() == shared, full_pool(seed)


@pytest.mark.parametrize(
    "pool",
    [
        Pool(
            "n0 2xT4; n1 2xA100",
            "p0 red/eve 0.3 train; p1 green/ann 0.3 wait=1000; p3 red/ann 0.3 prio=5 wait=1000",
            "r0 red/ann 0.5 on n0:0 age=9000 train; r1 green/bob 0.5 on n0:0 age=900 train prio=5; "
            "r2 green/kim 0.5 on n0:1 age=900 train; r3 red/ann 0.5 on n0:1 age=900 prio=5; "
            "r4 grey/ann 0.5 on n1:0 age=9000 train; r5 grey/kim 0.5 on n1:0 age=900 train prio=5; "
            "r6 grey/kim 0.7 on n1:1 age=900 train; r7 grey/ann 0.3 on n1:1 age=9000 train prio=5",
            "red; blue quota=2 limit=0.4; green quota=2; grey",
        ),
        Pool(
            "n0 3xA100; n1 2xA100",
            "p0 tan/bob 0.5 train wait=1000; p1 blue/eve 0.5 prio=5 train; p2 tan/bob 0.5 prio=5 wait=1000; "
            "p3 red/eve 0.5 prio=5 train wait=1000",
            "r0 grey/eve 0.5 on n0:0 age=900 train; r1 tan/bob 0.5 on n0:0 age=9000 train; "
            "r2 grey/bob 0.5 on n0:1 age=900; r3 grey/bob 0.5 on n0:1 age=900 train; "
            "r4 blue/eve 0.5 on n0:2 age=900 train; r5 grey/ann 0.5 on n0:2 age=900; "
            "r6 green/kim 1 on n1:0 age=900 train; r7 grey/ann 0.7 on n1:1 age=9000 train prio=5; "
            "r8 grey/eve 0.3 on n1:1 age=9000",
            "red quota=2 limit=0.4; blue quota=2; green; tan; grey",
            turn_s=600.0,
        ),
    ],
    ids=["within a project", "between projects, with turns"],
)
def test_protected_work_does_not_speak_for_training(pool: Pool) -> None:
    shared = pool.decide()
    with separate_searches():
        assert pool.decide() == shared
    assert len(shared[1]) == 2
