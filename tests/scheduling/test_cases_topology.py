"""Cases of topology: gang members on one node, in one rack, or near each other."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("a strict gang waits when no node fits all members", "a 1xT4; b 1xT4", "p1 red 1 gang=2 within=node!", ""),
    Case(
        "a strict gang starts on the node that fits all members",
        "a 1xT4; b 2xT4",
        "p1 red 1 gang=2 within=node!",
        "p1@b p1@b",
    ),
    Case("a gang that prefers one node starts on two", "a 1xT4; b 1xT4", "p1 red 1 gang=2 within=node", "p1@a p1@b"),
    Case(
        "a strict gang starts in one rack",
        "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@b p1@c",
    ),
    Case(
        "a strict gang waits when no rack fits all members",
        "a 1xT4 rack=x; b 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!; p2 red 1",
        "p2@a",
        settings={},
    ),
    Case(
        "a gang without a topology starts in two racks", "a 1xT4 rack=x; b 1xT4 rack=y", "p1 red 1 gang=2", "p1@a p1@b"
    ),
    Case(
        "a gang that prefers one rack starts in two",
        "a 1xT4 rack=x; b 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack",
        "p1@a p1@b",
    ),
    Case(
        "a gang that prefers one rack starts in one that fits",
        "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack",
        "p1@b p1@c",
    ),
    Case(
        "one node is preferred to two nodes of a smaller rack",
        "a 2xT4 rack=x; b 2xT4 rack=x; c 1xT4 rack=y; d 1xT4 rack=y",
        "p1 red 2 gang=1 within=rack; p2 red 1 gang=2 within=rack!",
        "p1@a p2@b p2@b",
    ),
    Case("a strict gang does not start on a node without the label", "a 2xT4", "p1 red 1 gang=2 within=rack!", ""),
    Case(
        "a gang that prefers one rack starts on a node without the label",
        "a 2xT4",
        "p1 red 1 gang=2 within=rack",
        "p1@a p1@a",
    ),
    Case(
        "a strict gang starts in the rack that fits most members",
        "a 2xT4 rack=x; b 2xT4 rack=y; c 1xT4 rack=y",
        "p1 red 1 gang=2-4 within=rack!",
        "p1@b p1@b p1@c",
    ),
    Case(
        "joining members of a strict gang start in its rack",
        "a 2xT4 rack=x",
        "p1 red 1 gang=2-3 within=rack!",
        "p1@a p1@a",
        then=(("node b 1xT4 rack=y", "p1@a p1@a"), ("node c 1xT4 rack=x", "p1@a p1@a p1@c")),
    ),
    Case(
        "joining members may start in another rack if the gang is not strict",
        "a 2xT4 rack=x",
        "p1 red 1 gang=2-3 within=rack",
        "p1@a p1@a",
        then=(("node b 1xT4 rack=y", "p1@a p1@a p1@b"),),
    ),
    Case(
        "joining members start on a new node when their rack is full",
        "a 2xT4 rack=x; d 1xT4 rack=z",
        "p1 red 1 gang=2-3 within=rack; p2 blue 1 wait=50",
        "p1@a p1@a p2@d",
        then=(("node b 1xT4 rack=y", "p1@a p1@a p1@b p2@d"),),
    ),
    Case(
        "a strict gang starts within one zone",
        "a 1xT4 zone=x rack=r; b 1xT4 zone=y rack=r; c 1xT4 zone=y rack=q",
        "p1 red 1 gang=2 within=zone!",
        "p1@b p1@c",
    ),
    Case(
        "one node of the rack is preferred when it fits the gang",
        "a 1xT4 rack=x; b 1xT4 rack=x; c 2xT4 rack=x",
        "p1 red 1 gang=2 within=rack!",
        "p1@c p1@c",
    ),
    Case(
        "the rack with the least sufficient room is chosen",
        "a 1xT4 rack=x; b 1xT4 rack=x; c 1xT4 rack=x; d 1xT4 rack=y; e 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!; p2 red 1 gang=3 within=rack!",
        "p1@d p1@e p2@a p2@b p2@c",
    ),
    Case(
        "a rack without enough room is skipped",
        "a 1xT4 rack=x; b 1xT4 rack=x; c 1xT4 rack=y; d 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@c p1@d r1@b",
        running="r1 red 1 on b:0",
    ),
    Case(
        "a failed member restarts in its rack",
        "a 1xT4 rack=x; b 1xT4 rack=x cpus=32; c 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@a p1@b",
        then=(("requeue p1.1", "p1@a p1@b"),),
    ),
    Case(
        "a reservation for a strict gang is in one rack",
        "a 1xT4 rack=x; b 1xT4 rack=x cpus=32; c 1xT4 rack=y cpus=16",
        "p1 red 1 gang=2 wait=900 within=rack!; p2 red 1 wait=5",
        "p2@c r1@a r2@b",
        running="r1 blue 1 on a:0 end=100; r2 blue 1 on b:0 end=200",
        reserved="p1@a p1@b",
    ),
    Case(
        "a member with two GPUs gets linked GPUs",
        "a 4xT4 nvlink rack=x; b 4xT4 nvlink rack=x",
        "p1 red 2 gang=3 within=rack!",
        "p1@a p1@b p1@b r1@a",
        running="r1 red 1 on a:0",
    ),
    Case(
        "the fuller of two racks is chosen",
        "a 2xT4 rack=x; b 2xT4 rack=x; c 2xT4 rack=y; d 2xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@d p1@d r1@c",
        running="r1 red 2 on c:01",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
