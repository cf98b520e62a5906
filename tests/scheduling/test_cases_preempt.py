"""More important work of a project goes before less important training of it."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "more important work of the same project",
        "a 1xT4",
        "p1 red 1 prio=1",
        "p1@a",
        running="r1 red 1 on a:0 train",
        evicted="r1",
    ),
    Case("equal importance waits", "a 1xT4", "p1 red 1", "r1@a", running="r1 red 1 on a:0 train"),
    Case("not in another project", "a 1xT4", "p1 blue 1 prio=9", "r1@a", running="r1 red 1 on a:0 train"),
    Case("not protected work", "a 1xT4", "p1 red 1 prio=9", "r1@a", running="r1 red 1 on a:0"),
    Case("not the young", "a 1xT4", "p1 red 1 prio=9", "r1@a", running="r1 red 1 on a:0 train age=5"),
    Case(
        "to stay within the limit",
        "a 4xT4",
        "p1 red 1 prio=1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100",
        projects="red limit=2",
        evicted="r2",
    ),
    Case(
        "to stay within a user's limit only that user's",
        "a 4xT4",
        "p1 red/ann 1 prio=1",
        "p1@a r2@a",
        running="r1 red/ann 1 on a:0 train age=900; r2 red/bob 1 on a:1 train age=100",
        users="ann limit=1",
        evicted="r1",
    ),
    Case(
        "lowest first",
        "a 2xT4",
        "p1 red 1 prio=5",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train prio=2; r2 red 1 on a:1 train prio=1",
        evicted="r2",
    ),
    Case(
        "training preempts lesser training",
        "a 1xT4",
        "p1 red 1 train prio=1",
        "p1@a",
        running="r1 red 1 on a:0 train",
        evicted="r1",
    ),
    Case(
        "as few as needed",
        "a 4xT4",
        "p1 red 2 prio=1",
        "p1@a r1@a r3@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100; r3 red 1 on a:2 train age=200",
        evicted="r2",
    ),
    Case(
        "protected work gets its quota from the project's own training",
        "a 2xT4",
        "p1 red 1 prio=1; p2 red 1 prio=1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100",
        projects="red quota=1",
        evicted="r2",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
