"""Problems of services over time, and the warnings of their owners."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pool_world import ANN, World
from test_service_serving import new, pass_turns, request, serving, view

from gpupool.domain.events import Reason
from gpupool.domain.protocol.gateway_table import Load
from gpupool.services.ports.store import EventFilter
from gpupool.services.serving.problems import (
    FULL_S,
    NOT_READY_S,
    REFUSED_S,
    REPEAT_S,
    ProblemKind,
    ServiceFacts,
    ServiceProblems,
    recalled,
)

GOOD = ServiceFacts(desired=1, ready=1, maximum=4, scales=True, wanted=1)


def kinds(problems: ServiceProblems) -> list[ProblemKind]:
    return [each.kind for each in problems.now]


@pytest.mark.parametrize(
    ("facts", "after_s", "kind"),
    [
        (replace(GOOD, ready=0), NOT_READY_S, ProblemKind.NOT_READY),
        (replace(GOOD, desired=4, ready=4, wanted=6), FULL_S, ProblemKind.FULL),
    ],
)
def test_problem_counts_after_it_has_lasted(facts: ServiceFacts, after_s: float, kind: ProblemKind) -> None:
    problems = ServiceProblems()
    assert problems.look(facts, 100.0) == []
    assert problems.look(facts, 99.0 + after_s) == []
    [new_one] = problems.look(facts, 100.0 + after_s)
    assert (new_one.kind, recalled(new_one.message)) == (kind, kind)
    assert problems.look(facts, 200.0 + after_s) == []  # warned already
    assert kinds(problems) == [kind]
    problems.look(GOOD, 300.0 + after_s)
    assert kinds(problems) == []
    problems.look(facts, 400.0 + after_s)
    assert problems.look(facts, 400.0 + 2 * after_s) == []  # the same within hours
    assert len(problems.look(facts, 400.0 + 2 * after_s + REPEAT_S)) == 1


def test_refused_requests_are_a_problem_for_a_while() -> None:
    problems = ServiceProblems()
    [one] = problems.look(replace(GOOD, refused=3), 0.0)
    assert "3 were answered with 503" in one.message
    problems.look(replace(GOOD, refused=2), 10.0)
    assert "5 were" in problems.now[0].message
    problems.look(GOOD, 10.0 + REFUSED_S)
    assert kinds(problems) == []


def test_stopped_and_idle_services_have_no_problems() -> None:
    for facts in (
        replace(GOOD, stopped=True, ready=0, refused=9, wanted=9, interrupted=2),
        replace(GOOD, desired=0, ready=0),
        replace(GOOD, scales=False, maximum=1, wanted=9),
    ):
        problems = ServiceProblems()
        problems.look(facts, 0.0)
        assert problems.look(facts, 10 * FULL_S) == []


async def warnings(world: World) -> list[str]:
    found = await world.now.engine.ports.store.list_events(EventFilter(reasons=(Reason.SERVICE_WARNING,)))
    return [event.message for event in found]


def test_owner_is_warned_once_of_a_service_that_is_not_ready(world: World) -> None:
    async def story() -> None:
        row = await serving(world).create(ANN, request(service={"ready": {"within": "1h"}}))
        for _ in range(6):
            await world.pass_time(NOT_READY_S / 4)
        [said] = await warnings(world)
        assert said.startswith("not ready for 5m")
        assert "No process of the job listens" in said
        assert [each.kind for each in view(world).status.problems.now] == [ProblemKind.NOT_READY]
        await world.reboot()
        for _ in range(6):
            await world.pass_time(NOT_READY_S / 4)
        assert len(await warnings(world)) == 1
        assert row.user == "ann"

    world.do(story())


def test_refused_requests_and_a_given_up_revision_are_warnings(world: World) -> None:
    async def story() -> None:
        row = await new(world)
        serving(world).controller.take(Load(row.key, 0, 0, 2, 2, refused=2))
        await pass_turns(world)
        assert "requests refused: 2 were answered with 503" in (await warnings(world))[0]
        await serving(world).update(ANN, "chat", request(env={"A": "1"}, service={"ready": {"within": "20s"}}))
        for _ in range(40):
            world.agent.listening = {each.view.id for each in view(world).replicas if each.view.revision == 1}
            await world.pass_time(1.1)
        found = view(world)
        assert (found.service.target, "was not used" in found.service.failure) == (1, True)
        assert "chat stays with revision 1: no replica became ready within 20s" in (await warnings(world))[-1]

    world.do(story())
