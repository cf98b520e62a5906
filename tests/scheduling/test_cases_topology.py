"""Where the members of a gang are: one node, one rack, near each other."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("one node, if they insist", "a 1xT4; b 1xT4", "p1 red 1 gang=2 within=node!", ""),
    Case("one node, if they insist and there is one", "a 1xT4; b 2xT4", "p1 red 1 gang=2 within=node!", "p1@b p1@b"),
    Case("two nodes, if they only wish for one", "a 1xT4; b 1xT4", "p1 red 1 gang=2 within=node", "p1@a p1@b"),
    Case(
        "one rack, if they insist",
        "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@b p1@c",
    ),
    Case(
        "no rack has room for all who insist",
        "a 1xT4 rack=x; b 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!; p2 red 1",
        "p2@a",
        settings={},
    ),
    Case("racks do not matter where they are no wish", "a 1xT4 rack=x; b 1xT4 rack=y", "p1 red 1 gang=2", "p1@a p1@b"),
    Case(
        "over racks, if they only wish for one",
        "a 1xT4 rack=x; b 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack",
        "p1@a p1@b",
    ),
    Case(
        "one rack, if they wish for it and there is one",
        "a 1xT4 rack=x; b 1xT4 rack=y; c 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack",
        "p1@b p1@c",
    ),
    Case(
        "one node before two in a smaller rack",
        "a 2xT4 rack=x; b 2xT4 rack=x; c 1xT4 rack=y; d 1xT4 rack=y",
        "p1 red 2 gang=1 within=rack; p2 red 1 gang=2 within=rack!",
        "p1@a p2@b p2@b",
    ),
    Case("a node has no rack: not for those who insist", "a 2xT4", "p1 red 1 gang=2 within=rack!", ""),
    Case("a node has no rack: good enough for those who wish", "a 2xT4", "p1 red 1 gang=2 within=rack", "p1@a p1@a"),
    Case(
        "the rack where most may start",
        "a 2xT4 rack=x; b 2xT4 rack=y; c 1xT4 rack=y",
        "p1 red 1 gang=2-4 within=rack!",
        "p1@b p1@b p1@c",
    ),
    Case(
        "those who join come to the same rack",
        "a 2xT4 rack=x",
        "p1 red 1 gang=2-3 within=rack!",
        "p1@a p1@a",
        then=(("node b 1xT4 rack=y", "p1@a p1@a"), ("node c 1xT4 rack=x", "p1@a p1@a p1@c")),
    ),
    Case(
        "those who join may go elsewhere when it was but a wish",
        "a 2xT4 rack=x",
        "p1 red 1 gang=2-3 within=rack",
        "p1@a p1@a",
        then=(("node b 1xT4 rack=y", "p1@a p1@a p1@b"),),
    ),
    Case(
        "those who join stay near when they can",
        "a 2xT4 rack=x; d 1xT4 rack=z",
        "p1 red 1 gang=2-3 within=rack; p2 blue 1 wait=50",
        "p1@a p1@a p2@d",
        then=(("node b 1xT4 rack=y", "p1@a p1@a p1@b p2@d"),),
    ),
    Case(
        "by another label",
        "a 1xT4 zone=x rack=r; b 1xT4 zone=y rack=r; c 1xT4 zone=y rack=q",
        "p1 red 1 gang=2 within=zone!",
        "p1@b p1@c",
    ),
    Case(
        "in the rack's node if one is enough",
        "a 1xT4 rack=x; b 1xT4 rack=x; c 2xT4 rack=x",
        "p1 red 1 gang=2 within=rack!",
        "p1@c p1@c",
    ),
    Case(
        "the rack with the least room that is enough",
        "a 1xT4 rack=x; b 1xT4 rack=x; c 1xT4 rack=x; d 1xT4 rack=y; e 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!; p2 red 1 gang=3 within=rack!",
        "p1@d p1@e p2@a p2@b p2@c",
    ),
    Case(
        "a full rack is passed over",
        "a 1xT4 rack=x; b 1xT4 rack=x; c 1xT4 rack=y; d 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@c p1@d r1@b",
        running="r1 red 1 on b:0",
    ),
    Case(
        "a member that failed comes back to its rack",
        "a 1xT4 rack=x; b 1xT4 rack=x cpus=32; c 1xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@a p1@b",
        then=(("requeue p1.1", "p1@a p1@b"),),
    ),
    Case(
        "a reservation for those who insist is in one rack",
        "a 1xT4 rack=x; b 1xT4 rack=x cpus=32; c 1xT4 rack=y cpus=16",
        "p1 red 1 gang=2 wait=900 within=rack!; p2 red 1 wait=5",
        "p2@c r1@a r2@b",
        running="r1 blue 1 on a:0 end=100; r2 blue 1 on b:0 end=200",
        reserved="p1@a p1@b",
    ),
    Case(
        "linked GPUs for a member of several",
        "a 4xT4 nvlink rack=x; b 4xT4 nvlink rack=x",
        "p1 red 2 gang=3 within=rack!",
        "p1@a p1@b p1@b r1@a",
        running="r1 red 1 on a:0",
    ),
    Case(
        "the rack that is fuller already",
        "a 2xT4 rack=x; b 2xT4 rack=x; c 2xT4 rack=y; d 2xT4 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@d p1@d r1@c",
        running="r1 red 2 on c:01",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
