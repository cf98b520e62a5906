"""Cases of gangs that reclaim or preempt, and of gangs that are victims."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "a gang reclaims its quota at once",
        "a 2xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "a gang reclaims its quota on two nodes",
        "a 1xT4; b 1xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@b",
        running="r1 red 1 on a:0 train; r2 red 1 on b:0 train",
        projects="red quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "a gang uses free GPUs before it reclaims others",
        "a 2xT4; b 2xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@b r1@a r3@b",
        running="r1 red 1 on a:0 train age=900; r2 green 1 on a:1 train age=100; r3 green 1 on b:0",
        projects="red quota=1; green quota=1; blue quota=2",
        evicted="r2",
    ),
    Case(
        "nothing is evicted when a member of the gang would not fit",
        "a 2xT4",
        "p1 blue 1 gang=2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 green 1 on a:1",
        projects="red quota=0; blue quota=2",
    ),
    Case(
        "nothing is evicted for a gang above its quota",
        "a 2xT4",
        "p1 blue 1 gang=2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "nothing is evicted for a gang that fits in no rack",
        "a 1xT4 rack=x; b 1xT4 rack=y",
        "p1 blue 1 gang=2 within=rack!",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train; r2 red 1 on b:0 train",
        projects="red quota=0; blue quota=2",
    ),
    Case(
        "victims are evicted in the rack that the gang needs",
        "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y cpus=32",
        "p1 blue 1 gang=2 within=rack!",
        "p1@b p1@c r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900; r3 red 1 on c:0 train age=900",
        projects="red quota=0; blue quota=2",
        evicted="r2 r3",
    ),
    Case(
        "a gang preempts victims for all of its members",
        "a 2xT4",
        "p1 red 1 gang=2 prio=1",
        "p1@a p1@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        evicted="r1 r2",
    ),
    Case(
        "a gang preempts nothing when it would still not fit",
        "a 2xT4",
        "p1 red 1 gang=2 prio=1",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1",
    ),
    Case(
        "a gang at its minimum is evicted as a whole",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
    ),
    Case(
        "a gang on two nodes is evicted as a whole",
        "a 1xT4; b 1xT4",
        "p1 blue 1; p2 blue 1",
        "p1@a p2@b",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on b:0 train gang=2",
        projects="red quota=0; blue quota=2",
        evicted="r1 r1",
    ),
    Case(
        "a single replica is evicted before a gang",
        "a 3xT4",
        "p1 blue 1",
        "p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 age=100; r1.1 red 1 on a:1 train gang=2 age=100; "
        "r2 red 1 on a:2 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "a gang above its minimum loses one spare member",
        "a 3xT4",
        "p1 blue 1",
        "p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2-3 age=300; r1.1 red 1 on a:1 train gang=2-3 age=200; "
        "r1.2 red 1 on a:2 train gang=2-3 age=100",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "a gang without spare members is evicted as a whole",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2-3; r1.1 red 1 on a:1 train gang=2-3",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
    ),
    Case(
        "an evicted gang starts again as a whole",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
        then=(("end p1", "r1@a r1@a"),),
    ),
    Case(
        "a protected gang is not evicted",
        "a 2xT4",
        "p1 blue 1",
        "r1@a r1@a",
        running="r1.0 red 1 on a:0 gang=2; r1.1 red 1 on a:1 gang=2",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "a gang within its quota is not evicted",
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
        "a gang reclaims GPUs from another gang",
        "a 4xT4",
        "p1 blue 1 gang=3",
        "p1@a p1@a p1@a",
        running="r1.0 red 1 on a:0 train gang=4; r1.1 red 1 on a:1 train gang=4; r1.2 red 1 on a:2 train gang=4; "
        "r1.3 red 1 on a:3 train gang=4",
        projects="red quota=0; blue quota=3",
        evicted="r1 r1 r1 r1",
    ),
    Case(
        "one gang is evicted instead of members of two gangs",
        "a 4xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 age=900; r1.1 red 1 on a:1 train gang=2 age=900; "
        "r2.0 red 1 on a:2 train gang=2 age=100; r2.1 red 1 on a:3 train gang=2 age=100",
        projects="red quota=0; blue quota=2",
        evicted="r2 r2",
    ),
    Case(
        "a gang may be evicted once its oldest member has had its min-runtime",
        "a 2xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=2; r1.1 red 1 on a:1 train gang=2 age=20",
        projects="red quota=0; blue quota=1",
        evicted="r1 r1",
    ),
    Case(
        "the gang of lower priority is evicted",
        "a 4xT4",
        "p1 blue 1",
        "p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 prio=1; r1.1 red 1 on a:1 train gang=2 prio=1; "
        "r2.0 red 1 on a:2 train gang=2; r2.1 red 1 on a:3 train gang=2",
        projects="red quota=0; blue quota=1",
        evicted="r2 r2",
    ),
    Case(
        "a gang partly above the quota is evicted as a whole",
        "a 4xT4",
        "p1 blue 1",
        "p1@a",
        running="r1.0 red 1 on a:0 train gang=4; r1.1 red 1 on a:1 train gang=4; r1.2 red 1 on a:2 train gang=4; "
        "r1.3 red 1 on a:3 train gang=4",
        projects="red quota=3; blue quota=1",
        evicted="r1 r1 r1 r1",
    ),
    Case(
        "the gang of lower priority is evicted for another gang",
        "a 4xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a r2@a r2@a",
        running="r1.0 red 1 on a:0 train gang=2 age=900; r1.1 red 1 on a:1 train gang=2 age=900; "
        "r2.0 red 1 on a:2 train gang=2 prio=1; r2.1 red 1 on a:3 train gang=2 prio=1",
        projects="red quota=0; blue quota=2",
        evicted="r1 r1",
    ),
    Case(
        "the gang of lower priority is evicted when it is the second one",
        "a 4xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@a r1@a r1@a",
        running="r1.0 red 1 on a:0 train gang=2 prio=1; r1.1 red 1 on a:1 train gang=2 prio=1; "
        "r2.0 red 1 on a:2 train gang=2 age=900; r2.1 red 1 on a:3 train gang=2 age=900",
        projects="red quota=0; blue quota=2",
        evicted="r2 r2",
    ),
    Case(
        "the gang of lower priority is evicted for a large replica",
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
