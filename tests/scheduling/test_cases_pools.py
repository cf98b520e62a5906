"""Cases of work that may run only in some node pools."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("a replica starts in its node pool", "a 1xT4 pool=x; b 1xT4 pool=y", "p1 red 1 pool=y", "p1@b"),
    Case("a replica waits when its node pool has no node", "a 1xT4 pool=x; b 1xT4", "p1 red 1 pool=y", ""),
    Case(
        "a replica with two node pools starts in either",
        "a 1xT4 pool=x; b 2xT4 pool=y; c 1xT4 pool=z",
        "p1 red 1 pool=x,y; p2 red 1 pool=x,y; p3 red 1 pool=x,y",
        "p1@a p2@b p3@b",
    ),
    Case("a replica without a node pool starts in any", "a 1xT4 pool=x; b 1xT4", "p1 red 1; p2 red 1", "p1@a p2@b"),
    Case(
        "node pool and label must both match",
        "a 1xT4 pool=x zone=u; b 1xT4 pool=x zone=v; c 1xT4 pool=y zone=v",
        "p1 red 1 pool=x zone=v",
        "p1@b",
    ),
    Case(
        "a slice starts in its node pool although another GPU is shared already",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 0.5 pool=y",
        "p1@b r1@a",
        running="r1 red 0.5 on a:0",
    ),
    Case(
        "a full node pool does not block other node pools",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 1 pool=x; p2 red 1 pool=x; p3 red 1 pool=y",
        "p1@a p3@b",
    ),
    Case(
        "GPUs are reclaimed only in the node pool",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 blue 1 pool=y",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "work is preempted only in the node pool",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 1 pool=y prio=1",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900",
        evicted="r2",
    ),
    Case(
        "a reservation is made only in the node pool",
        "a 2xT4 pool=x; b 2xT4 pool=y",
        "p1 red 2 pool=y wait=900; p2 red 1",
        "p2@a r1@a r2@b",
        running="r1 blue 1 on a:0 end=50; r2 blue 1 on b:0 end=100",
        reserved="p1@b",
    ),
    Case(
        "a preempted replica starts again only in its node pool",
        "a 1xT4 pool=x; b 1xT4 pool=y",
        "p1 red 1 pool=y prio=1",
        "p1@b",
        running="r1 red 1 pool=y on b:0 train",
        evicted="r1",
        then=(("wait 5", "p1@b"), ("end p1", "r1@b")),
    ),
    Case(
        "a replica starts when a node joins its node pool",
        "a 1xT4 pool=x",
        "p1 red 1 pool=y",
        "",
        then=(("node a 1xT4 pool=y", "p1@a"),),
    ),
    Case(
        "running work stays when its node leaves the node pool",
        "a 2xT4 pool=x",
        "p1 red 1 pool=x",
        "p1@a",
        then=(("node a 2xT4 pool=y", "p1@a"), ("add p2 red 1 pool=x", "p1@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
