"""Cases of users in a project: at equal priority the user with less use is first."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("the second GPU goes to another user", "a 2xT4", "p1 red/ann 1; p2 red/ann 1; p3 red/bob 1", "p1@a p3@a"),
    Case(
        "three users get one GPU each",
        "a 3xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 red/bob 1; p4 red/bob 1; p5 red/eve 1",
        "p1@a p3@a p5@a",
    ),
    Case(
        "users are compared by GPUs, not by jobs",
        "a 4xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p2@a r1@a r2@a r3@a",
        running="r1 red/ann 2 on a:01; r2 red/bob 0.5 on a:2; r3 red/bob 0.5 on a:2",
    ),
    Case(
        "slices count in the order of users",
        "a 2xT4",
        "p1 red/ann 0.5 wait=900; p2 red/bob 0.5; p3 red/bob 0.5",
        "p2@a r1@a r2@a",
        running="r1 red/ann 1 on a:0; r2 red/bob 0.5 on a:1",
    ),
    Case(
        "GPUs of a user in another project do not count",
        "a 3xT4",
        "p1 red/ann 1; p2 red/bob 1 wait=900",
        "p1@a r1@a r2@a",
        running="r1 blue/ann 1 on a:0; r2 red/bob 1 on a:1",
    ),
    Case(
        "priority counts before fairness among users",
        "a 2xT4",
        "p1 red/ann 1 prio=1; p2 red/bob 1 wait=900",
        "p1@a r1@a",
        running="r1 red/ann 1 on a:0",
    ),
    Case(
        "a user at the limit does not block others",
        "a 4xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p2@a r1@a",
        running="r1 red/ann 1 on a:0",
        projects="red user=1",
    ),
    Case(
        "a user at the limit does not block smaller work of another project",
        "a 4xT4",
        "p1 red/ann 1 wait=900; p2 blue/eve 1",
        "p2@a r1@a",
        running="r1 red/ann 1 on a:0",
        users="ann limit=1",
    ),
    Case(
        "a small request still fits under a user's limit",
        "a 4xT4",
        "p1 red/ann 1 wait=900; p2 red/ann 0.5",
        "p2@a r1@a",
        running="r1 red/ann 1 on a:0",
        projects="red user=1.5",
    ),
    Case(
        "large requests of one user do not block small ones of another",
        "a 4xT4",
        "p1 red/ann 4; p2 red/bob 1",
        "p2@a r1@a",
        running="r1 red/bob 1 on a:0",
    ),
    Case(
        "the older replica of two equal users starts first",
        "a 1xT4",
        "p1 red/ann 1 wait=10; p2 red/bob 1 wait=20",
        "p2@a",
    ),
    Case("the older replica of a user starts first", "a 1xT4", "p1 red/ann 1 wait=10; p2 red/ann 1 wait=20", "p2@a"),
    Case(
        "equal users are served by age after a replica ends",
        "a 1xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 red/bob 1",
        "p1@a",
        then=(("end p1", "p2@a"), ("end p2", "p3@a")),
    ),
    Case(
        "a burst of one user leaves the rest to others",
        "a 4xT4",
        "; ".join(f"p{i} red/ann 1 wait=50" for i in range(6)) + "; q1 red/bob 1; q2 red/eve 1",
        "p0@a p1@a q1@a q2@a",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
