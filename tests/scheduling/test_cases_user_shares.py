"""Cases of reclaim among the users of a project: each may hold an equal share of what all of them hold."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "a user without GPUs takes from a user above an equal share",
        "a 2xT4",
        "p1 red/bob 1",
        "p1@a r1@a",
        running="r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800",
        evicted="r2",
    ),
    Case(
        "a user at an equal share takes nothing more",
        "a 3xT4",
        "p1 red/bob 1; p2 red/bob 1",
        "p1@a r1@a r2@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r3 red/ann 1 on a:2 train age=700""",
        evicted="r3",
    ),
    Case(
        "a job that would leave the other user below its share waits",
        "a 1xT4",
        "p1 red/bob 1",
        "r1@a",
        running="r1 red/ann 1 on a:0 train age=900",
    ),
    Case(
        "a job larger than the share waits",
        "a 4xT4",
        "p1 red/bob 3",
        "r1@a r2@a r3@a r4@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=900;
                   r3 red/ann 1 on a:2 train age=900; r4 red/ann 1 on a:3 train age=900""",
    ),
    Case(
        "protected work of other users is not taken",
        "a 2xT4",
        "p1 red/bob 1",
        "r1@a r2@a",
        running="r1 red/ann 1 on a:0 age=900; r2 red/ann 1 on a:1 age=800",
    ),
    Case(
        "unsaved work of other users is not taken",
        "a 2xT4",
        "p1 red/bob 1",
        "r1@a r2@a",
        running="r1 red/ann 1 on a:0 train unsaved age=9000; r2 red/ann 1 on a:1 train unsaved age=9000",
    ),
    Case(
        "work within its min-runtime is not taken",
        "a 2xT4",
        "p1 red/bob 1",
        "r1@a r2@a",
        running="r1 red/ann 1 on a:0 train age=5; r2 red/ann 1 on a:1 train age=5",
    ),
    Case(
        "work of other users with a higher priority is not taken",
        "a 2xT4",
        "p1 red/bob 1",
        "r1@a r2@a",
        running="r1 red/ann 1 on a:0 train prio=1 age=900; r2 red/ann 1 on a:1 train prio=1 age=800",
    ),
    Case(
        "work of users of other projects is not taken",
        "a 2xT4",
        "p1 red/bob 1",
        "r1@a r2@a",
        running="r1 red/ann 1 on a:0 train age=900; r2 blue/ann 1 on a:1 train age=800",
    ),
    Case(
        "a user within the limit of the project takes its share of it",
        "a 4xT4",
        "p1 red/bob 1",
        "p1@a r1@a",
        running="r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800",
        projects="red limit=2",
        evicted="r2",
    ),
    Case(
        "a user who wants little leaves the rest of its share to the others",
        "a 8xT4",
        "p1 red/bob 1",
        "p1@a b1@a b2@a c1@a r1@a",
        running="""r1 red/ann 4 on a:0123 train age=900; r2 red/ann 1 on a:4 train age=800;
                   b1 red/bob 1 on a:5 train age=900; b2 red/bob 1 on a:6 train age=900;
                   c1 red/cat 1 on a:7 train age=900""",
        evicted="r2",
    ),
    Case(
        "the user furthest above its share loses its newest work first",
        "a 4xT4",
        "p1 red/cat 1",
        "p1@a r1@a r3@a r4@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r4 red/ann 1 on a:3 train age=850; r3 red/bob 1 on a:2 train age=900""",
        evicted="r2",
    ),
    Case(
        "a user with twice the weight takes twice the share",
        "a 3xT4",
        "p1 red/bob 1; p2 red/bob 1; p3 red/bob 1",
        "p1@a p2@a r1@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r3 red/ann 1 on a:2 train age=700""",
        projects="red weights=bob:2",
        evicted="r2 r3",
    ),
    Case(
        "among free GPUs the user with less by weight is first",
        "a 4xT4",
        "p1 red/ann 1; p2 red/bob 1",
        "b1@a p2@a r1@a r2@a",
        running="r1 red/ann 1 on a:0 age=900; r2 red/ann 1 on a:1 age=900; b1 red/bob 1 on a:2 age=900",
        projects="red weights=ann:1",
    ),
    Case(
        "a user within its quota takes it from a user beyond its own",
        "a 4xT4",
        "p1 red/bob 1; p2 red/bob 1; p3 red/bob 1; p4 red/bob 1",
        "p1@a p2@a p3@a r1@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r3 red/ann 1 on a:2 train age=700; r4 red/ann 1 on a:3 train age=600""",
        projects="red quotas=bob:3",
        evicted="r2 r3 r4",
    ),
    Case(
        "a user within its quota loses nothing to users without one",
        "a 4xT4",
        "p1 red/bob 1; p2 red/cat 1",
        "r1@a r2@a r3@a r4@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r3 red/ann 1 on a:2 train age=700; r4 red/ann 1 on a:3 train age=600""",
        projects="red quotas=ann:4",
    ),
    Case(
        "what is left after the quota is divided equally",
        "a 4xT4",
        "p1 red/bob 1; p2 red/bob 1",
        "p1@a r1@a r2@a r3@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r3 red/ann 1 on a:2 train age=700; r4 red/ann 1 on a:3 train age=600""",
        projects="red quotas=ann:2",
        evicted="r4",
    ),
    Case(
        "a quota that its user does not want is used by others",
        "a 4xT4",
        "p1 red/bob 1",
        "p1@a r1@a r2@a r3@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r3 red/ann 1 on a:2 train age=700; r4 red/ann 1 on a:3 train age=600""",
        projects="red quotas=bob:3",
        evicted="r4",
    ),
    Case(
        "quotas larger than the project are reduced in proportion",
        "a 4xT4",
        "p1 red/bob 1; p2 red/bob 1; p3 red/bob 1; p4 red/bob 1",
        "p1@a p2@a r1@a r2@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800;
                   r3 red/ann 1 on a:2 train age=700; r4 red/ann 1 on a:3 train age=600""",
        projects="red quotas=ann:8,bob:8",
        evicted="r3 r4",
    ),
    Case(
        "a quota does not take protected work",
        "a 2xT4",
        "p1 red/bob 1",
        "r1@a r2@a",
        running="r1 red/ann 1 on a:0 age=900; r2 red/ann 1 on a:1 age=800",
        projects="red quotas=bob:2",
    ),
    Case(
        "among free GPUs a user below its quota is first",
        "a 4xT4",
        "p1 red/ann 1; p2 red/bob 1",
        "p2@a r1@a r2@a r3@a",
        running="r1 red/ann 1 on a:0 age=900; r2 red/bob 1 on a:1 age=900; r3 red/bob 1 on a:2 age=900",
        projects="red quotas=bob:3",
    ),
    Case(
        "a gang takes the share of its user",
        "a 2xT4; b 2xT4",
        "p1 red/bob 1 gang=2",
        "p1@b p1@b r1@a r2@a",
        running="""r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=900;
                   r3 red/ann 1 on b:0 train age=100; r4 red/ann 1 on b:1 train age=100""",
        evicted="r3 r4",
    ),
    Case(
        "a gang is not taken if its user would fall below its share",
        "a 2xT4; b 2xT4",
        "p1 red/bob 1",
        "g@a g@a g@b g@b",
        running="""g.0 red/ann 1 on a:0 train gang=4 age=900; g.1 red/ann 1 on a:1 train gang=4 age=900;
                   g.2 red/ann 1 on b:0 train gang=4 age=900; g.3 red/ann 1 on b:1 train gang=4 age=900""",
    ),
    Case(
        "a spare member of a gang is taken",
        "a 2xT4; b 2xT4",
        "p1 red/bob 1",
        "p1@b g@a g@a g@b",
        running="""g.0 red/ann 1 on a:0 train gang=2-4 age=900; g.1 red/ann 1 on a:1 train gang=2-4 age=900;
                   g.2 red/ann 1 on b:0 train gang=2-4 age=800; g.3 red/ann 1 on b:1 train gang=2-4 age=700""",
        evicted="g",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
