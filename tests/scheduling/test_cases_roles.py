"""Work without GPUs, and gangs whose members ask for different things: a launcher, parameter servers and workers."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduling_cases import Case, table
from scheduling_world import World, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.scheduling.feasible import check_gang_possible
from gpupool.scheduling.wait_case import WaitCode

CASES = [
    Case("no GPU is needed", "a 1xT4 cpus=4", "p1 red 0 cpus=2", "p1@a"),
    Case("a machine without GPUs will do", "a 0xT4 cpus=4", "p1 red 0 cpus=2", "p1@a"),
    Case("processors are counted", "a 1xT4 cpus=4", "p1 red 0 cpus=3; p2 red 0 cpus=3", "p1@a"),
    Case(
        "and given back",
        "a 1xT4 cpus=4",
        "p1 red 0 cpus=3",
        "r1@a",
        running="r1 red 0 on a: cpus=3",
        then=(("end r1", "p1@a"),),
    ),
    Case(
        "a full GPU does not matter",
        "a 1xT4 cpus=4",
        "p1 red 0 cpus=1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 cpus=2",
    ),
    Case("nor a failed one", "a 1xT4 cpus=4 failed=0", "p1 red 0 cpus=1", "p1@a"),
    Case("it takes processors where no GPU needs them", "a 4xT4 cpus=8; b 1xT4 cpus=8", "p1 red 0 cpus=8", "p1@b"),
    Case("a node that is cordoned gets none", "a 1xT4 cpus=4 cordoned", "p1 red 0 cpus=1", ""),
    Case("a label is asked for", "a 1xT4 cpus=4; b 1xT4 cpus=4 zone=x", "p1 red 0 cpus=1 zone=x", "p1@b"),
    Case("a quota of GPUs is not used", "a 1xT4 cpus=4", "p1 red 0 cpus=1", "p1@a", projects="red quota=0 strict"),
    Case(
        "nor is being above it in the way",
        "a 2xT4 cpus=4",
        "p1 red 0 cpus=1",
        "p1@a r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=0 strict",
    ),
    Case(
        "nobody has to go for it",
        "a 1xT4 cpus=4",
        "p1 blue 0 cpus=4 prio=9",
        "r1@a",
        running="r1 red 1 on a:0 train cpus=4",
        projects="red quota=0; blue quota=1",
    ),
    Case("many of them fill the processors", "a 1xT4 cpus=4", "p1 red 0 gang=2-9 cpus=1", "p1@a p1@a p1@a p1@a"),
    Case("a launcher and its workers", "a 2xT4", "p1 red 0+1+1", "p1@a p1@a p1@a"),
    Case("on two nodes", "a 1xT4; b 1xT4", "p1 red 0+1+1", "p1@a p1@a p1@b"),
    Case("all or none", "a 1xT4", "p1 red 0+1+1; p2 red 1", "p2@a"),
    Case(
        "the launcher waits with them",
        "a 2xT4",
        "p1 red 0+1+1",
        "r1@a",
        running="r1 red 1 on a:0",
        then=(("end r1", "p1@a p1@a p1@a"),),
    ),
    Case("large and small", "a 4xT4; b 1xT4", "p1 red 1+4", "p1@a p1@b"),
    Case("large and small have no room for both", "a 4xT4", "p1 red 1+4", ""),
    Case("parts and wholes", "a 2xT4", "p1 red 0.5+0.5+1", "p1@a p1@a p1@a"),
    Case("within one rack", "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y", "p1 red 0+1+1 gang=3 within=rack!",
         "p1@b p1@b p1@c"),
    Case("the first of them start, the others join", "a 2xT4", "p1 red 0+1+1+1 gang=3-4", "p1@a p1@a p1@a",
         then=(("node b 1xT4", "p1@a p1@a p1@a p1@b"),)),
    Case(
        "one that failed joins again with what it asks for",
        "a 2xT4",
        "p1 red 0+1+1",
        "p1@a p1@a p1@a",
        then=(("requeue p1.2", "p1@a p1@a p1@a"), ("requeue p1.0", "p1@a p1@a p1@a")),
    ),
    Case(
        "owed space is made for all of it",
        "a 2xT4",
        "p1 blue 0+1+1 cpus=1",
        "p1@a p1@a p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "one victim is enough where only the worker has no place",
        "a 2xT4",
        "p1 blue 0+1",
        "p1@a p1@a r2@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=2000",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "the starving gets what frees first",
        "a 2xT4",
        "p1 blue 0+1+1 wait=900; p2 blue 1 wait=5",
        "r1@a",
        running="r1 red 1 on a:0 end=100",
        then=(("end r1", "p1@a p1@a p1@a"),),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()


def granted(w: World) -> dict[int, tuple[str, int]]:
    """What the members were given: by index the node and how many GPUs."""
    return {grant.index: (grant.node, len(grant.shares)) for grant in w.scheduler.decide(w.now).grants}


def test_each_member_gets_what_it_asks_for() -> None:
    w = world("a 4xT4; b 2xT4", "p1 red 0+2+1+2 cpus=1")
    found = granted(w)
    assert [found[index][1] for index in range(4)] == [0, 2, 1, 2]


def test_members_that_may_come_later_are_the_last_ones() -> None:
    w = world("a 2xT4", "p1 red 0+1+2+1 gang=2-4")
    assert {index: gpus for index, (_, gpus) in granted(w).items()} == {0: 0, 1: 1, 3: 1}


def test_why_a_member_waits_is_about_what_it_asks_for() -> None:
    w = world("a 1xT4 cpus=2", "p1 red 0 cpus=2", "r1 red 0 on a: cpus=1")
    w.scheduler.decide(w.now)
    told = w.scheduler.explain(("p1", 0), w.now)
    assert told is not None
    assert told.code is WaitCode.CPU_OR_MEMORY
    assert "a place without a GPU with 2 CPUs" in told.sentence
    w = world("a 1xT4", "p1 red 0+1+1")
    w.scheduler.decide(w.now)
    told = w.scheduler.explain(("p1", 1), w.now)
    assert told is not None
    assert "1 GPU for each of 2 members" in told.sentence


@pytest.mark.parametrize(
    ("nodes", "members", "possible"),
    [
        ("a 2xT4 cpus=4", "0+1+1 cpus=1", True),
        ("a 2xT4 cpus=2", "0+1+1 cpus=1", False),
        ("a 2xT4", "0+1+2", False),
        ("a 2xT4; b 1xT4", "0+1+2", True),
        ("a 2xT4; b 1xT4", "0+1+2 gang=3 within=node!", False),
        ("a 2xT4 mem=100", "0+1 mem=60", False),
        ("a 2xT4", "0+1+3", False),
    ],
)
def test_what_could_never_start_is_known_beforehand(nodes: str, members: str, possible: bool) -> None:
    w = world(nodes, f"p1 red {members}")
    waiting = list(w.scheduler.demand.pending.values())
    shapes = Counter(w.scheduler.demand.shape_of(member) for member in waiting)
    gang = waiting[0].gang
    assert gang is not None
    if possible:
        check_gang_possible(w.scheduler.placer, shapes, gang)
        return
    with pytest.raises(GpupoolError) as refused:
        check_gang_possible(w.scheduler.placer, shapes, gang)
    assert refused.value.code is ErrorCode.IMPOSSIBLE_REQUEST
