"""Several rules at once."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "reclaim for the one, preemption for the other",
        "a 3xT4",
        "p1 blue 1; p2 red 1 prio=1",
        "p1@a p2@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=800; r3 red 1 on a:2 train age=700",
        projects="red quota=2; blue quota=1",
        evicted="r2 r3",
    ),
    Case(
        "free space first, then a victim",
        "a 2xT4",
        "p1 blue 1; p2 blue 1",
        "p1@a p2@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=2",
        evicted="r1",
    ),
    Case(
        "a victim of reclaim preempts less important work of its own",
        "a 1xT4; b 1xA100",
        "p1 blue 1 model=a100",
        "p1@b r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on b:0 train prio=1",
        projects="red quota=1; blue quota=1",
        evicted="r1 r2",
    ),
    Case(
        "the starving is served by reclaim and not by waiting",
        "a 2xT4",
        "p1 blue 2 wait=900; p2 green 0.5 wait=5",
        "p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=2; green quota=0",
        evicted="r1 r2",
    ),
    Case(
        "who was promised space keeps it from the more important",
        "a 1xT4",
        "p1 blue 1; p2 blue 1 prio=9 later=0.5",
        "p1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=2",
        evicted="r1",
    ),
    Case(
        "a whole pool changes hands",
        "a 2xT4; b 2xT4",
        "p1 blue 1; p2 blue 1; p3 blue 1; p4 blue 1",
        "p1@a p2@a p3@b p4@b",
        running="r1 red 2 on a:01 train; r2 red 2 on b:01 train",
        projects="red quota=0; blue quota=4",
        evicted="r1 r2",
    ),
    Case(
        "and back when the owner is done",
        "a 2xT4",
        "p1 blue 2",
        "p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
        then=(("end p1", "r1@a r2@a"), ("wait 500", "r1@a r2@a")),
    ),
    Case(
        "a part of a GPU, memory, CPUs and a label at once",
        "a 2xT4 cpus=8 zone=x; b 2xA100 cpus=2 zone=x; c 2xA100 cpus=8",
        "p1 red 20000M cpus=4 zone=x; p2 red 20000M cpus=2 zone=x",
        "p2@b",
    ),
    Case(
        "a gang and single ones on what is left",
        "a 4xT4; b 4xT4",
        "p1 red 2 gang=3; p2 red 1; p3 red 1; p4 red 1",
        "p1@a p1@a p1@b p2@b p3@b",
    ),
    Case(
        "a quota for a model, borrowed otherwise",
        "a 2xT4; b 2xA100",
        "p1 red 2 model=t4; p2 blue 2 model=a100",
        "p1@a p2@b",
        projects="red quota=2; blue quota=2",
    ),
    Case(
        "the limit of one project leaves all to another",
        "a 4xT4",
        "p1 red 1 train; p2 red 1 train; p3 blue 1 train; p4 blue 1 train; p5 blue 1 train",
        "p1@a p3@a p4@a p5@a",
        projects="red limit=1",
    ),
    Case(
        "nobody waits while there is room for all",
        "a 4xT4; b 2xA100 zone=x; c 1xL4",
        "p1 red 2 model=t4; p2 red 0.5 model=l4; p3 blue 1 zone=x; p5 green 2 train model=t4; p6 green 0.5 model=l4",
        "p1@a p2@c p3@b p5@a p6@c",
        projects="red quota=3; blue quota=2; green quota=1",
    ),
    Case(
        "protected work of a full project waits while its training runs elsewhere",
        "a 2xT4",
        "p1 red 1",
        "r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:1 train",
        projects="red quota=1",
    ),
    Case(
        "a training job that went over a lowered limit stays until somebody is owed",
        "a 2xT4",
        "",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=2",
        then=(("project red quota=2 limit=1", "r1@a r2@a"), ("wait 300", "r1@a r2@a")),
    ),
    Case(
        "whoever is owed a GPU takes the free one before another reserves it",
        "a 2xT4; b 1xT4 cpus=32",
        "p1 green 2 wait=900; p2 blue 1",
        "p2@a r1@a r2@b",
        running="r1 green 1 on a:0 end=200; r2 red 1 on b:0 train",
        projects="red quota=0; blue quota=1",
        reserved="p1@a",
    ),
    Case(
        "the owed who has a reservation gets victims as soon as they may go",
        "a 2xT4",
        "p1 blue 2 wait=900",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train min=1100; r2 red 1 on a:1 train min=1100",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
        then=(("wait 60", "r1@a r2@a"), ("wait 60", "p1@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
