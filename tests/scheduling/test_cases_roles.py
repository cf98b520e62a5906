"""Cases of work without GPUs, and of gangs with different requests: launcher, parameter servers and workers."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduling_cases import Case, table
from scheduling_world import World, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.scheduling.explain.feasibility import check_gang_possible
from gpupool.scheduling.explain.wait_case import WaitCode

CASES = [
    Case("a replica without GPUs starts", "a 1xT4 cpus=4", "p1 red 0 cpus=2", "p1@a"),
    Case("a replica without GPUs starts on a node without GPUs", "a 0xT4 cpus=4", "p1 red 0 cpus=2", "p1@a"),
    Case("CPUs of replicas without GPUs are counted", "a 1xT4 cpus=4", "p1 red 0 cpus=3; p2 red 0 cpus=3", "p1@a"),
    Case(
        "CPUs are free again when a replica without GPUs ends",
        "a 1xT4 cpus=4",
        "p1 red 0 cpus=3",
        "r1@a",
        running="r1 red 0 on a: cpus=3",
        then=(("end r1", "p1@a"),),
    ),
    Case(
        "a replica without GPUs starts next to a used GPU",
        "a 1xT4 cpus=4",
        "p1 red 0 cpus=1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 cpus=2",
    ),
    Case("a replica without GPUs starts next to a failed GPU", "a 1xT4 cpus=4 failed=0", "p1 red 0 cpus=1", "p1@a"),
    Case(
        "a replica without GPUs goes to the node with fewer GPUs",
        "a 4xT4 cpus=8; b 1xT4 cpus=8",
        "p1 red 0 cpus=8",
        "p1@b",
    ),
    Case("a replica without GPUs does not start on a cordoned node", "a 1xT4 cpus=4 cordoned", "p1 red 0 cpus=1", ""),
    Case(
        "a replica without GPUs goes to a node with its label",
        "a 1xT4 cpus=4; b 1xT4 cpus=4 zone=x",
        "p1 red 0 cpus=1 zone=x",
        "p1@b",
    ),
    Case(
        "a replica without GPUs needs no quota",
        "a 1xT4 cpus=4",
        "p1 red 0 cpus=1",
        "p1@a",
        projects="red quota=0 strict",
    ),
    Case(
        "a replica without GPUs starts although its project is above its quota",
        "a 2xT4 cpus=4",
        "p1 red 0 cpus=1",
        "p1@a r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=0 strict",
    ),
    Case(
        "nothing is evicted for a replica without GPUs",
        "a 1xT4 cpus=4",
        "p1 blue 0 cpus=4 prio=9",
        "r1@a",
        running="r1 red 1 on a:0 train cpus=4",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "a gang without GPUs fills the CPUs of a node",
        "a 1xT4 cpus=4",
        "p1 red 0 gang=2-9 cpus=1",
        "p1@a p1@a p1@a p1@a",
    ),
    Case("a launcher without GPUs starts with its workers", "a 2xT4", "p1 red 0+1+1", "p1@a p1@a p1@a"),
    Case("a launcher and its workers start on two nodes", "a 1xT4; b 1xT4", "p1 red 0+1+1", "p1@a p1@a p1@b"),
    Case("a launcher and its workers wait when one worker does not fit", "a 1xT4", "p1 red 0+1+1; p2 red 1", "p2@a"),
    Case(
        "a launcher waits until all workers fit",
        "a 2xT4",
        "p1 red 0+1+1",
        "r1@a",
        running="r1 red 1 on a:0",
        then=(("end r1", "p1@a p1@a p1@a"),),
    ),
    Case("members of different sizes start on two nodes", "a 4xT4; b 1xT4", "p1 red 1+4", "p1@a p1@b"),
    Case("members of different sizes wait when one does not fit", "a 4xT4", "p1 red 1+4", ""),
    Case("members with slices and whole GPUs start together", "a 2xT4", "p1 red 0.5+0.5+1", "p1@a p1@a p1@a"),
    Case(
        "members with different requests start in one rack",
        "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y",
        "p1 red 0+1+1 gang=3 within=rack!",
        "p1@b p1@b p1@c",
    ),
    Case(
        "the first members start and the others join later",
        "a 2xT4",
        "p1 red 0+1+1+1 gang=3-4",
        "p1@a p1@a p1@a",
        then=(("node b 1xT4", "p1@a p1@a p1@a p1@b"),),
    ),
    Case(
        "a failed member rejoins with its own request",
        "a 2xT4",
        "p1 red 0+1+1",
        "p1@a p1@a p1@a",
        then=(("requeue p1.2", "p1@a p1@a p1@a"), ("requeue p1.0", "p1@a p1@a p1@a")),
    ),
    Case(
        "a gang with a launcher reclaims its quota",
        "a 2xT4",
        "p1 blue 0+1+1 cpus=1",
        "p1@a p1@a p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "a gang whose roles have equal requests reclaims its quota",
        "a 2xT4",
        "p1 blue 1+1",
        "p1@a p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "one victim is evicted when only a worker has no place",
        "a 2xT4",
        "p1 blue 0+1",
        "p1@a p1@a r2@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=2000",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "a starving gang with a launcher gets a reservation",
        "a 2xT4",
        "p1 blue 0+1+1 wait=900; p2 blue 1 wait=5",
        "r1@a",
        running="r1 red 1 on a:0 end=100",
        then=(("end r1", "p1@a p1@a p1@a"),),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()


def granted(w: World) -> dict[int, tuple[str, int]]:
    """Return node and number of GPUs for each member index."""
    return {grant.index: (grant.node, len(grant.shares)) for grant in w.scheduler.decide(w.now).grants}


def test_each_gang_member_gets_its_own_request() -> None:
    w = world("a 4xT4; b 2xT4", "p1 red 0+2+1+2 cpus=1")
    found = granted(w)
    assert [found[index][1] for index in range(4)] == [0, 2, 1, 2]


def test_optional_gang_members_are_the_last_ones() -> None:
    w = world("a 2xT4", "p1 red 0+1+2+1 gang=2-4")
    assert {index: gpus for index, (_, gpus) in granted(w).items()} == {0: 0, 1: 1, 3: 1}


def test_wait_reason_of_member_is_about_its_request() -> None:
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
def test_request_that_can_never_start_is_detected(nodes: str, members: str, possible: bool) -> None:
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
