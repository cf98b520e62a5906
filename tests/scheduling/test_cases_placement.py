"""Which node and which GPUs: links, instances, sharing modes, and scarce models."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "linked neighbours are taken together",
        "a 4xT4 nvlink",
        "p1 red 2",
        "p1@a r1@a",
        running="r1 red 1 on a:0",
        slots="p1:23",
    ),
    Case(
        "a single one leaves pairs whole",
        "a 4xT4 nvlink",
        "p1 red 1",
        "p1@a r1@a",
        running="r1 red 1 on a:2",
        slots="p1:3",
    ),
    Case("one pair each", "a 4xT4 nvlink", "p1 red 2; p2 red 2", "p1@a p2@a", slots="p1:01 p2:23"),
    Case("a single one, then a pair", "a 4xT4 nvlink", "p1 red 1; p2 red 2", "p1@a p2@a", slots="p2:23"),
    Case("better linked among equally full", "a 2xT4; b 2xT4 nvlink", "p1 red 2", "p1@b"),
    Case(
        "two broken pairs still serve",
        "a 4xT4 nvlink",
        "p1 red 2",
        "p1@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:2",
        slots="p1:13",
    ),
    Case(
        "one whole pair among broken ones",
        "a 6xT4 nvlink",
        "p1 red 2",
        "p1@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:4",
        slots="p1:23",
    ),
    Case("three take a pair and one", "a 5xT4 nvlink", "p1 red 3; p2 red 2", "p1@a p2@a", slots="p2:23"),
    Case(
        "whoever has no use for links goes where there are none",
        "a 1xT4; b 2xT4 nvlink",
        "p1 red 1; p2 red 2",
        "p1@a p2@b",
    ),
    Case("a plain request gets a card", "a 1xA100 mig=3g.40gb", "p1 red 1; p2 red 1", "p1@a", slots="p1:0"),
    Case(
        "an instance by its profile", "a 1xA100 mig=3g.40gb,2g.20gb", "p1 red 1 model=2g.20gb", "p1@a", slots="p1:101"
    ),
    Case("any instance", "a 1xA100 mig=3g.40gb", "p1 red 1 model=mig", "p1@a", slots="p1:100"),
    Case("no part of a plain card from an instance", "a mig=3g.40gb,2g.20gb", "p1 red 0.5; p2 red 8000M; p3 red 1", ""),
    Case(
        "two of a profile for two",
        "a mig=3g.40gb,3g.40gb",
        "p1 red 1 model=3g.40gb; p2 red 1 model=3g.40gb; p3 red 1 model=3g.40gb",
        "p1@a p2@a",
    ),
    Case("a profile that nobody made", "a mig=3g.40gb", "p1 red 1 model=1g.10gb", ""),
    Case(
        "an instance is reclaimed",
        "a mig=3g.40gb",
        "p1 blue 1 model=3g.40gb",
        "p1@a",
        running="r1 red 1 model=3g.40gb on a:100, train",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "an instance of the other profile is not reclaimed",
        "a mig=3g.40gb,2g.20gb",
        "p1 blue 1 model=3g.40gb",
        "p1@a r2@a",
        running="r1 red 1 model=3g.40gb on a:100, train age=900; r2 red 1 model=2g.20gb on a:101, train age=100",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "parts in one mode do not meet those in another",
        "a 1xT4 offers=share,mps",
        "p1 red 0.5 sharing=share; p2 red 0.5 sharing=mps",
        "p1@a",
    ),
    Case(
        "parts in two modes on two GPUs",
        "a 2xT4 offers=share,mps",
        "p1 red 0.25 sharing=share; p2 red 0.25 sharing=mps; p3 red 0.25 sharing=share; p4 red 0.25 sharing=mps",
        "p1@a p2@a p3@a p4@a",
        slots="p1:0 p2:1 p3:0 p4:1",
    ),
    Case("a mode the node does not offer", "a 1xT4 offers=share", "p1 red 0.5 sharing=mps", ""),
    Case(
        "a mode on the node that offers it",
        "a 1xT4 offers=share; b 1xT4 offers=share,mps",
        "p1 red 0.5 sharing=mps",
        "p1@b",
    ),
    Case(
        "a GPU's policy decides for who asks for none",
        "a 1xT4 offers=share,mps policy=mps",
        "p1 red 0.5; p2 red 0.5 sharing=share",
        "p1@a",
    ),
    Case(
        "one user's server on a GPU",
        "a 2xT4 offers=share,mps",
        "p1 red/ann 0.25 sharing=mps; p2 red/bob 0.25 sharing=mps; p3 red/ann 0.25 sharing=mps",
        "p1@a p2@a p3@a",
        slots="p1:0 p2:1 p3:0",
    ),
    Case("a part of two GPUs has no one server", "a 2xT4 offers=share,mps", "p1 red 2x0.5 sharing=mps", ""),
    Case(
        "another mode when the last part has gone",
        "a 1xT4 offers=share,mps",
        "p1 red 0.5 sharing=share; p2 red 0.5 sharing=mps",
        "p1@a",
        then=(("end p1", "p2@a"),),
    ),
    Case("a whole GPU needs no mode", "a 1xT4 offers=mps policy=mps", "p1 red 1", "p1@a"),
    Case("the scarce one when nothing else is free", "a 1xT4; b 1xA100", "p1 red 1; p2 red 1; p3 red 1", "p1@a p2@b"),
    Case("the small card for small memory", "a 1xA100; b 1xL4; c 1xT4", "p1 red 12000M", "p1@c"),
    Case(
        "the next larger card when the small is full",
        "a 1xA100; b 1xL4; c 1xT4",
        "p1 red 12000M",
        "p1@b r1@c",
        running="r1 red 1 on c:0",
    ),
    Case(
        "CPUs left for GPUs: who needs many CPUs goes where few GPUs are left",
        "a 4xT4 cpus=16; b 1xT4 cpus=16",
        "p1 red 1 cpus=16; p2 red 4 cpus=4",
        "p1@b p2@a",
    ),
    Case(
        "whoever takes any model leaves the scarce one",
        "a 1xT4; b 1xT4; c 1xA100",
        "p1 red 1; p2 red 1; p3 red 1 model=a100",
        "p1@a p2@b p3@c",
    ),
    Case(
        "a part for any model leaves the scarce one",
        "a 1xT4; b 1xT4; c 1xA100",
        "p1 red 0.5; p2 red 1 model=a100",
        "p1@a p2@c",
    ),
    Case(
        "several for any model leave the scarce one",
        "a 2xT4; b 2xT4; c 2xA100",
        "p1 red 2; p2 red 2; p3 red 2 model=a100",
        "p1@a p2@b p3@c",
    ),
    Case(
        "the smallest instance that will do",
        "a mig=3g.40gb,1g.10gb",
        "p1 red 1 model=mig; p2 red 1 model=3g.40gb",
        "p1@a p2@a",
        slots="p1:101 p2:100",
    ),
    Case(
        "the scarce GPU of a node is left", "a 1xA100 3xT4", "p1 red 1; p2 red 1 model=a100", "p1@a p2@a", slots="p2:0"
    ),
    Case(
        "the smaller GPUs of a node for who takes any", "a 1xA100 1xT4 1xA100 1xT4", "p1 red 2", "p1@a", slots="p1:13"
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
