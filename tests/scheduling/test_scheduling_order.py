"""The order in which projects come up in a cycle, compared with the keys of all projects at that time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import NOW, world

from gpupool.scheduling.scheduling_order import SchedulingOrder
from gpupool.scheduling.session import SchedulingSession

PROJECTS = "red dep=ml quota=2; blue dep=ml; green dep=ops quota=3; grey; pink quota=1"
NAMES = ("red", "blue", "green", "grey", "pink")


@given(st.lists(st.sampled_from(NAMES), min_size=8, max_size=8), st.lists(st.sampled_from("dge"), max_size=16))
def test_most_deprived_project_comes_up_after_grants_and_evictions(owners: list[str], steps: str) -> None:
    running = "; ".join(f"r{n} {owner} 0.5 on {'ab'[n // 4]}:{n % 4} train" for n, owner in enumerate(owners))
    pending = "; ".join(f"p{name}{n} {name} 0.5 wait={90 - 10 * n}" for name in NAMES for n in range(4))
    scheduler = world("a 4xT4; b 4xT4", projects=PROJECTS, running_=running, pending_=pending).scheduler
    session = SchedulingSession(scheduler.placer, scheduler.demand, NOW, scheduler.settings)
    turns = SchedulingOrder(session, scheduler.demand.project_queues, set(), lambda *_: True)
    victims = list(scheduler.demand.running)
    try:
        for step in steps:
            first = turns.next()
            if first is None:
                return
            group, replica, queue = first
            project = group.account.project
            keys = {other: found[0][:3] for other in scheduler.demand.project_queues if (found := turns._find(other))}
            assert keys[project] == min(keys.values())
            claim = session.find(group.shape, group.account) if step != "d" else None
            if step == "e" and victims:
                session.discharge_running(victims.pop())
            if claim is None:
                queue.drop()
            else:
                session.charge(claim, group.account)
                session.outcome.grant(replica, claim, group.account)
            turns.again(project)
    finally:
        session.close()
