"""Work that may run only in some pools of nodes."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("in its pool", "a 1xT4 pool=x; b 1xT4 pool=y", "p1 red 1 pool=y", "p1@b"),
    Case("in none but its pool", "a 1xT4 pool=x; b 1xT4", "p1 red 1 pool=y", ""),
    Case(
        "in either of two pools",
        "a 1xT4 pool=x; b 2xT4 pool=y; c 1xT4 pool=z",
        "p1 red 1 pool=x,y; p2 red 1 pool=x,y; p3 red 1 pool=x,y",
        "p1@a p2@b p3@b",
    ),
    Case("who is bound to no pool runs in any", "a 1xT4 pool=x; b 1xT4", "p1 red 1; p2 red 1", "p1@a p2@b"),
    Case(
        "pool and label",
        "a 1xT4 pool=x zone=u; b 1xT4 pool=x zone=v; c 1xT4 pool=y zone=v",
        "p1 red 1 pool=x zone=v",
        "p1@b",
    ),
    Case(
        "a part in its pool though others are shared already",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 0.5 pool=y",
        "p1@b r1@a",
        running="r1 red 0.5 on a:0",
    ),
    Case(
        "a full pool does not keep others out of theirs",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 1 pool=x; p2 red 1 pool=x; p3 red 1 pool=y",
        "p1@a p3@b",
    ),
    Case(
        "reclaim in the pool only",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 blue 1 pool=y",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "preempt in the pool only",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 1 pool=y prio=1",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900",
        evicted="r2",
    ),
    Case(
        "a reservation in the pool only",
        "a 2xT4 pool=x; b 2xT4 pool=y",
        "p1 red 2 pool=y wait=900; p2 red 1",
        "p2@a r1@a r2@b",
        running="r1 blue 1 on a:0 end=50; r2 blue 1 on b:0 end=100",
        reserved="p1@b",
    ),
    Case(
        "who has to go comes back in its pool only",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 1 pool=y prio=1",
        "p1@b",
        running="r1 red 1 pool=y on b:0 train",
        evicted="r1",
        then=(("wait 5", "p1@b"), ("end p1", "r1@b")),
    ),
    Case("a node changes its pool", "a 1xT4 pool=x", "p1 red 1 pool=y", "", then=(("node a 1xT4 pool=y", "p1@a"),)),
    Case(
        "what runs stays when its node leaves the pool",
        "a 2xT4 pool=x",
        "p1 red 1 pool=x",
        "p1@a",
        then=(("node a 2xT4 pool=y", "p1@a"), ("add p2 red 1 pool=x", "p1@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
