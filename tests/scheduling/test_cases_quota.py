"""Cases of quotas, limits, and limits of users."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("protected work stays within its quota", "a 4xT4", "p1 red 1; p2 red 1", "p1@a", projects="red quota=1"),
    Case(
        "training may exceed the quota", "a 4xT4", "p1 red 1 train; p2 red 1 train", "p1@a p2@a", projects="red quota=1"
    ),
    Case(
        "training stays within the limit",
        "a 4xT4",
        "p1 red 2 train; p2 red 2 train",
        "p1@a",
        projects="red quota=1 limit=3",
    ),
    Case(
        "training stays within a strict quota",
        "a 4xT4",
        "p1 red 1 train; p2 red 1 train",
        "p1@a",
        projects="red quota=1 strict",
    ),
    Case(
        "a quota is filled by slices",
        "a 4xT4",
        "p1 red 0.5; p2 red 0.5; p3 red 0.1",
        "p1@a p2@a",
        projects="red quota=1",
    ),
    Case(
        "protected work waits when the quota is 0", "a 4xT4", "p1 red 1; p2 red 1 train", "p2@a", projects="red quota=0"
    ),
    Case(
        "a replica over quota at the head of the queue does not block others",
        "a 4xT4",
        "p1 red 3; p2 red 1",
        "p2@a",
        projects="red quota=2",
    ),
    Case(
        "over-quota training leaves the quota to protected work",
        "a 4xT4",
        "p1 red 2",
        "p1@a r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=2",
    ),
    Case(
        "a user stays within the user limit of the project",
        "a 4xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        projects="red user=1",
    ),
    Case(
        "a user stays within the limit over all projects",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        users="ann limit=1",
    ),
    Case(
        "a limit is checked with the part of a larger GPU",
        "a 1xT4; b 1xA100",
        "p1 red 8000M",
        "p1@b",
        projects="red limit=0.2",
    ),
    Case(
        "running work counts toward the quota",
        "a 4xT4",
        "p1 red 1",
        "r1@a",
        running="r1 red 1 on a:0",
        projects="red quota=1",
    ),
    Case("the limit applies to protected work", "a 4xT4", "p1 red 1; p2 red 1", "p1@a", projects="red limit=1"),
    Case(
        "a limit below the quota applies", "a 4xT4", "p1 red 1; p2 red 1 train", "p1@a", projects="red quota=3 limit=1"
    ),
    Case("nothing starts when the limit is 0", "a 4xT4", "p1 red 1; p2 red 0.001 train", "", projects="red limit=0"),
    Case(
        "nothing starts when a strict quota is 0",
        "a 4xT4",
        "p1 red 1; p2 red 1 train",
        "",
        projects="red quota=0 strict",
    ),
    Case(
        "a user limit may be a fraction of a GPU",
        "a 4xT4",
        "p1 red 0.5; p2 red 0.5; p3 red/bob 0.5",
        "p1@a p3@a",
        projects="red user=0.5",
    ),
    Case(
        "the lower of two user limits applies",
        "a 4xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 blue/ann 1",
        "p1@a p3@a",
        projects="red user=3",
        users="ann limit=2",
    ),
    Case(
        "a user limit of one project does not apply in another",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 blue/ann 1",
        "p1@a p2@a p3@a",
        projects="red user=1",
    ),
    Case(
        "training counts toward a strict quota",
        "a 4xT4",
        "p1 red 1",
        "r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=2 strict",
    ),
    Case("an unknown project has no quota and no limit", "a 4xT4", "p1 new 4", "p1@a", projects="red quota=1"),
    Case(
        "a request by memory counts its part of the GPU toward the quota",
        "a 2xT4",
        "p1 red 8000M; p2 red 1M",
        "p1@a",
        projects="red quota=0.5",
    ),
    Case(
        "a slice that exceeds a quota of 1.5 GPUs waits",
        "a 4xT4",
        "p1 red 1; p2 red 0.5; p3 red 0.5",
        "p1@a p2@a",
        projects="red quota=1.5",
    ),
    Case(
        "protected work starts when other work of the quota ends",
        "a 4xT4",
        "p1 red 1; p2 red 1",
        "p1@a",
        projects="red quota=1",
        then=(("end p1", "p2@a"),),
    ),
    Case(
        "more protected work starts when the quota is raised",
        "a 4xT4",
        "p1 red 1; p2 red 1; p3 red 1",
        "p1@a",
        projects="red quota=1",
        then=(("project red quota=2", "p1@a p2@a"), ("project red", "p1@a p2@a p3@a")),
    ),
    Case(
        "a lowered quota does not evict protected work",
        "a 4xT4",
        "p1 red 2; p2 blue 2",
        "p1@a p2@a",
        projects="red quota=2",
        then=(("project red quota=0", "p1@a p2@a"), ("add p3 blue 1", "p1@a p2@a")),
    ),
    Case(
        "more work starts when the limit is raised",
        "a 4xT4",
        "p1 red 1; p2 red 1 train",
        "p1@a",
        projects="red limit=1",
        then=(("project red limit=2", "p1@a p2@a"),),
    ),
    Case(
        "more work starts when a user limit is raised and removed",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 red/ann 1",
        "p1@a",
        users="ann limit=1",
        then=(("user ann limit=2", "p1@a p2@a"), ("user ann", "p1@a p2@a p3@a")),
    ),
    Case(
        "a large replica over quota does not block a small one",
        "a 4xT4",
        "p1 red 4 prio=5; p2 red 2",
        "p2@a",
        projects="red quota=2",
    ),
    Case(
        "over-quota training does not block protected work of another project",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "all slices of a replica count toward the limit",
        "a 4xT4",
        "p1 red 3x0.5; p2 red 0.5; p3 red 0.1",
        "p1@a p2@a",
        projects="red limit=2",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
