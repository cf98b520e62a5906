"""Quotas, limits, and limits of users."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("protected work stays within quota", "a 4xT4", "p1 red 1; p2 red 1", "p1@a", projects="red quota=1"),
    Case("training may exceed it", "a 4xT4", "p1 red 1 train; p2 red 1 train", "p1@a p2@a", projects="red quota=1"),
    Case("up to the limit", "a 4xT4", "p1 red 2 train; p2 red 2 train", "p1@a", projects="red quota=1 limit=3"),
    Case(
        "not where that is not wanted",
        "a 4xT4",
        "p1 red 1 train; p2 red 1 train",
        "p1@a",
        projects="red quota=1 strict",
    ),
    Case("quotas have fractions", "a 4xT4", "p1 red 0.5; p2 red 0.5; p3 red 0.1", "p1@a p2@a", projects="red quota=1"),
    Case("no quota at all", "a 4xT4", "p1 red 1; p2 red 1 train", "p2@a", projects="red quota=0"),
    Case("a head over quota does not block", "a 4xT4", "p1 red 3; p2 red 1", "p2@a", projects="red quota=2"),
    Case(
        "training over quota leaves the quota to protected work",
        "a 4xT4",
        "p1 red 2",
        "p1@a r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=2",
    ),
    Case(
        "a user's limit in a project",
        "a 4xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        projects="red user=1",
    ),
    Case(
        "a user's limit over all",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        users="ann limit=1",
    ),
    Case("a limit by memory on the larger card", "a 1xT4; b 1xA100", "p1 red 8000M", "p1@b", projects="red limit=0.2"),
    Case("what is held counts", "a 4xT4", "p1 red 1", "r1@a", running="r1 red 1 on a:0", projects="red quota=1"),
    Case("the limit is for protected work, too", "a 4xT4", "p1 red 1; p2 red 1", "p1@a", projects="red limit=1"),
    Case(
        "a limit below the quota counts", "a 4xT4", "p1 red 1; p2 red 1 train", "p1@a", projects="red quota=3 limit=1"
    ),
    Case("a limit of nothing", "a 4xT4", "p1 red 1; p2 red 0.001 train", "", projects="red limit=0"),
    Case("no quota and nothing over it", "a 4xT4", "p1 red 1; p2 red 1 train", "", projects="red quota=0 strict"),
    Case(
        "a user's limit has fractions",
        "a 4xT4",
        "p1 red 0.5; p2 red 0.5; p3 red/bob 0.5",
        "p1@a p3@a",
        projects="red user=0.5",
    ),
    Case(
        "the tighter of a user's two limits",
        "a 4xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 blue/ann 1",
        "p1@a p3@a",
        projects="red user=3",
        users="ann limit=2",
    ),
    Case(
        "a user's limit in one project is none in another",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 blue/ann 1",
        "p1@a p2@a p3@a",
        projects="red user=1",
    ),
    Case(
        "training within a strict quota counts against protected work",
        "a 4xT4",
        "p1 red 1",
        "r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=2 strict",
    ),
    Case("a project that nobody described has no bounds", "a 4xT4", "p1 new 4", "p1@a", projects="red quota=1"),
    Case(
        "by memory within a quota of half a GPU", "a 2xT4", "p1 red 8000M; p2 red 1M", "p1@a", projects="red quota=0.5"
    ),
    Case(
        "a second half over a quota of one and a half",
        "a 4xT4",
        "p1 red 1; p2 red 0.5; p3 red 0.5",
        "p1@a p2@a",
        projects="red quota=1.5",
    ),
    Case(
        "quota comes back when work ends",
        "a 4xT4",
        "p1 red 1; p2 red 1",
        "p1@a",
        projects="red quota=1",
        then=(("end p1", "p2@a"),),
    ),
    Case(
        "a quota raised",
        "a 4xT4",
        "p1 red 1; p2 red 1; p3 red 1",
        "p1@a",
        projects="red quota=1",
        then=(("project red quota=2", "p1@a p2@a"), ("project red", "p1@a p2@a p3@a")),
    ),
    Case(
        "a quota lowered takes nothing from protected work",
        "a 4xT4",
        "p1 red 2; p2 blue 2",
        "p1@a p2@a",
        projects="red quota=2",
        then=(("project red quota=0", "p1@a p2@a"), ("add p3 blue 1", "p1@a p2@a")),
    ),
    Case(
        "a limit raised",
        "a 4xT4",
        "p1 red 1; p2 red 1 train",
        "p1@a",
        projects="red limit=1",
        then=(("project red limit=2", "p1@a p2@a"),),
    ),
    Case(
        "a user's limit raised, then gone",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 red/ann 1",
        "p1@a",
        users="ann limit=1",
        then=(("user ann limit=2", "p1@a p2@a"), ("user ann", "p1@a p2@a p3@a")),
    ),
    Case(
        "a large one over quota does not keep a small one out",
        "a 4xT4",
        "p1 red 4 prio=5; p2 red 2",
        "p2@a",
        projects="red quota=2",
    ),
    Case(
        "training over quota is no obstacle to another's protected work",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "the limit counts parts of several GPUs",
        "a 4xT4",
        "p1 red 3x0.5; p2 red 0.5; p3 red 0.1",
        "p1@a p2@a",
        projects="red limit=2",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
