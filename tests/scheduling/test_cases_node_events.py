"""Nodes, GPUs and bounds change while work waits and runs."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("a node comes up", "a 1xT4 down", "p1 red 1", "", then=(("up a", "p1@a"),)),
    Case(
        "a node goes down and takes nothing new",
        "a 2xT4",
        "p1 red 1",
        "p1@a",
        then=(("down a", "p1@a"), ("add p2 red 1", "p1@a"), ("up a", "p1@a p2@a")),
    ),
    Case(
        "a node is cordoned: what runs stays, nothing new comes",
        "a 2xT4",
        "p1 red 1",
        "p1@a",
        then=(("cordon a", "p1@a"), ("add p2 red 1", "p1@a"), ("end p1", ""), ("up a", "p2@a")),
    ),
    Case("a node joins", "a 1xT4", "p1 red 1; p2 red 1", "p1@a", then=(("node b 1xT4", "p1@a p2@b"),)),
    Case("a node grows", "a 1xT4", "p1 red 1; p2 red 1", "p1@a", then=(("node a 2xT4", "p1@a p2@a"),)),
    Case(
        "a node comes back smaller",
        "a 2xT4",
        "p1 red 1; p2 red 1",
        "p1@a p2@a",
        then=(("node a 1xT4", "p1@a p2@a"), ("add p3 red 1", "p1@a p2@a")),
    ),
    Case("a node comes back with other GPUs", "a 1xT4", "p1 red 1 model=a100", "", then=(("node a 1xA100", "p1@a"),)),
    Case(
        "a node is lost for good",
        "a 1xT4; b 1xA100",
        "p1 red 1 model=t4",
        "p1@a",
        then=(("lose a", "p1@a"), ("add p2 red 1", "p1@a p2@b")),
    ),
    Case(
        "a node that was lost comes back with what ran there",
        "a 1xT4",
        "p1 red 1",
        "p1@a",
        then=(("lose a", "p1@a"), ("node a 1xT4", "p1@a"), ("add p2 red 1", "p1@a"), ("end p1", "p2@a")),
    ),
    Case(
        "a GPU fails while nobody is on it",
        "a 2xT4",
        "p1 red 2 wait=200",
        "r1@a",
        running="r1 red 1 on a:0",
        then=(("fail a:1", "r1@a"), ("end r1", ""), ("heal a:1", "p1@a")),
    ),
    Case(
        "a GPU fails under who runs on it",
        "a 1xT4",
        "p1 red 1",
        "p1@a",
        then=(("fail a:0", "p1@a"), ("end p1", ""), ("add p2 red 1", ""), ("heal a:0", "p2@a")),
    ),
    Case(
        "parts do not join a GPU that failed",
        "a 2xT4",
        "p1 red 0.5",
        "p1@a",
        then=(("fail a:0", "p1@a"), ("add p2 red 0.5", "p1@a p2@a")),
        slots="p1:0 p2:1",
    ),
    Case("a label comes", "a 1xT4", "p1 red 1 zone=x", "", then=(("node a 1xT4 zone=x", "p1@a"),)),
    Case(
        "a label goes; what runs stays",
        "a 2xT4 zone=x",
        "p1 red 1 zone=x",
        "p1@a",
        then=(("node a 2xT4", "p1@a"), ("add p2 red 1 zone=x", "p1@a"), ("add p3 red 1", "p1@a p3@a")),
    ),
    Case("others' processes go from a GPU", "a 1xT4 foreign=0", "p1 red 1", "", then=(("node a 1xT4", "p1@a"),)),
    Case(
        "others' processes come to a free GPU",
        "a 1xT4",
        "",
        "",
        then=(("node a 1xT4 foreign=0", ""), ("add p1 red 1", "")),
    ),
    Case(
        "someone else's lease appears",
        "a 2xT4",
        "p1 red 2 wait=100",
        "p1@a",
        then=(("end p1", ""), ("run r1 blue 1 on a:0", "r1@a"), ("add p2 red 2", "r1@a"), ("end r1", "p2@a")),
    ),
    Case(
        "the last node goes and another comes",
        "a 1xT4",
        "p1 red 1; p2 red 1",
        "p1@a",
        then=(("lose a", "p1@a"), ("end p1", ""), ("node b 1xT4", "p2@b")),
    ),
    Case(
        "a project goes over its quota when it is lowered, and gives back",
        "a 2xT4",
        "",
        "p1@a p2@a",
        running="p1 red 1 on a:0 train age=900; p2 red 1 on a:1 train age=800",
        projects="red quota=2; blue quota=1",
        evicted="p2",
        then=(("wait 100", "p1@a p2@a"), ("add q1 blue 1", "p1@a p2@a"), ("project red quota=1", "p1@a q1@a")),
    ),
    Case(
        "a node wider than all before",
        "a 1xT4",
        "p1 red 8",
        "",
        then=(("node b 8xT4", "p1@b"), ("add p2 red 1", "p1@b p2@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
