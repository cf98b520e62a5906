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
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
