"""Cases of scheduling order."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "the project with fewer GPUs is served first",
        "a 2xT4",
        "p1 red 1 wait=900; p2 blue 1",
        "p2@a r1@a",
        running="r1 red 1 on a:0",
    ),
    Case(
        "the project with the lower part of its quota is served first",
        "a 4xT4",
        "p1 red 1 wait=90; p2 blue 1",
        "p2@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 blue 2 on a:12",
        projects="red quota=2; blue quota=8",
    ),
    Case(
        "work within quota starts before over-quota work",
        "a 2xT4",
        "p1 red 1 train wait=900; p2 blue 1 train",
        "p2@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=1; blue quota=1",
    ),
    Case("projects without a quota take turns", "a 2xT4", "p1 red 1; p2 red 1; p3 blue 1", "p1@a p3@a"),
    Case(
        "the user with fewer GPUs is served first",
        "a 2xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p2@a r1@a",
        running="r1 red/ann 1 on a:0",
    ),
    Case(
        "priority counts before the GPUs of a user",
        "a 2xT4",
        "p1 red/ann 1 prio=1; p2 red/bob 1",
        "p1@a r1@a",
        running="r1 red/ann 1 on a:0",
    ),
    Case(
        "priority has no effect on other projects", "a 2xT4", "p1 red 1 prio=9; p2 red 1 prio=8; p3 blue 1", "p1@a p3@a"
    ),
    Case(
        "the oldest replica of a project starts first",
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
        "work within quota starts before over-quota work of higher priority",
        "a 1xT4",
        "p1 red 1 train prio=9 wait=900; p2 blue 1",
        "p2@a",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "a large replica of one project does not block another project",
        "a 2xT4",
        "p1 red 4 wait=200; p2 blue 2",
        "p2@a",
    ),
    Case(
        "projects are compared by GPUs, not by jobs",
        "a 4xT4",
        "p1 red 2; p2 red 2; p3 blue 1; p4 blue 1; p5 blue 1",
        "p1@a p3@a p4@a",
    ),
    Case(
        "slices count in the order of projects",
        "a 2xT4",
        "p1 red 1; p2 red 1; p3 blue 0.5; p4 blue 0.5; p5 blue 0.5",
        "p1@a p3@a p4@a",
    ),
    Case(
        "a project with a larger quota gets more GPUs",
        "a 3xT4",
        "p1 red 1; p2 red 1; p3 blue 1; p4 blue 1",
        "p1@a p2@a p3@a",
        projects="red quota=4; blue quota=2",
    ),
    Case(
        "a project at its fair share waits for one below its share",
        "a 2xT4",
        "p1 red 1 train wait=900; p2 blue 1 train",
        "p2@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=0",
    ),
    Case(
        "the older replica starts first when projects hold equal amounts",
        "a 1xT4",
        "p1 red 1 wait=10; p2 blue 1 wait=20",
        "p2@a",
    ),
    Case(
        "priority decides the order within each project",
        "a 2xT4",
        "p1 red 1 wait=900; p2 red 1 prio=1; p3 blue 1; p4 blue 1 prio=7",
        "p2@a p4@a",
    ),
    Case(
        "the project that was not served is served next",
        "a 1xT4",
        "p1 red 1; p2 blue 1; p3 red 1",
        "p1@a",
        then=(("end p1", "p2@a"), ("end p2", "p3@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
