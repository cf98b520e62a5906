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
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
