"""Cases of allocation: free GPUs go to the first in scheduling order, on one node, or not at all."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("an empty queue grants nothing", "a 1xT4", "", ""),
    Case("a replica waits in a pool without nodes", "", "p1 red 1", ""),
    Case("a replica gets the free GPU", "a 1xT4", "p1 red 1", "p1@a"),
    Case("the second replica waits when one GPU is free", "a 1xT4", "p1 red 1; p2 red 1", "p1@a"),
    Case("the replica queued first starts first", "a 1xT4", "p2 red 1 wait=5; p1 red 1 wait=50", "p1@a"),
    Case("the higher priority starts before the older replica", "a 1xT4", "p1 red 1 wait=500; p2 red 1 prio=1", "p2@a"),
    Case("a negative priority starts last", "a 1xT4", "p1 red 1 prio=-1 wait=500; p2 red 1", "p2@a"),
    Case("a replica gets several GPUs of one node", "a 2xT4; b 4xT4", "p1 red 4", "p1@b"),
    Case("a replica is never split over nodes", "a 2xT4; b 2xT4", "p1 red 4", ""),
    Case("a replica waits until all of its GPUs are free", "a 4xT4", "p1 red 4", "r1@a", running="r1 red 1 on a:0"),
    Case("a large replica at the head of the queue does not block a small one", "a 2xT4", "p1 red 4; p2 red 1", "p2@a"),
    Case("a replica goes to the node where fewest GPUs stay free", "a 8xT4; b 2xT4", "p1 red 2", "p1@b"),
    Case("two large replicas fill two nodes", "a 4xT4; b 4xT4", "p1 red 4; p2 red 4", "p1@a p2@b"),
    Case(
        "small replicas share a node and leave the other node free",
        "a 4xT4; b 4xT4",
        "p1 red 1; p2 red 1; p3 red 4",
        "p1@a p2@a p3@b",
    ),
    Case("a replica gets the requested GPU model", "a 2xT4; b 2xA100", "p1 red 1 model=a100", "p1@b"),
    Case("a part of a model name matches no GPU", "a 2xH100; b 2xL4", "p1 red 1 model=100", ""),
    Case("a replica waits when no node has the requested GPU model", "a 2xT4", "p1 red 1 model=h100", ""),
    Case(
        "two replicas get their GPU models on one node",
        "a 2xT4 2xA100",
        "p1 red 2 model=a100; p2 red 2 model=t4",
        "p1@a p2@a",
    ),
    Case("a replica goes to a node with the requested label", "a 1xT4; b 1xT4 zone=x", "p1 red 1 zone=x", "p1@b"),
    Case("a replica waits when no node has the requested label", "a 1xT4 zone=y", "p1 red 1 zone=x", ""),
    Case("nothing starts on a cordoned node", "a 1xT4 cordoned", "p1 red 1", ""),
    Case("running work stays on a cordoned node", "a 1xT4 cordoned", "", "r1@a", running="r1 red 1 on a:0"),
    Case("nothing starts on a node that is down", "a 1xT4 down; b 1xT4", "p1 red 1; p2 red 1", "p1@b"),
    Case("nothing starts on a failed GPU", "a 2xT4 failed=0", "p1 red 1; p2 red 1", "p1@a"),
    Case("nothing starts on a GPU with foreign processes", "a 2xT4 foreign=01", "p1 red 0.1", ""),
    Case(
        "a replica waits when too few CPUs are free",
        "a 4xT4 cpus=4",
        "p1 red 1 cpus=3; p2 red 1 cpus=3; p3 red 1 cpus=1",
        "p1@a p3@a",
    ),
    Case(
        "a replica waits when too little memory is free", "a 4xT4 mem=100", "p1 red 1 mem=60; p2 red 1 mem=60", "p1@a"
    ),
    Case(
        "a replica without CPUs starts on a node without free CPUs",
        "a 2xT4 cpus=1",
        "p1 red 1 cpus=1; p2 red 1",
        "p1@a p2@a",
    ),
    Case("a lease on a missing GPU blocks no other GPU", "a 1xT4", "p1 red 1", "p1@a r1@a", running="r1 red 1 on a:7"),
    Case(
        "a lease on a missing node blocks no other node", "a 1xT4", "p1 red 1", "p1@a r1@zz", running="r1 red 1 on zz:0"
    ),
    Case("a replica in its back-off waits", "a 1xT4", "p1 red 1 later=1000; p2 red 1", "p2@a"),
    Case("a suspended replica waits", "a 1xT4", "p1 red 1 suspended; p2 red 1", "p2@a"),
    Case(
        "replicas held by a dependency or by parallelism wait",
        "a 2xT4",
        "p1 red 1 dependency; p2 red 1 parallelism",
        "",
    ),
    Case(
        "a small replica uses the GPU that a large one leaves free",
        "a 4xT4",
        "p1 red 3; p2 red 2; p3 red 1",
        "p1@a p3@a",
    ),
    Case(
        "each replica gets the GPU model that it requests",
        "a 1xT4; b 1xA100; c 1xL4",
        "p1 red 1 model=l4; p2 red 1 model=a100; p3 red 1 model=t4",
        "p1@c p2@b p3@a",
    ),
    Case(
        "a replica that accepts two models gets the one that exists",
        "a 1xT4; b 1xH100",
        "p1 red 1 model=a100,h100",
        "p1@b",
    ),
    Case(
        "replicas that accept two models use both",
        "a 1xA100; b 1xH100; c 1xT4",
        "p1 red 1 model=a100,h100; p2 red 1 model=a100,h100; p3 red 1 model=a100,h100",
        "p1@a p2@b",
    ),
    Case("a replica goes to the node with enough CPUs", "a 2xT4 cpus=2; b 2xT4", "p1 red 1 cpus=4", "p1@b"),
    Case("a replica goes to the node with enough memory", "a 2xT4 mem=1000; b 2xT4", "p1 red 1 mem=2000", "p1@b"),
    Case(
        "fractions of CPUs are counted",
        "a 4xT4 cpus=1",
        "p1 red 1 cpus=0.5; p2 red 1 cpus=0.5; p3 red 1 cpus=0.001",
        "p1@a p2@a",
    ),
    Case("CPUs of different nodes are not added up", "a 2xT4 cpus=3; b 2xT4 cpus=3", "p1 red 2 cpus=4", ""),
    Case("a replica with more GPUs than any node waits", "a 4xT4; b 4xT4", "p1 red 5", ""),
    Case(
        "a replica goes to the fuller of two nodes",
        "a 4xT4; b 4xT4",
        "p1 red 2",
        "p1@b r1@b",
        running="r1 red 2 on b:01",
    ),
    Case(
        "a replica goes to the fuller node when that is the first one",
        "a 4xT4; b 4xT4",
        "p1 red 2",
        "p1@a r1@a",
        running="r1 red 2 on a:01",
    ),
    Case(
        "a node that is just large enough is chosen before a larger free one",
        "a 8xT4; b 4xT4; c 2xT4",
        "p1 red 4; p2 red 2; p3 red 8",
        "p1@b p2@c p3@a",
    ),
    Case(
        "overlapping leases on one GPU leave the other GPU free",
        "a 2xT4",
        "p1 red 1; p2 red 1",
        "p1@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:0",
    ),
    Case(
        "a lease larger than its node takes nothing from other nodes",
        "a 1xT4 cpus=1; b 1xT4",
        "p1 red 1 cpus=1",
        "p1@b r1@a",
        running="r1 red 0.5 on a:0 cpus=9",
    ),
    Case("no GPU work starts on a node without GPUs", "a cpus=8; b 1xT4", "p1 red 1; p2 red 1", "p1@b"),
    Case(
        "label and GPU model must both match",
        "a 1xT4 zone=x; b 1xA100 zone=y; c 1xA100 zone=x",
        "p1 red 1 zone=x model=a100; p2 red 1 zone=x model=a100",
        "p1@c",
    ),
    Case(
        "both requested labels must match",
        "a 1xT4 zone=x; b 1xT4 rack=r; c 1xT4 zone=x rack=r",
        "p1 red 1 zone=x rack=r; p2 red 1 zone=x rack=r",
        "p1@c",
    ),
    Case(
        "unrestricted work leaves the labelled node to work that needs it",
        "a 2xT4; b 2xT4 zone=x",
        "p1 red 2 zone=x; p2 red 2",
        "p1@b p2@a",
    ),
    Case(
        "other GPUs of a node with a foreign process are used",
        "a 3xT4 foreign=1",
        "p1 red 2; p2 red 1",
        "p1@a",
        slots="p1:02",
    ),
    Case(
        "a replica with several GPUs skips a failed GPU",
        "a 4xT4 failed=2",
        "p1 red 4; p2 red 3",
        "p2@a",
        slots="p2:013",
    ),
    Case("equal replicas start in order of arrival", "a 1xT4", "p9 red 1; p1 red 1", "p9@a"),
    Case(
        "training and protected work both start when GPUs are free", "a 2xT4", "p1 red 1 train; p2 red 1", "p1@a p2@a"
    ),
    Case(
        "a cycle that reaches max_grants continues in the next cycle",
        "a 4xT4",
        "p1 red 1; p2 red 1; p3 red 1; p4 red 1",
        "p1@a p2@a p3@a p4@a",
        settings={"max_grants": 1},
    ),
    Case(
        "a waiting replica starts when a running one ends",
        "a 1xT4",
        "p1 red 1",
        "r1@a",
        running="r1 red 1 on a:0",
        then=(("end r1", "p1@a"),),
    ),
    Case(
        "replicas that arrive later get the remaining GPUs",
        "a 2xT4",
        "p1 red 1",
        "p1@a",
        then=(("add p2 red 1", "p1@a p2@a"), ("add p3 red 1", "p1@a p2@a")),
    ),
    Case(
        "a stopped replica leaves the queue",
        "a 1xT4",
        "p1 red 1; p2 red 1",
        "p1@a",
        then=(("stop p2", "p1@a"), ("end p1", "")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
