"""A project gets back what it is owed from those above their quotas."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "the owed GPU comes back, from the newest",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r2@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on a:1 train age=200",
        projects="red quota=1; blue quota=1",
        evicted="r1",
    ),
    Case(
        "lowest priority first",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train age=100 prio=1; r2 red 1 on a:1 train age=200",
        projects="red quota=1; blue quota=1",
        evicted="r2",
    ),
    Case(
        "one large instead of many small",
        "a 2xT4; b 2xT4",
        "p1 blue 2",
        "p1@b r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train; r3 red 2 on b:01 train",
        projects="red quota=2; blue quota=2",
        evicted="r3",
    ),
    Case(
        "never from within a quota",
        "a 2xT4",
        "p1 blue 1",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=2; blue quota=1",
    ),
    Case(
        "never for somebody over quota",
        "a 2xT4",
        "p1 blue 1 train",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 blue 1 on a:1 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "never protected work",
        "a 2xT4",
        "p1 blue 1",
        "r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:1",
        projects="red quota=1; blue quota=1",
    ),
    Case(
        "never the young",
        "a 1xT4",
        "p1 blue 1",
        "r1@a",
        running="r1 red 1 on a:0 train age=10",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "only as much as is over",
        "a 4xT4",
        "p1 blue 1; p2 blue 1; p3 blue 1",
        "p1@a r1@a r2@a r3@a",
        running="r1 red 1 on a:0 train age=400; r2 red 1 on a:1 train age=300; r3 red 1 on a:2 train age=200; "
        "r4 red 1 on a:3 train age=100",
        projects="red quota=3; blue quota=3",
        evicted="r4",
    ),
    Case(
        "nobody goes when it would not help",
        "a 2xT4",
        "p1 blue 2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 green 1 on a:1",
        projects="red quota=0; blue quota=2",
    ),
    Case(
        "nobody goes when something is free",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "nobody more goes while somebody is going",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r2@a",
        running="r1 red 1 on a:0 train releasing; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "slices are gathered from one GPU",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r3@a r4@a",
        running="r1 red 0.5 on a:0 train; r2 red 0.5 on a:0 train; r3 red 0.5 on a:1 train prio=1; "
        "r4 red 0.5 on a:1 train",
        projects="red quota=0; blue quota=1",
        evicted="r1 r2",
    ),
    Case(
        "from two projects over quota",
        "a 2xT4",
        "p1 blue 2",
        "p1@a",
        running="r1 red 1 on a:0 train; r2 green 1 on a:1 train",
        projects="red quota=0; green quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "CPUs are reclaimed too",
        "a 2xT4 cpus=4",
        "p1 blue 1 cpus=2",
        "p1@a",
        running="r1 red 1 on a:0 train cpus=4",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "only on the model asked for",
        "a 1xT4; b 1xA100",
        "p1 blue 1 model=a100",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "a project without a quota is owed the pool",
        "a 1xT4",
        "p1 blue 1",
        "p1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0",
        evicted="r1",
    ),
    Case(
        "by memory",
        "a 1xT4",
        "p1 blue 8000M",
        "p1@a r2@a",
        running="r1 red 0.5 on a:0 train age=100; r2 red 0.5 on a:0 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "training within its quota reclaims too",
        "a 1xT4",
        "p1 blue 1 train",
        "p1@a",
        running="r1 red 1 on a:0 train prio=9",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "several are served in one go",
        "a 4xT4",
        "p1 blue 1; p2 green 1",
        "p1@a p2@a r1@a r2@a",
        running="r1 red 1 on a:0 train age=400; r2 red 1 on a:1 train age=300; r3 red 1 on a:2 train age=200; "
        "r4 red 1 on a:3 train age=100",
        projects="red quota=0; blue quota=1; green quota=1",
        evicted="r3 r4",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
