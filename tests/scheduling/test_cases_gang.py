"""Gangs: all of the least start together or none; more of them join as space comes free."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("two on one node", "a 2xT4", "p1 red 1 gang=2", "p1@a p1@a"),
    Case("two on two nodes", "a 1xT4; b 1xT4", "p1 red 1 gang=2", "p1@a p1@b"),
    Case("both or none", "a 1xT4", "p1 red 1 gang=2", ""),
    Case(
        "none while one place is taken",
        "a 2xT4",
        "p1 red 1 gang=2",
        "r1@a",
        running="r1 red 1 on a:0",
        then=(("end r1", "p1@a p1@a"),),
    ),
    Case("who does not fit blocks nobody", "a 1xT4", "p1 red 1 gang=2; p2 red 1", "p2@a"),
    Case("as many as there is room for", "a 3xT4", "p1 red 1 gang=2-4", "p1@a p1@a p1@a"),
    Case("fewer than the least are none", "a 2xT4", "p1 red 1 gang=3-4", ""),
    Case(
        "the others join when there is room",
        "a 3xT4",
        "p1 red 1 gang=2-4",
        "p1@a p1@a p1@a",
        then=(("node b 2xT4", "p1@a p1@a p1@a p1@b"),),
    ),
    Case(
        "those who join go before those who begin",
        "a 2xT4",
        "p1 red 1 gang=2-3; p2 red 1",
        "p1@a p1@a",
        then=(("node b 1xT4", "p1@a p1@a p1@b"), ("node c 1xT4", "p1@a p1@a p1@b p2@c")),
    ),
    Case("one node before two", "a 2xT4; b 1xT4; c 1xT4", "p1 red 1 gang=2", "p1@a p1@a"),
    Case("as few nodes as possible", "a 1xT4; b 2xT4; c 1xT4; d 2xT4", "p1 red 1 gang=4", "p1@b p1@b p1@d p1@d"),
    Case(
        "the fuller of two nodes that would do",
        "a 4xT4; b 4xT4",
        "p1 red 1 gang=2",
        "p1@b p1@b r1@b",
        running="r1 red 2 on b:01",
    ),
    Case("members of several GPUs", "a 2xT4; b 2xT4", "p1 red 2 gang=2", "p1@a p1@b"),
    Case("a member is never split", "a 3xT4; b 1xT4", "p1 red 2 gang=2", ""),
    Case("members that share a GPU", "a 1xT4", "p1 red 0.5 gang=2", "p1@a p1@a"),
    Case("members of parts need room for all of them", "a 1xT4", "p1 red 0.4 gang=3", ""),
    Case("members by memory", "a 1xT4; b 1xT4", "p1 red 10000M gang=2", "p1@a p1@b"),
    Case("protected, beyond the quota", "a 4xT4", "p1 red 1 gang=2", "", projects="red quota=1"),
    Case(
        "protected, as many as the quota allows",
        "a 4xT4",
        "p1 red 1 gang=2-4",
        "p1@a p1@a p1@a",
        projects="red quota=3",
    ),
    Case("training, beyond the quota", "a 4xT4", "p1 red 1 gang=2 train", "p1@a p1@a", projects="red quota=1"),
    Case("as many as the limit allows", "a 4xT4", "p1 red 1 gang=2-4 train", "p1@a p1@a p1@a", projects="red limit=3"),
    Case("the least is more than the limit", "a 4xT4", "p1 red 1 gang=3 train", "", projects="red limit=2.5"),
    Case(
        "the least is more than the user's limit",
        "a 4xT4",
        "p1 red/ann 1 gang=2; p2 red/bob 1",
        "p2@a",
        users="ann limit=1",
    ),
    Case(
        "the gang that queued first",
        "a 2xT4",
        "p1 red 1 gang=2 wait=10; p2 red 1 gang=2 wait=20",
        "p2@a p2@a",
        then=(("end p2", "p1@a p1@a"),),
    ),
    Case("the more important gang", "a 2xT4", "p1 red 1 gang=2 wait=90; p2 red 1 gang=2 prio=1", "p2@a p2@a"),
    Case("two gangs do not hold half each", "a 4xT4", "p1 red 1 gang=3; p2 red 1 gang=3", "p1@a p1@a p1@a"),
    Case(
        "what a gang leaves goes to single ones",
        "a 3xT4",
        "p1 red 1 gang=2; p2 red 1 gang=2; p3 red 1",
        "p1@a p1@a p3@a",
    ),
    Case("a small gang passes a large one that has no room", "a 2xT4", "p1 red 1 gang=3; p2 red 1 gang=2", "p2@a p2@a"),
    Case(
        "CPUs count for each member",
        "a 4xT4 cpus=4; b 4xT4 cpus=4",
        "p1 red 1 gang=3 cpus=2; p2 red 1 gang=2 cpus=2",
        "p1@a p1@a p1@b",
    ),
    Case("the model asked for, for each", "a 1xA100 1xT4; b 1xA100 1xT4", "p1 red 1 gang=2 model=a100", "p1@a p1@b"),
    Case("the model asked for is there for one only", "a 1xA100 3xT4", "p1 red 1 gang=2 model=a100", ""),
    Case("suspended as a whole", "a 2xT4", "p1 red 1 gang=2 suspended; p2 red 1", "p2@a"),
    Case("a back-off for all", "a 2xT4", "p1 red 1 gang=2 later=90", "", then=(("wait 100", "p1@a p1@a"),)),
    Case(
        "a member that failed comes back to its gang",
        "a 2xT4",
        "p1 red 1 gang=2",
        "p1@a p1@a",
        then=(("requeue p1.1", "p1@a p1@a"),),
    ),
    Case(
        "a member that failed goes before others who wait",
        "a 2xT4",
        "p1 red 1 gang=2; p2 red 1 wait=5",
        "p1@a p1@a",
        then=(("requeue p1.0", "p1@a p1@a"),),
    ),
    Case(
        "not on cordoned nodes, not on failed GPUs",
        "a 2xT4 failed=0; b 2xT4 cordoned",
        "p1 red 1 gang=2",
        "",
        then=(("up b", "p1@b p1@b"),),
    ),
    Case(
        "projects take turns by all GPUs of a gang",
        "a 4xT4",
        "p1 red 1 gang=2; p2 red 1 gang=2; p3 blue 1; p4 blue 1",
        "p1@a p1@a p3@a p4@a",
    ),
    Case(
        "a starving gang gets a reservation",
        "a 2xT4",
        "p1 red 1 gang=2 wait=900; p2 red 1 wait=5",
        "r1@a",
        running="r1 blue 1 on a:0 end=100",
        then=(("end r1", "p1@a p1@a"), ("end p1", "p2@a")),
    ),
    Case(
        "a gang that has not waited long gets none",
        "a 2xT4",
        "p1 red 1 gang=2 wait=50; p2 red 1 wait=5",
        "p2@a r1@a",
        running="r1 blue 1 on a:0 end=100",
    ),
    Case(
        "the short slip under a gang's reservation",
        "a 2xT4",
        "p1 red 1 gang=2 wait=900; p2 red 1 wait=5 max=90; p3 red 1 wait=5 max=200",
        "p2@a r1@a",
        running="r1 blue 1 on a:0 end=100",
    ),
    Case(
        "a gang's reservation on two nodes",
        "a 1xT4; b 1xT4 cpus=32; c 1xT4 cpus=16",
        "p1 red 1 gang=2 wait=900; p2 red 1 wait=5",
        "r1@a r2@b r3@c",
        running="r1 blue 1 on a:0 end=100; r2 blue 1 on b:0 end=200; r3 blue 1 on c:0 end=300",
        reserved="p1@a p1@b",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
