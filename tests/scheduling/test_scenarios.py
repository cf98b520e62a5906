"""What happens in small worlds: each runs until it rests, then five more rounds in which nothing may move."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from scheduling_world import world


@dataclass(frozen=True)
class Case:
    name: str
    nodes: str
    pending: str
    expect: str  # who runs where at rest
    running: str = ""
    projects: str = ""
    users: str = ""
    evicted: str = ""
    reserve_after_s: float = 300.0


ALLOCATE = [
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

FRACTION = [
    Case("two halves share", "a 1xT4", "p1 red 0.5; p2 red 0.5", "p1@a p2@a"),
    Case("three halves do not", "a 1xT4", "p1 red 0.5; p2 red 0.5; p3 red 0.5", "p1@a p2@a"),
    Case(
        "a slice goes where GPUs are shared", "a 1xT4; b 1xT4", "p1 red 0.3", "p1@b r1@b", running="r1 red 0.5 on b:0"
    ),
    Case(
        "the tightest shared GPU",
        "a 1xT4; b 1xT4; c 1xT4",
        "p1 red 0.3",
        "p1@b r1@a r2@b",
        running="r1 red 0.2 on a:0; r2 red 0.7 on b:0",
    ),
    Case(
        "else a free GPU on the fullest node",
        "a 4xT4; b 4xT4",
        "p1 red 0.6",
        "p1@b r1@b",
        running="r1 red 2 on b:01",
    ),
    Case("a slice spares whole GPUs", "a 2xT4", "p1 red 0.5; p2 red 1; p3 red 0.5", "p1@a p2@a p3@a"),
    Case("half of each of two", "a 2xT4", "p1 red 2x0.5; p2 red 2x0.5; p3 red 2x0.5", "p1@a p2@a"),
    Case("parts of several are all or nothing", "a 2xT4", "p1 red 2x0.6", "r1@a", running="r1 red 0.5 on a:0"),
    Case("by memory", "a 1xT4", "p1 red 8000M; p2 red 8000M; p3 red 1M", "p1@a p2@a"),
    Case("by memory on the only card large enough", "a 1xT4; b 1xA100", "p1 red 20000M", "p1@b"),
    Case("by memory the small card first", "a 1xA100; b 1xT4", "p1 red 8000M", "p1@b"),
    Case("memory nobody has", "a 1xT4", "p1 red 17000M", ""),
    Case("a thousandth beside 0.999", "a 1xT4", "p1 red 0.999; p2 red 0.001; p3 red 0.001", "p1@a p2@a"),
    Case("a whole card by memory needs it free", "a 1xT4", "p1 red 16000M", "r1@a", running="r1 red 0.001 on a:0"),
]

QUOTA = [
    Case("protected work stays within quota", "a 4xT4", "p1 red 1; p2 red 1", "p1@a", projects="red quota=1"),
    Case("training may exceed it", "a 4xT4", "p1 red 1 train; p2 red 1 train", "p1@a p2@a", projects="red quota=1"),
    Case("up to the limit", "a 4xT4", "p1 red 2 train; p2 red 2 train", "p1@a", projects="red quota=1 limit=3"),
    Case(
        "not where that is not wanted",
        "a 4xT4",
        "p1 red 1 train; p2 red 1 train",
        "p1@a",
        projects="red quota=1 strict",
    ),
    Case("quotas have fractions", "a 4xT4", "p1 red 0.5; p2 red 0.5; p3 red 0.1", "p1@a p2@a", projects="red quota=1"),
    Case("no quota at all", "a 4xT4", "p1 red 1; p2 red 1 train", "p2@a", projects="red quota=0"),
    Case("a head over quota does not block", "a 4xT4", "p1 red 3; p2 red 1", "p2@a", projects="red quota=2"),
    Case(
        "training over quota leaves the quota to protected work",
        "a 4xT4",
        "p1 red 2",
        "p1@a r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=2",
    ),
    Case(
        "a user's limit in a project",
        "a 4xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        projects="red user=1",
    ),
    Case(
        "a user's limit over all",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        users="ann limit=1",
    ),
    Case("a limit by memory on the larger card", "a 1xT4; b 1xA100", "p1 red 8000M", "p1@b", projects="red limit=0.2"),
    Case("what is held counts", "a 4xT4", "p1 red 1", "r1@a", running="r1 red 1 on a:0", projects="red quota=1"),
]

ORDER = [
    Case(
        "the project that has less goes first",
        "a 2xT4",
        "p1 red 1 wait=900; p2 blue 1",
        "p2@a r1@a",
        running="r1 red 1 on a:0",
    ),
    Case(
        "less of its quota",
        "a 4xT4",
        "p1 red 1 wait=90; p2 blue 1",
        "p2@a r1@a r2@a",
        running="r1 red 1 on a:0; r2 blue 2 on a:12",
        projects="red quota=2; blue quota=8",
    ),
    Case(
        "within quota before over it",
        "a 2xT4",
        "p1 red 1 train wait=900; p2 blue 1 train",
        "p2@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=1; blue quota=1",
    ),
    Case("projects without a quota take turns", "a 2xT4", "p1 red 1; p2 red 1; p3 blue 1", "p1@a p3@a"),
    Case(
        "the user who holds less",
        "a 2xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p2@a r1@a",
        running="r1 red/ann 1 on a:0",
    ),
    Case(
        "but priority counts more than that",
        "a 2xT4",
        "p1 red/ann 1 prio=1; p2 red/bob 1",
        "p1@a r1@a",
        running="r1 red/ann 1 on a:0",
    ),
    Case("priority is a matter within a project", "a 2xT4", "p1 red 1 prio=9; p2 red 1 prio=8; p3 blue 1", "p1@a p3@a"),
]

RECLAIM = [
    Case(
        "the owed GPU comes back, from the newest",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r2@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on a:1 train age=200",
        projects="red quota=1; blue quota=1",
        evicted="r1",
    ),
    Case(
        "lowest priority first",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train age=100 prio=1; r2 red 1 on a:1 train age=200",
        projects="red quota=1; blue quota=1",
        evicted="r2",
    ),
    Case(
        "one large instead of many small",
        "a 2xT4; b 2xT4",
        "p1 blue 2",
        "p1@b r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train; r3 red 2 on b:01 train",
        projects="red quota=2; blue quota=2",
        evicted="r3",
    ),
    Case(
        "never from within a quota",
        "a 2xT4",
        "p1 blue 1",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=2; blue quota=1",
    ),
    Case(
        "never for somebody over quota",
        "a 2xT4",
        "p1 blue 1 train",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 blue 1 on a:1 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "never protected work",
        "a 2xT4",
        "p1 blue 1",
        "r1@a r2@a",
        running="r1 red 1 on a:0; r2 red 1 on a:1",
        projects="red quota=1; blue quota=1",
    ),
    Case(
        "never the young",
        "a 1xT4",
        "p1 blue 1",
        "r1@a",
        running="r1 red 1 on a:0 train age=10",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "only as much as is over",
        "a 4xT4",
        "p1 blue 1; p2 blue 1; p3 blue 1",
        "p1@a r1@a r2@a r3@a",
        running="r1 red 1 on a:0 train age=400; r2 red 1 on a:1 train age=300; r3 red 1 on a:2 train age=200; "
        "r4 red 1 on a:3 train age=100",
        projects="red quota=3; blue quota=3",
        evicted="r4",
    ),
    Case(
        "nobody goes when it would not help",
        "a 2xT4",
        "p1 blue 2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 green 1 on a:1",
        projects="red quota=0; blue quota=2",
    ),
    Case(
        "nobody goes when something is free",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "nobody more goes while somebody is going",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r2@a",
        running="r1 red 1 on a:0 train releasing; r2 red 1 on a:1 train",
        projects="red quota=0; blue quota=1",
    ),
    Case(
        "slices are gathered from one GPU",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r3@a r4@a",
        running="r1 red 0.5 on a:0 train; r2 red 0.5 on a:0 train; r3 red 0.5 on a:1 train prio=1; "
        "r4 red 0.5 on a:1 train",
        projects="red quota=0; blue quota=1",
        evicted="r1 r2",
    ),
    Case(
        "from two projects over quota",
        "a 2xT4",
        "p1 blue 2",
        "p1@a",
        running="r1 red 1 on a:0 train; r2 green 1 on a:1 train",
        projects="red quota=0; green quota=0; blue quota=2",
        evicted="r1 r2",
    ),
    Case(
        "CPUs are reclaimed too",
        "a 2xT4 cpus=4",
        "p1 blue 1 cpus=2",
        "p1@a",
        running="r1 red 1 on a:0 train cpus=4",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "only on the model asked for",
        "a 1xT4; b 1xA100",
        "p1 blue 1 model=a100",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "a project without a quota is owed the pool",
        "a 1xT4",
        "p1 blue 1",
        "p1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0",
        evicted="r1",
    ),
    Case(
        "by memory",
        "a 1xT4",
        "p1 blue 8000M",
        "p1@a r2@a",
        running="r1 red 0.5 on a:0 train age=100; r2 red 0.5 on a:0 train age=900",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "training within its quota reclaims too",
        "a 1xT4",
        "p1 blue 1 train",
        "p1@a",
        running="r1 red 1 on a:0 train prio=9",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "several are served in one go",
        "a 4xT4",
        "p1 blue 1; p2 green 1",
        "p1@a p2@a r1@a r2@a",
        running="r1 red 1 on a:0 train age=400; r2 red 1 on a:1 train age=300; r3 red 1 on a:2 train age=200; "
        "r4 red 1 on a:3 train age=100",
        projects="red quota=0; blue quota=1; green quota=1",
        evicted="r3 r4",
    ),
]

PREEMPT = [
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

RESERVE = [
    Case(
        "slices do not starve a whole GPU",
        "a 1xT4",
        "p1 red 1 wait=900; p2 red 0.5 wait=5",
        "r1@a",
        running="r1 blue 0.5 on a:0 end=100",
    ),
    Case(
        "who has not waited long gets no reservation",
        "a 1xT4",
        "p1 red 1 wait=50; p2 red 0.5 wait=5",
        "p2@a r1@a",
        running="r1 blue 0.5 on a:0 end=100",
    ),
    Case(
        "the short may slip under it",
        "a 1xT4",
        "p1 red 1 wait=900; p2 red 0.5 wait=5 max=50",
        "p2@a r1@a",
        running="r1 blue 0.5 on a:0 end=100",
    ),
    Case(
        "not those that could end too late",
        "a 1xT4",
        "p1 red 1 wait=900; p2 red 0.5 wait=5 max=200",
        "r1@a",
        running="r1 blue 0.5 on a:0 end=100",
    ),
    Case(
        "the node that frees first is kept",
        "a 2xT4; b 2xT4",
        "p1 red 2 wait=900; p2 red 1 wait=5",
        "p2@a r1@a r2@b",
        running="r1 blue 1 on a:0 end=500; r2 blue 1 on b:0 end=100",
    ),
]

GROUPS = {
    "allocate": ALLOCATE,
    "fraction": FRACTION,
    "quota": QUOTA,
    "order": ORDER,
    "reclaim": RECLAIM,
    "preempt": PREEMPT,
    "reserve": RESERVE,
}
CASES = [pytest.param(case, id=f"{group}: {case.name}") for group, cases in GROUPS.items() for case in cases]


@pytest.mark.parametrize("case", CASES)
def test_scenario(case: Case) -> None:
    w = world(case.nodes, case.pending, case.running, case.projects, case.users, reserve_after_s=case.reserve_after_s)
    w.settle()
    assert w.places() == case.expect
    assert sorted(w.evicted) == case.evicted.split()
