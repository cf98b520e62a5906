"""Nobody is evicted before it has run for a while."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "the default is a minute",
        "a 1xT4",
        "p1 blue 1",
        "r1@a",
        running="r1 red 1 on a:0 train age=40",
        projects="red quota=0; blue quota=1",
        evicted="r1",
        then=(("wait 20", "p1@a"),),
    ),
    Case(
        "of the pool",
        "a 1xT4",
        "p1 blue 1",
        "r1@a",
        running="r1 red 1 on a:0 train age=500",
        projects="red quota=0; blue quota=1",
        settings={"min_runtime_s": 600.0},
        evicted="r1",
        then=(("wait 100", "p1@a"),),
    ),
    Case(
        "none at all",
        "a 1xT4",
        "p1 blue 1",
        "p1@a",
        running="r1 red 1 on a:0 train age=1",
        projects="red quota=0; blue quota=1",
        settings={"min_runtime_s": 0.0},
        evicted="r1",
    ),
    Case(
        "the young is passed over for the old",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train age=20; r2 red 1 on a:1 train age=900 prio=5",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "nobody goes when one of two is too young",
        "a 2xT4",
        "p1 blue 2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train age=20; r2 red 1 on a:1 train age=900",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
        then=(("wait 60", "p1@a"),),
    ),
    Case(
        "who starts again is young again",
        "a 1xT4",
        "p1 blue 1",
        "p1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r1",
        then=(("end p1", "r1@a"), ("add p2 blue 1", "r1@a"), ("wait 60", "p2@a")),
    ),
    Case(
        "who waits for the young is served elsewhere when that is free",
        "a 1xT4; b 1xT4 cpus=32",
        "p1 blue 1",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train age=20; r2 green 1 on b:0",
        projects="red quota=0; blue quota=1",
        then=(("end r2", "p1@b r1@a"), ("wait 100", "p1@b r1@a")),
    ),
    Case(
        "bounds on use do not make the young go",
        "a 4xT4",
        "p1 red 1 prio=1",
        "r1@a",
        running="r1 red 1 on a:0 train age=20",
        projects="red limit=1",
        evicted="r1",
        then=(("wait 60", "p1@a"),),
    ),
    Case(
        "its own is longer",
        "a 1xT4",
        "p1 blue 1",
        "r1@a",
        running="r1 red 1 on a:0 train age=500 min=600",
        projects="red quota=0; blue quota=1",
        evicted="r1",
        then=(("wait 100", "p1@a"),),
    ),
    Case(
        "its own is shorter",
        "a 1xT4",
        "p1 blue 1",
        "p1@a",
        running="r1 red 1 on a:0 train age=20 min=10",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "against preemption as well",
        "a 1xT4",
        "p1 red 1 prio=1",
        "r1@a",
        running="r1 red 1 on a:0 train age=500 min=600",
        evicted="r1",
        then=(("wait 100", "p1@a"),),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
