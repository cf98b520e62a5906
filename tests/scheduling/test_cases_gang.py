"""Cases of gangs: the minimum starts together or not at all; more members join when space becomes free."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("a gang of two starts on one node", "a 2xT4", "p1 red 1 gang=2", "p1@a p1@a"),
    Case("a gang of two starts on two nodes", "a 1xT4; b 1xT4", "p1 red 1 gang=2", "p1@a p1@b"),
    Case("a gang of two waits when one GPU is free", "a 1xT4", "p1 red 1 gang=2", ""),
    Case(
        "a gang waits until the second GPU is free",
        "a 2xT4",
        "p1 red 1 gang=2",
        "r1@a",
        running="r1 red 1 on a:0",
        then=(("end r1", "p1@a p1@a"),),
    ),
    Case("a gang that does not fit does not block a single replica", "a 1xT4", "p1 red 1 gang=2; p2 red 1", "p2@a"),
    Case("a gang starts with as many members as fit", "a 3xT4", "p1 red 1 gang=2-4", "p1@a p1@a p1@a"),
    Case("a gang waits when fewer members than its minimum fit", "a 2xT4", "p1 red 1 gang=3-4", ""),
    Case(
        "more members join when GPUs become free",
        "a 3xT4",
        "p1 red 1 gang=2-4",
        "p1@a p1@a p1@a",
        then=(("node b 2xT4", "p1@a p1@a p1@a p1@b"),),
    ),
    Case(
        "members that join start before other waiting work",
        "a 2xT4",
        "p1 red 1 gang=2-3; p2 red 1",
        "p1@a p1@a",
        then=(("node b 1xT4", "p1@a p1@a p1@b"), ("node c 1xT4", "p1@a p1@a p1@b p2@c")),
    ),
    Case("a gang prefers one node to two", "a 2xT4; b 1xT4; c 1xT4", "p1 red 1 gang=2", "p1@a p1@a"),
    Case(
        "a gang uses as few nodes as possible",
        "a 1xT4; b 2xT4; c 1xT4; d 2xT4",
        "p1 red 1 gang=4",
        "p1@b p1@b p1@d p1@d",
    ),
    Case(
        "a gang goes to the fuller of two suitable nodes",
        "a 4xT4; b 4xT4",
        "p1 red 1 gang=2",
        "p1@b p1@b r1@b",
        running="r1 red 2 on b:01",
    ),
    Case("members with several GPUs each get their own node", "a 2xT4; b 2xT4", "p1 red 2 gang=2", "p1@a p1@b"),
    Case("a member is never split over nodes", "a 3xT4; b 1xT4", "p1 red 2 gang=2", ""),
    Case("members with slices share a GPU", "a 1xT4", "p1 red 0.5 gang=2", "p1@a p1@a"),
    Case("a gang of slices waits when one slice does not fit", "a 1xT4", "p1 red 0.4 gang=3", ""),
    Case("members that request GPU memory get a GPU each", "a 1xT4; b 1xT4", "p1 red 10000M gang=2", "p1@a p1@b"),
    Case(
        "a protected gang waits when its minimum exceeds the quota",
        "a 4xT4",
        "p1 red 1 gang=2",
        "",
        projects="red quota=1",
    ),
    Case(
        "a protected gang starts with as many members as the quota allows",
        "a 4xT4",
        "p1 red 1 gang=2-4",
        "p1@a p1@a p1@a",
        projects="red quota=3",
    ),
    Case(
        "a training gang may exceed the quota", "a 4xT4", "p1 red 1 gang=2 train", "p1@a p1@a", projects="red quota=1"
    ),
    Case(
        "a gang starts with as many members as the project limit allows",
        "a 4xT4",
        "p1 red 1 gang=2-4 train",
        "p1@a p1@a p1@a",
        projects="red limit=3",
    ),
    Case(
        "a gang waits when its minimum exceeds the project limit",
        "a 4xT4",
        "p1 red 1 gang=3 train",
        "",
        projects="red limit=2.5",
    ),
    Case(
        "a gang waits when its minimum exceeds the user limit",
        "a 4xT4",
        "p1 red/ann 1 gang=2; p2 red/bob 1",
        "p2@a",
        users="ann limit=1",
    ),
    Case(
        "the gang queued first starts first",
        "a 2xT4",
        "p1 red 1 gang=2 wait=10; p2 red 1 gang=2 wait=20",
        "p2@a p2@a",
        then=(("end p2", "p1@a p1@a"),),
    ),
    Case(
        "the gang of higher priority starts first",
        "a 2xT4",
        "p1 red 1 gang=2 wait=90; p2 red 1 gang=2 prio=1",
        "p2@a p2@a",
    ),
    Case(
        "two gangs never hold half of their GPUs each", "a 4xT4", "p1 red 1 gang=3; p2 red 1 gang=3", "p1@a p1@a p1@a"
    ),
    Case(
        "a single replica gets the GPU that a gang leaves free",
        "a 3xT4",
        "p1 red 1 gang=2; p2 red 1 gang=2; p3 red 1",
        "p1@a p1@a p3@a",
    ),
    Case(
        "a small gang starts when a larger one ahead does not fit",
        "a 2xT4",
        "p1 red 1 gang=3; p2 red 1 gang=2",
        "p2@a p2@a",
    ),
    Case(
        "the CPUs of each member are counted",
        "a 4xT4 cpus=4; b 4xT4 cpus=4",
        "p1 red 1 gang=3 cpus=2; p2 red 1 gang=2 cpus=2",
        "p1@a p1@a p1@b",
    ),
    Case(
        "each member gets the requested GPU model",
        "a 1xA100 1xT4; b 1xA100 1xT4",
        "p1 red 1 gang=2 model=a100",
        "p1@a p1@b",
    ),
    Case("a gang waits when only one member finds its GPU model", "a 1xA100 3xT4", "p1 red 1 gang=2 model=a100", ""),
    Case("all members of a suspended gang wait", "a 2xT4", "p1 red 1 gang=2 suspended; p2 red 1", "p2@a"),
    Case(
        "all members wait until the back-off ends",
        "a 2xT4",
        "p1 red 1 gang=2 later=90",
        "",
        then=(("wait 100", "p1@a p1@a"),),
    ),
    Case(
        "a failed member rejoins its running gang",
        "a 2xT4",
        "p1 red 1 gang=2",
        "p1@a p1@a",
        then=(("requeue p1.1", "p1@a p1@a"),),
    ),
    Case(
        "a failed member restarts before other waiting work",
        "a 2xT4",
        "p1 red 1 gang=2; p2 red 1 wait=5",
        "p1@a p1@a",
        then=(("requeue p1.0", "p1@a p1@a"),),
    ),
    Case(
        "a gang uses no cordoned node and no failed GPU",
        "a 2xT4 failed=0; b 2xT4 cordoned",
        "p1 red 1 gang=2",
        "",
        then=(("up b", "p1@b p1@b"),),
    ),
    Case(
        "all GPUs of a gang count in the scheduling order of projects",
        "a 4xT4",
        "p1 red 1 gang=2; p2 red 1 gang=2; p3 blue 1; p4 blue 1",
        "p1@a p1@a p3@a p4@a",
    ),
    Case(
        "a starving gang gets a reservation",
        "a 2xT4",
        "p1 red 1 gang=2 wait=900; p2 red 1 wait=5",
        "r1@a",
        running="r1 blue 1 on a:0 end=100",
        then=(("end r1", "p1@a p1@a"), ("end p1", "p2@a")),
    ),
    Case(
        "a gang that has not waited long gets no reservation",
        "a 2xT4",
        "p1 red 1 gang=2 wait=50; p2 red 1 wait=5",
        "p2@a r1@a",
        running="r1 blue 1 on a:0 end=100",
    ),
    Case(
        "work with a short time limit is backfilled before a gang's reservation",
        "a 2xT4",
        "p1 red 1 gang=2 wait=900; p2 red 1 wait=5 max=90; p3 red 1 wait=5 max=200",
        "p2@a r1@a",
        running="r1 blue 1 on a:0 end=100",
    ),
    Case(
        "a gang gets a reservation on two nodes",
        "a 1xT4; b 1xT4 cpus=32; c 1xT4 cpus=16",
        "p1 red 1 gang=2 wait=900; p2 red 1 wait=5",
        "r1@a r2@b r3@c",
        running="r1 blue 1 on a:0 end=100; r2 blue 1 on b:0 end=200; r3 blue 1 on c:0 end=300",
        reserved="p1@a p1@b",
    ),
    Case(
        "a protected gang that would keep whole GPUs from a quota does not keep training gangs from free GPUs",
        "a 4xT4",
        "p1 red 0.6 gang=3; p2 green 0.6 gang=3 train",
        "p2@a p2@a p2@a",
        projects="blue quota=2",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
