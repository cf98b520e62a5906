"""Gangs that are owed space, and gangs that have to give it."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "a gang gets its quota back at once",
        "a 2xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "a gang gets it back on two nodes",
        "a 1xT4; b 1xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@b",
        running="r1 red 1 on a:0 train; r2 red 1 on b:0 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "what is free already is used first",
        "a 2xT4; b 2xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@b r1@a r3@b",
        running="r1 red 1 on a:0 train age=900; r2 green 1 on a:1 train age=100; r3 green 1 on b:0",
        projects="red quota=1; green quota=1; blue quota=2",
        evicted="r2",
    ),
    Case(
        "nobody goes when not all of a gang would fit",
        "a 2xT4",
        "p1 blue 1 gang=2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 green 1 on a:1",
        projects="red quota=0; blue quota=2",
    ),
    Case(
        "nobody goes for a gang beyond its quota",
        "a 2xT4",
        "p1 blue 1 gang=2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "nobody goes for a gang that no rack can take",
        "a 1xT4 rack=x; b 1xT4 rack=y",
        "p1 blue 1 gang=2 within=rack!",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train; r2 red 1 on b:0 train",
        projects="red quota=0; blue quota=2",
    ),
    Case(
        "the rack that a gang needs is cleared",
        "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y cpus=32",
        "p1 blue 1 gang=2 within=rack!",
        "p1@b p1@c r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900; r3 red 1 on c:0 train age=900",
        projects="red quota=0; blue quota=2",
        evicted="r2 r3",
    ),
    Case(
        "a gang preempts for all its members",
        "a 2xT4",
        "p1 red 1 gang=2 prio=1",
        "p1@a p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        evicted="r1 r2",
    ),
    Case(
        "a gang preempts nobody when it still would not fit",
        "a 2xT4",
        "p1 red 1 gang=2 prio=1",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1",
    ),
    Case(
        "a gang goes as a whole",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
    ),
    Case(
        "a gang on two nodes goes as a whole",
        "a 1xT4; b 1xT4",
        "p1 blue 1; p2 blue 1",
        "p1@a p2@b",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on b:0 train gang=2",
        projects="red quota=0; blue quota=2",
        evicted="r1 r1",
    ),
    Case(
        "a single one goes before a gang is broken",
        "a 3xT4",
        "p1 blue 1",
        "p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 age=100; r1.1 red 1 on a:1 train gang=2 age=100; "
        "r2 red 1 on a:2 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "a gang gives only what it can spare",
        "a 3xT4",
        "p1 blue 1",
        "p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2-3 age=300; r1.1 red 1 on a:1 train gang=2-3 age=200; "
        "r1.2 red 1 on a:2 train gang=2-3 age=100",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "a gang that has nothing left to spare goes as a whole",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2-3; r1.1 red 1 on a:1 train gang=2-3",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
    ),
    Case(
        "a gang that went comes back as a whole",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
        then=(("end p1", "r1@a r1@a"),),
    ),
    Case(
        "protected members are not touched",
        "a 2xT4",
        "p1 blue 1",
        "r1@a r1@a",
        running="r1.0 red 1 on a:0 gang=2; r1.1 red 1 on a:1 gang=2",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "a gang within its quota is not touched",
        "a 2xT4",
        "p1 blue 1",
        "r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2",
        projects="red quota=2; blue quota=1",
    ),
    Case(
        "a gang is preempted as a whole",
        "a 2xT4",
        "p1 red 1 prio=1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2",
        evicted="r1 r1",
    ),
    Case(
        "gang against gang",
        "a 4xT4",
        "p1 blue 1 gang=3",
        "p1@a p1@a p1@a",
        running="r1.0 red 1 on a:0 train gang=4; r1.1 red 1 on a:1 train gang=4; r1.2 red 1 on a:2 train gang=4; "
        "r1.3 red 1 on a:3 train gang=4",
        projects="red quota=0; blue quota=3",
        evicted="r1 r1 r1 r1",
    ),
    Case(
        "one gang goes and not a part of each of two",
        "a 4xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 age=900; r1.1 red 1 on a:1 train gang=2 age=900; "
        "r2.0 red 1 on a:2 train gang=2 age=100; r2.1 red 1 on a:3 train gang=2 age=100",
        projects="red quota=0; blue quota=2",
        evicted="r2 r2",
    ),
    Case(
        "a gang is as old as its oldest member",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2 age=20",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
    ),
    Case(
        "the important gang stays",
        "a 4xT4",
        "p1 blue 1",
        "p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 prio=1; r1.1 red 1 on a:1 train gang=2 prio=1; "
        "r2.0 red 1 on a:2 train gang=2; r2.1 red 1 on a:3 train gang=2",
        projects="red quota=0; blue quota=1",
        evicted="r2 r2",
    ),
    Case(
        "a whole gang is over quota by a little",
        "a 4xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=4; r1.1 red 1 on a:1 train gang=4; r1.2 red 1 on a:2 train gang=4; "
        "r1.3 red 1 on a:3 train gang=4",
        projects="red quota=3; blue quota=1",
        evicted="r1 r1 r1 r1",
    ),
    Case(
        "of two gangs the less important makes way for a third",
        "a 4xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a r2@a r2@a",
        running="r1.0 red 1 on a:0 train gang=2 age=900; r1.1 red 1 on a:1 train gang=2 age=900; "
        "r2.0 red 1 on a:2 train gang=2 prio=1; r2.1 red 1 on a:3 train gang=2 prio=1",
        projects="red quota=0; blue quota=2",
        evicted="r1 r1",
    ),
    Case(
        "of two gangs the less important makes way for a third, the other way round",
        "a 4xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 prio=1; r1.1 red 1 on a:1 train gang=2 prio=1; "
        "r2.0 red 1 on a:2 train gang=2 age=900; r2.1 red 1 on a:3 train gang=2 age=900",
        projects="red quota=0; blue quota=2",
        evicted="r2 r2",
    ),
    Case(
        "of two gangs the less important makes way for a large one",
        "a 4xT4",
        "p1 blue 2",
        "p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 prio=1; r1.1 red 1 on a:1 train gang=2 prio=1; "
        "r2.0 red 1 on a:2 train gang=2 age=900; r2.1 red 1 on a:3 train gang=2 age=900",
        projects="red quota=0; blue quota=2",
        evicted="r2 r2",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
