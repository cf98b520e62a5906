"""The order in which projects come up in a cycle, compared with the keys of all projects at that time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import NOW, world

from gpupool.scheduling.scheduler import ProjectChanged
from gpupool.scheduling.scheduling_order import SchedulingOrder, Wanted
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.queue_tables import DeadShapes, FirstGroups

PROJECTS = "red dep=ml quota=2; blue dep=ml; green dep=ops quota=3; grey; pink quota=1"
NAMES = ("red", "blue", "green", "grey", "pink")


# grant, drop, an eviction and a grant, the shape is dead, the shape is not wanted in some projects
STEPS = st.lists(st.tuples(st.sampled_from("gdexf"), st.sets(st.sampled_from(NAMES))), max_size=20)
REQUESTS = st.lists(st.sampled_from(["0.25", "0.5", "1", "2", "4"]), min_size=20, max_size=20)


class Unfailed(Wanted):
    """The work whose shape has not failed in its project."""

    def __init__(self) -> None:
        self.failed: set[tuple[int, Shape]] = set()

    def wants(self, project: int, shape: Shape) -> bool:
        return (project, shape) not in self.failed

    def wants_rows(self, firsts: FirstGroups, rows: Ints, least: Ints) -> Bools:
        wanted = np.ones(len(least), np.bool_)
        for project, shape in self.failed:
            wanted &= ~(firsts.of_shapes({shape}, rows) & (firsts.project[rows] == project))
        return wanted


@given(st.lists(st.sampled_from(NAMES), min_size=8, max_size=8), REQUESTS, STEPS)
def test_most_deprived_project_comes_up_after_any_change(
    owners: list[str], requests: list[str], steps: Sequence[tuple[str, set[str]]]
) -> None:
    running = "; ".join(f"r{n} {owner} 0.5 on {'ab'[n // 4]}:{n % 4} train" for n, owner in enumerate(owners))
    named = [(name, at, requests[len(NAMES) * at + n]) for at in range(4) for n, name in enumerate(NAMES)]
    pending = "; ".join(f"p{name}{at} {name} {request} wait={90 - 10 * at}" for name, at, request in named)
    scheduler = world("a 4xT4; b 4xT4", projects=PROJECTS, running_=running, pending_=pending).scheduler
    demand = scheduler.demand
    session = SchedulingSession(scheduler.placer, demand, NOW, scheduler.settings)
    dead, wanted = DeadShapes(demand.first_groups().shapes), Unfailed()
    turns = SchedulingOrder(session, demand.project_queues, dead, wanted)
    victims = list(demand.running)
    try:
        for step, projects in steps:
            first = turns.next()
            if first is None:
                return
            group, replica, queue = first
            project = group.account.project
            keys = {other: found[0][:4] for other in demand.project_queues if (found := turns._find(other))}
            assert keys[project] == min(keys.values())
            claim = session.find(group.shape, group.account) if step in "ge" else None
            if step == "e" and victims:
                session.discharge_running(victims.pop())
            if claim is not None:
                session.charge(claim, group.account)
                session.outcome.grant(replica, claim, group.account)
            else:
                queue.drop()
            if step == "x":
                dead.add(group.shape)
                assert not turns.alive()[dead.shapes.number(group.shape)]
            if step == "f":
                numbers = {n for n, known in enumerate(session.ledger.projects) if known.name in projects}
                wanted.failed |= {(number, group.shape) for number in numbers | {project}}
                turns.renew(dead.shapes.mask([group.shape]))
            turns.again(project)
    finally:
        session.close()


def test_new_weights_in_project_change_the_order_of_its_users_at_once() -> None:
    running = "r1 red/ann 1 on a:0; r2 red/bob 1 on a:1"
    w = world("a 3xT4", "p1 red/ann 1 wait=99; p2 red/bob 1 wait=9", running, projects="red")
    demand = w.scheduler.demand
    number = next(iter(demand.project_queues))
    red = demand.ledger.projects[number]

    def first() -> str:
        demand.wake(NOW)
        return next(group.entries[0][2].user for _, group in demand.heads(number).values())

    assert first() == "ann"
    heavier = replace(red, rules=replace(red.rules, user_weights=(("bob", 2.0),)))
    w.scheduler.apply(ProjectChanged(heavier))
    assert first() == "bob"
