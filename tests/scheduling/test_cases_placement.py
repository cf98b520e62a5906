"""Cases of placement: nodes and GPUs by links, instances, sharing modes, and scarce models."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "a replica of two GPUs gets a linked pair",
        "a 4xT4 nvlink",
        "p1 red 2",
        "p1@a r1@a",
        running="r1 red 1 on a:0",
        slots="p1:23",
    ),
    Case(
        "a single GPU is taken from a broken pair",
        "a 4xT4 nvlink",
        "p1 red 1",
        "p1@a r1@a",
        running="r1 red 1 on a:2",
        slots="p1:3",
    ),
    Case(
        "two replicas get one linked pair each", "a 4xT4 nvlink", "p1 red 2; p2 red 2", "p1@a p2@a", slots="p1:01 p2:23"
    ),
    Case(
        "a replica of two GPUs gets the pair that a single one left whole",
        "a 4xT4 nvlink",
        "p1 red 1; p2 red 2",
        "p1@a p2@a",
        slots="p2:23",
    ),
    Case("linked GPUs are preferred on equally full nodes", "a 2xT4; b 2xT4 nvlink", "p1 red 2", "p1@b"),
    Case(
        "a replica of two GPUs starts on two broken pairs",
        "a 4xT4 nvlink",
        "p1 red 2",
        "p1@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:2",
        slots="p1:13",
    ),
    Case(
        "a whole pair is preferred to broken ones",
        "a 6xT4 nvlink",
        "p1 red 2",
        "p1@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:4",
        slots="p1:23",
    ),
    Case(
        "a replica of three GPUs leaves a linked pair free",
        "a 5xT4 nvlink",
        "p1 red 3; p2 red 2",
        "p1@a p2@a",
        slots="p2:23",
    ),
    Case(
        "a single GPU is taken from a node without links",
        "a 1xT4; b 2xT4 nvlink",
        "p1 red 1; p2 red 2",
        "p1@a p2@b",
    ),
    Case(
        "a request without a model gets a whole GPU, not a MIG instance",
        "a 1xA100 mig=3g.40gb",
        "p1 red 1; p2 red 1",
        "p1@a",
        slots="p1:0",
    ),
    Case(
        "a MIG instance is requested by its profile",
        "a 1xA100 mig=3g.40gb,2g.20gb",
        "p1 red 1 model=2g.20gb",
        "p1@a",
        slots="p1:101",
    ),
    Case(
        "a request for the model mig gets any MIG instance",
        "a 1xA100 mig=3g.40gb",
        "p1 red 1 model=mig",
        "p1@a",
        slots="p1:100",
    ),
    Case(
        "slices and requests without a model get no MIG instance",
        "a mig=3g.40gb,2g.20gb",
        "p1 red 0.5; p2 red 8000M; p3 red 1",
        "",
    ),
    Case(
        "two MIG instances of a profile serve two replicas",
        "a mig=3g.40gb,3g.40gb",
        "p1 red 1 model=3g.40gb; p2 red 1 model=3g.40gb; p3 red 1 model=3g.40gb",
        "p1@a p2@a",
    ),
    Case("a replica waits when no MIG instance has its profile", "a mig=3g.40gb", "p1 red 1 model=1g.10gb", ""),
    Case(
        "a MIG instance is reclaimed",
        "a mig=3g.40gb",
        "p1 blue 1 model=3g.40gb",
        "p1@a",
        running="r1 red 1 model=3g.40gb on a:100, train",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "a MIG instance of another profile is not reclaimed",
        "a mig=3g.40gb,2g.20gb",
        "p1 blue 1 model=3g.40gb",
        "p1@a r2@a",
        running="r1 red 1 model=3g.40gb on a:100, train age=900; r2 red 1 model=2g.20gb on a:101, train age=100",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "slices of two sharing modes do not share a GPU",
        "a 1xT4 offers=share,mps",
        "p1 red 0.5 sharing=share; p2 red 0.5 sharing=mps",
        "p1@a",
    ),
    Case(
        "slices of two sharing modes use two GPUs",
        "a 2xT4 offers=share,mps",
        "p1 red 0.25 sharing=share; p2 red 0.25 sharing=mps; p3 red 0.25 sharing=share; p4 red 0.25 sharing=mps",
        "p1@a p2@a p3@a p4@a",
        slots="p1:0 p2:1 p3:0 p4:1",
    ),
    Case("a slice waits when no node offers its sharing mode", "a 1xT4 offers=share", "p1 red 0.5 sharing=mps", ""),
    Case(
        "a slice goes to the node that offers its sharing mode",
        "a 1xT4 offers=share; b 1xT4 offers=share,mps",
        "p1 red 0.5 sharing=mps",
        "p1@b",
    ),
    Case(
        "the policy of a GPU is the sharing mode of a slice without one",
        "a 1xT4 offers=share,mps policy=mps",
        "p1 red 0.5; p2 red 0.5 sharing=share",
        "p1@a",
    ),
    Case(
        "an MPS server on a GPU serves one user",
        "a 2xT4 offers=share,mps",
        "p1 red/ann 0.25 sharing=mps; p2 red/bob 0.25 sharing=mps; p3 red/ann 0.25 sharing=mps",
        "p1@a p2@a p3@a",
        slots="p1:0 p2:1 p3:0",
    ),
    Case("MPS slices of two GPUs do not start", "a 2xT4 offers=share,mps", "p1 red 2x0.5 sharing=mps", ""),
    Case(
        "a GPU takes another sharing mode when its last slice ends",
        "a 1xT4 offers=share,mps",
        "p1 red 0.5 sharing=share; p2 red 0.5 sharing=mps",
        "p1@a",
        then=(("end p1", "p2@a"),),
    ),
    Case("a whole GPU needs no sharing mode", "a 1xT4 offers=mps policy=mps", "p1 red 1", "p1@a"),
    Case(
        "a replica gets the scarce GPU when no other is free",
        "a 1xT4; b 1xA100",
        "p1 red 1; p2 red 1; p3 red 1",
        "p1@a p2@b",
    ),
    Case("a request by memory gets the smallest sufficient GPU", "a 1xA100; b 1xL4; c 1xT4", "p1 red 12000M", "p1@c"),
    Case(
        "a request by memory gets the next larger GPU when the small one is in use",
        "a 1xA100; b 1xL4; c 1xT4",
        "p1 red 12000M",
        "p1@b r1@c",
        running="r1 red 1 on c:0",
    ),
    Case(
        "a replica with many CPUs goes to the node with few GPUs",
        "a 4xT4 cpus=16; b 1xT4 cpus=16",
        "p1 red 1 cpus=16; p2 red 4 cpus=4",
        "p1@b p2@a",
    ),
    Case(
        "replicas of any model leave the scarce GPU free",
        "a 1xT4; b 1xT4; c 1xA100",
        "p1 red 1; p2 red 1; p3 red 1 model=a100",
        "p1@a p2@b p3@c",
    ),
    Case(
        "a slice of any model leaves the scarce GPU free",
        "a 1xT4; b 1xT4; c 1xA100",
        "p1 red 0.5; p2 red 1 model=a100",
        "p1@a p2@c",
    ),
    Case(
        "replicas of several GPUs of any model leave the scarce GPUs free",
        "a 2xT4; b 2xT4; c 2xA100",
        "p1 red 2; p2 red 2; p3 red 2 model=a100",
        "p1@a p2@b p3@c",
    ),
    Case(
        "a request for any MIG instance gets the smallest one",
        "a mig=3g.40gb,1g.10gb",
        "p1 red 1 model=mig; p2 red 1 model=3g.40gb",
        "p1@a p2@a",
        slots="p1:101 p2:100",
    ),
    Case(
        "the scarce GPU of a node stays free",
        "a 1xA100 3xT4",
        "p1 red 1; p2 red 1 model=a100",
        "p1@a p2@a",
        slots="p2:0",
    ),
    Case(
        "a replica of any model gets the smaller GPUs of a node",
        "a 1xA100 1xT4 1xA100 1xT4",
        "p1 red 2",
        "p1@a",
        slots="p1:13",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
