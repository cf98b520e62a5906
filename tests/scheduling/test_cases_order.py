"""Who is served first."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "the project that has less goes first",
        "a 2xT4",
        "p1 red 1 wait=900; p2 blue 1",
        "p2@a r1@a",
        running="r1 red 1 on a:0",
    ),
    Case(
        "less of its quota",
        "a 4xT4",
        "p1 red 1 wait=90; p2 blue 1",
        "p2@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 blue 2 on a:12",
        projects="red quota=2; blue quota=8",
    ),
    Case(
        "within quota before over it",
        "a 2xT4",
        "p1 red 1 train wait=900; p2 blue 1 train",
        "p2@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=1; blue quota=1",
    ),
    Case("projects without a quota take turns", "a 2xT4", "p1 red 1; p2 red 1; p3 blue 1", "p1@a p3@a"),
    Case(
        "the user who holds less",
        "a 2xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p2@a r1@a",
        running="r1 red/ann 1 on a:0",
    ),
    Case(
        "but priority counts more than that",
        "a 2xT4",
        "p1 red/ann 1 prio=1; p2 red/bob 1",
        "p1@a r1@a",
        running="r1 red/ann 1 on a:0",
    ),
    Case("priority is a matter within a project", "a 2xT4", "p1 red 1 prio=9; p2 red 1 prio=8; p3 blue 1", "p1@a p3@a"),
    Case(
        "first come first served in a project",
        "a 2xT4",
        "p3 red 1 wait=10; p2 red 1 wait=20; p1 red 1 wait=30",
        "p1@a p2@a",
    ),
    Case(
        "two projects without quotas get half each",
        "a 4xT4",
        "p1 red 1 train; p2 red 1 train; p3 red 1 train; p4 blue 1 train; p5 blue 1 train",
        "p1@a p2@a p4@a p5@a",
    ),
    Case(
        "three projects get a third each",
        "a 3xT4",
        "p1 red 1 train; p2 red 1 train; p3 blue 1 train; p4 blue 1 train; p5 green 1 train",
        "p1@a p3@a p5@a",
    ),
    Case(
        "who is within quota goes before more important work over it",
        "a 1xT4",
        "p1 red 1 train prio=9 wait=900; p2 blue 1",
        "p2@a",
        projects="red quota=0; blue quota=1",
    ),
    Case("the first project's large one does not block the second's", "a 2xT4", "p1 red 4 wait=200; p2 blue 2", "p2@a"),
    Case(
        "turns by GPUs and not by jobs",
        "a 4xT4",
        "p1 red 2; p2 red 2; p3 blue 1; p4 blue 1; p5 blue 1",
        "p1@a p3@a p4@a",
    ),
    Case(
        "parts of GPUs count for turns",
        "a 2xT4",
        "p1 red 1; p2 red 1; p3 blue 0.5; p4 blue 0.5; p5 blue 0.5",
        "p1@a p3@a p4@a",
    ),
    Case(
        "a turn of larger quota",
        "a 3xT4",
        "p1 red 1; p2 red 1; p3 blue 1; p4 blue 1",
        "p1@a p2@a p3@a",
        projects="red quota=4; blue quota=2",
    ),
    Case(
        "a project that got its share waits for one that did not",
        "a 2xT4",
        "p1 red 1 train wait=900; p2 blue 1 train",
        "p2@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=0",
    ),
    Case("age among projects that hold the same", "a 1xT4", "p1 red 1 wait=10; p2 blue 1 wait=20", "p2@a"),
    Case(
        "importance decides which of its own a project starts",
        "a 2xT4",
        "p1 red 1 wait=900; p2 red 1 prio=1; p3 blue 1; p4 blue 1 prio=7",
        "p2@a p4@a",
    ),
    Case(
        "who lost the turn is next",
        "a 1xT4",
        "p1 red 1; p2 blue 1; p3 red 1",
        "p1@a",
        then=(("end p1", "p2@a"), ("end p2", "p3@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
