"""What is free is given to whoever is first, on one node, or not at all."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("nothing waits", "a 1xT4", "", ""),
    Case("no nodes", "", "p1 red 1", ""),
    Case("one whole GPU", "a 1xT4", "p1 red 1", "p1@a"),
    Case("one of two waits", "a 1xT4", "p1 red 1; p2 red 1", "p1@a"),
    Case("first come first served", "a 1xT4", "p2 red 1 wait=5; p1 red 1 wait=50", "p1@a"),
    Case("priority before age", "a 1xT4", "p1 red 1 wait=500; p2 red 1 prio=1", "p2@a"),
    Case("negative priority goes last", "a 1xT4", "p1 red 1 prio=-1 wait=500; p2 red 1", "p2@a"),
    Case("several GPUs on one node", "a 2xT4; b 4xT4", "p1 red 4", "p1@b"),
    Case("never split over nodes", "a 2xT4; b 2xT4", "p1 red 4", ""),
    Case("all or nothing", "a 4xT4", "p1 red 4", "r1@a", running="r1 red 1 on a:0"),
    Case("a large head does not block a small one", "a 2xT4", "p1 red 4; p2 red 1", "p2@a"),
    Case("least leftover for whole GPUs", "a 8xT4; b 2xT4", "p1 red 2", "p1@b"),
    Case("two of two", "a 4xT4; b 4xT4", "p1 red 4; p2 red 4", "p1@a p2@b"),
    Case("small ones leave the large node whole", "a 4xT4; b 4xT4", "p1 red 1; p2 red 1; p3 red 4", "p1@a p2@a p3@b"),
    Case("the model asked for", "a 2xT4; b 2xA100", "p1 red 1 model=a100", "p1@b"),
    Case("a part of a model's name is not enough", "a 2xH100; b 2xL4", "p1 red 1 model=100", ""),
    Case("a model nobody has", "a 2xT4", "p1 red 1 model=h100", ""),
    Case("two models in one node", "a 2xT4 2xA100", "p1 red 2 model=a100; p2 red 2 model=t4", "p1@a p2@a"),
    Case("the label asked for", "a 1xT4; b 1xT4 zone=x", "p1 red 1 zone=x", "p1@b"),
    Case("no such label", "a 1xT4 zone=y", "p1 red 1 zone=x", ""),
    Case("a cordoned node takes nothing", "a 1xT4 cordoned", "p1 red 1", ""),
    Case("a cordoned node keeps what runs", "a 1xT4 cordoned", "", "r1@a", running="r1 red 1 on a:0"),
    Case("a node that is down", "a 1xT4 down; b 1xT4", "p1 red 1; p2 red 1", "p1@b"),
    Case("a failed GPU", "a 2xT4 failed=0", "p1 red 1; p2 red 1", "p1@a"),
    Case("a GPU others use", "a 2xT4 foreign=01", "p1 red 0.1", ""),
    Case("CPUs run out", "a 4xT4 cpus=4", "p1 red 1 cpus=3; p2 red 1 cpus=3; p3 red 1 cpus=1", "p1@a p3@a"),
    Case("memory runs out", "a 4xT4 mem=100", "p1 red 1 mem=60; p2 red 1 mem=60", "p1@a"),
    Case("no CPU asked for fits a machine without any left", "a 2xT4 cpus=1", "p1 red 1 cpus=1; p2 red 1", "p1@a p2@a"),
    Case("a lease on a GPU that is gone", "a 1xT4", "p1 red 1", "p1@a r1@a", running="r1 red 1 on a:7"),
    Case("a lease on a node that is gone", "a 1xT4", "p1 red 1", "p1@a r1@zz", running="r1 red 1 on zz:0"),
    Case("a back-off", "a 1xT4", "p1 red 1 later=1000; p2 red 1", "p2@a"),
    Case("suspended", "a 1xT4", "p1 red 1 suspended; p2 red 1", "p2@a"),
    Case("held by a dependency and by parallelism", "a 2xT4", "p1 red 1 dependency; p2 red 1 parallelism", ""),
    Case("the rest fills what a large one leaves", "a 4xT4", "p1 red 3; p2 red 2; p3 red 1", "p1@a p3@a"),
    Case(
        "each finds its model",
        "a 1xT4; b 1xA100; c 1xL4",
        "p1 red 1 model=l4; p2 red 1 model=a100; p3 red 1 model=t4",
        "p1@c p2@b p3@a",
    ),
    Case("either of two models will do", "a 1xT4; b 1xH100", "p1 red 1 model=a100,h100", "p1@b"),
    Case(
        "either of two models, both are used",
        "a 1xA100; b 1xH100; c 1xT4",
        "p1 red 1 model=a100,h100; p2 red 1 model=a100,h100; p3 red 1 model=a100,h100",
        "p1@a p2@b",
    ),
    Case("the node with the CPUs asked for", "a 2xT4 cpus=2; b 2xT4", "p1 red 1 cpus=4", "p1@b"),
    Case("the node with the memory asked for", "a 2xT4 mem=1000; b 2xT4", "p1 red 1 mem=2000", "p1@b"),
    Case("parts of CPUs", "a 4xT4 cpus=1", "p1 red 1 cpus=0.5; p2 red 1 cpus=0.5; p3 red 1 cpus=0.001", "p1@a p2@a"),
    Case("CPUs are enough on none though there are in all", "a 2xT4 cpus=3; b 2xT4 cpus=3", "p1 red 2 cpus=4", ""),
    Case("more GPUs than any node has", "a 4xT4; b 4xT4", "p1 red 5", ""),
    Case("the fuller node for whole GPUs", "a 4xT4; b 4xT4", "p1 red 2", "p1@b r1@b", running="r1 red 2 on b:01"),
    Case("the fuller node, declared first", "a 4xT4; b 4xT4", "p1 red 2", "p1@a r1@a", running="r1 red 2 on a:01"),
    Case(
        "a node just large enough before a larger one that is free",
        "a 8xT4; b 4xT4; c 2xT4",
        "p1 red 4; p2 red 2; p3 red 8",
        "p1@b p2@c p3@a",
    ),
    Case(
        "leases that overlap leave other GPUs to others",
        "a 2xT4",
        "p1 red 1; p2 red 1",
        "p1@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:0",
    ),
    Case(
        "a lease on more than there is takes nothing from others",
        "a 1xT4 cpus=1; b 1xT4",
        "p1 red 1 cpus=1",
        "p1@b r1@a",
        running="r1 red 0.5 on a:0 cpus=9",
    ),
    Case("a node without GPUs takes none", "a cpus=8; b 1xT4", "p1 red 1; p2 red 1", "p1@b"),
    Case(
        "both label and model",
        "a 1xT4 zone=x; b 1xA100 zone=y; c 1xA100 zone=x",
        "p1 red 1 zone=x model=a100; p2 red 1 zone=x model=a100",
        "p1@c",
    ),
    Case(
        "two labels are both needed",
        "a 1xT4 zone=x; b 1xT4 rack=r; c 1xT4 zone=x rack=r",
        "p1 red 1 zone=x rack=r; p2 red 1 zone=x rack=r",
        "p1@c",
    ),
    Case(
        "who may go anywhere leaves a place to who may not",
        "a 2xT4; b 2xT4 zone=x",
        "p1 red 2 zone=x; p2 red 2",
        "p1@b p2@a",
    ),
    Case(
        "a GPU that others use leaves the rest of its node",
        "a 3xT4 foreign=1",
        "p1 red 2; p2 red 1",
        "p1@a",
        slots="p1:02",
    ),
    Case("a failed GPU is not part of several", "a 4xT4 failed=2", "p1 red 4; p2 red 3", "p2@a", slots="p2:013"),
    Case("equal in all goes by arrival", "a 1xT4", "p9 red 1; p1 red 1", "p9@a"),
    Case(
        "training and protected work are equals when there is room", "a 2xT4", "p1 red 1 train; p2 red 1", "p1@a p2@a"
    ),
    Case(
        "a cycle that stops at its bound goes on in the next",
        "a 4xT4",
        "p1 red 1; p2 red 1; p3 red 1; p4 red 1",
        "p1@a p2@a p3@a p4@a",
        settings={"max_grants": 1},
    ),
    Case("what ends makes room", "a 1xT4", "p1 red 1", "r1@a", running="r1 red 1 on a:0", then=(("end r1", "p1@a"),)),
    Case(
        "who comes later takes what is left",
        "a 2xT4",
        "p1 red 1",
        "p1@a",
        then=(("add p2 red 1", "p1@a p2@a"), ("add p3 red 1", "p1@a p2@a")),
    ),
    Case(
        "who is stopped waits no more",
        "a 1xT4",
        "p1 red 1; p2 red 1",
        "p1@a",
        then=(("stop p2", "p1@a"), ("end p1", "")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
