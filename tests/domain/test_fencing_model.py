"""Check: at most one live attempt of a replica under cuts, delays, freezes, kills and wrong clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import pytest
from fencing_model import DATABASE, HEADS, NODES, WORKLOADS, World
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpupool.domain.protocol import fencing
from gpupool.domain.protocol.fencing import HeartbeatCounter

ALL = (DATABASE, *HEADS, *NODES)
QUIET_S = 30.0  # until both replicas run
FAULTS_S = 200.0
HEALING_S = 150.0


@dataclass(frozen=True)
class Fault:
    """A fault with its start and duration."""

    kind: str
    at: float
    lasts_s: float
    side: frozenset[str]  # a partition cuts these from the others
    name: str

    def happen(self, world: World) -> None:
        until = world.now + self.lasts_s
        match self.kind:
            case "cut" | "cut to" | "cut from":
                for here in self.side:
                    for there in set(ALL) - self.side:
                        if self.kind != "cut from":
                            world.cut[here, there] = until
                        if self.kind != "cut to":
                            world.cut[there, here] = until
            case "freeze":
                process = world.heads.get(self.name) or world.nodes.get(self.name)
                if process is not None:
                    process.frozen = True
                    world.at(until, lambda: setattr(process, "frozen", False))
            case "restart":
                found = world.heads.get(self.name) or world.nodes.get(self.name) or world.database
                found.restart()
            case "database away":
                world.database.restart()
                world.database.down = True
                world.at(until, lambda: setattr(world.database, "down", False))


kinds = st.sampled_from(["cut", "cut", "cut to", "cut from", "freeze", "restart", "database away"])
faults = st.builds(
    Fault,
    kinds,
    st.floats(0, FAULTS_S / 2),
    st.sampled_from([1.0, 5.0, 12.0, 30.0, 120.0, 120.0, 200.0]),
    st.builds(frozenset, st.sampled_from([s for n in range(1, len(ALL)) for s in combinations(ALL, n)])),
    st.sampled_from(ALL),
)


@dataclass(frozen=True)
class Story:
    """A world, and what goes wrong in it."""

    rates: dict[str, float]
    seed: int
    slow_s: float
    fence_s: float
    faults: list[Fault]

    def play(self) -> World:
        world = World(self.rates, self.seed, self.slow_s, self.fence_s)
        world.run(QUIET_S)
        for fault in self.faults:
            world.at(QUIET_S + fault.at, lambda fault=fault: fault.happen(world))  # type: ignore[misc]
        world.run(QUIET_S + FAULTS_S)
        return world


stories = st.builds(
    Story,
    st.fixed_dictionaries({name: st.sampled_from([0.99, 1.0, 1.01]) for name in ALL}),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1.0, 5.0, 60.0]),
    st.sampled_from([20.0, 45.0]),
    st.lists(faults, min_size=1, max_size=6),
)
lenient = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(lenient, max_examples=150)
@given(stories)
def test_replica_never_runs_twice(story: Story) -> None:
    world = story.play()
    world.cut.clear()
    world.later.clear()
    world.slow_s, world.database.down = 0.0, False
    for process in (*world.heads.values(), *world.nodes.values()):
        process.frozen = False
    world.run(world.now + HEALING_S)
    assert sum(len(node.programs) for node in world.nodes.values()) == len(WORKLOADS), world.describe()


def always_counts(
    self: HeartbeatCounter, *, leads: bool, real: Callable[..., tuple[int, int]] = HeartbeatCounter.ping
) -> tuple[int, int]:
    del leads
    return real(self, leads=True)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "pings count without leadership": lambda patch: patch.setattr(HeartbeatCounter, "ping", always_counts),
    "the new leader waits for the fence only": lambda patch: patch.setattr(fencing, "certain_after_s", lambda f: f),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_model_finds_wrong_rules(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)

    @settings(lenient, max_examples=1000, phases=[Phase.generate])
    @given(stories)
    def play_all(story: Story) -> None:
        story.play()

    with pytest.raises(AssertionError, match="two attempts live"):
        play_all()


def start_that_comes_late(*, leader_is_lost: bool) -> World:
    """Delay a start for 300 s; meanwhile its node is lost, the work runs on another node, and the node comes back."""
    world = World(dict.fromkeys(ALL, 1.0), 1, 0.0, 20.0)
    world.run(QUIET_S)
    leader = next(head for head in world.heads.values() if head.held())
    other = next(head for head in world.heads.values() if head is not leader)
    lost, kept = world.nodes["n0"], world.nodes["n1"]
    world.cut_off(kept.name)
    world.run_while(lambda: not all(row.node == lost.name for row in world.database.rows.values()))
    attempts = {workload: row.attempt for workload, row in world.database.rows.items()}
    world.starts_late_s = 300.0
    lost.end_programs()
    world.run_while(lambda: any(row.attempt == attempts[workload] for workload, row in world.database.rows.items()))
    world.starts_late_s = 0.0
    world.cut_off(lost.name, *([leader.name] if leader_is_lost else []))
    world.join(kept.name, *([] if leader_is_lost else [leader.name]), other.name, DATABASE)
    world.run_while(lambda: len(kept.programs) < len(WORKLOADS))
    world.join(lost.name, kept.name, other.name, DATABASE)
    if leader_is_lost:  # only its old messages still arrive
        world.cut.pop((leader.name, lost.name), None)
    else:
        world.join(lost.name, leader.name)
    world.run(world.now + 400)
    return world


def test_late_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for leader_is_lost in (False, True):
        start_that_comes_late(leader_is_lost=leader_is_lost)
    monkeypatch.setattr(World, "supersedes", False)
    with pytest.raises(AssertionError, match="two attempts live"):
        start_that_comes_late(leader_is_lost=False)
    start_that_comes_late(leader_is_lost=True)
    monkeypatch.setattr(fencing, "is_deposed", lambda _term, _seen: False)
    with pytest.raises(AssertionError, match="two attempts live"):
        start_that_comes_late(leader_is_lost=True)
