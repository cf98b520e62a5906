"""Cases in which nodes, GPUs and limits change while workloads wait and run."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("a replica starts when a node comes up", "a 1xT4 down", "p1 red 1", "", then=(("up a", "p1@a"),)),
    Case(
        "nothing new starts on a node that goes down",
        "a 2xT4",
        "p1 red 1",
        "p1@a",
        then=(("down a", "p1@a"), ("add p2 red 1", "p1@a"), ("up a", "p1@a p2@a")),
    ),
    Case(
        "running work stays on a cordoned node and nothing new starts",
        "a 2xT4",
        "p1 red 1",
        "p1@a",
        then=(("cordon a", "p1@a"), ("add p2 red 1", "p1@a"), ("end p1", ""), ("up a", "p2@a")),
    ),
    Case(
        "a replica starts on a node that joins",
        "a 1xT4",
        "p1 red 1; p2 red 1",
        "p1@a",
        then=(("node b 1xT4", "p1@a p2@b"),),
    ),
    Case(
        "a replica starts on an added GPU", "a 1xT4", "p1 red 1; p2 red 1", "p1@a", then=(("node a 2xT4", "p1@a p2@a"),)
    ),
    Case(
        "running work stays on a node that returns with fewer GPUs",
        "a 2xT4",
        "p1 red 1; p2 red 1",
        "p1@a p2@a",
        then=(("node a 1xT4", "p1@a p2@a"), ("add p3 red 1", "p1@a p2@a")),
    ),
    Case(
        "a replica starts when a node returns with the requested GPU model",
        "a 1xT4",
        "p1 red 1 model=a100",
        "",
        then=(("node a 1xA100", "p1@a"),),
    ),
    Case(
        "work on a lost node keeps its lease",
        "a 1xT4; b 1xA100",
        "p1 red 1 model=t4",
        "p1@a",
        then=(("lose a", "p1@a"), ("add p2 red 1", "p1@a p2@b")),
    ),
    Case(
        "a lost node that returns keeps its running work",
        "a 1xT4",
        "p1 red 1",
        "p1@a",
        then=(("lose a", "p1@a"), ("node a 1xT4", "p1@a"), ("add p2 red 1", "p1@a"), ("end p1", "p2@a")),
    ),
    Case(
        "a replica waits until a failed free GPU is healthy",
        "a 2xT4",
        "p1 red 2 wait=200",
        "r1@a",
        running="r1 red 1 on a:0",
        then=(("fail a:1", "r1@a"), ("end r1", ""), ("heal a:1", "p1@a")),
    ),
    Case(
        "running work stays on a GPU that fails and nothing new starts there",
        "a 1xT4",
        "p1 red 1",
        "p1@a",
        then=(("fail a:0", "p1@a"), ("end p1", ""), ("add p2 red 1", ""), ("heal a:0", "p2@a")),
    ),
    Case(
        "no slice joins a failed GPU",
        "a 2xT4",
        "p1 red 0.5",
        "p1@a",
        then=(("fail a:0", "p1@a"), ("add p2 red 0.5", "p1@a p2@a")),
        slots="p1:0 p2:1",
    ),
    Case(
        "a replica starts when a node gets its label",
        "a 1xT4",
        "p1 red 1 zone=x",
        "",
        then=(("node a 1xT4 zone=x", "p1@a"),),
    ),
    Case(
        "running work stays when its node loses a label",
        "a 2xT4 zone=x",
        "p1 red 1 zone=x",
        "p1@a",
        then=(("node a 2xT4", "p1@a"), ("add p2 red 1 zone=x", "p1@a"), ("add p3 red 1", "p1@a p3@a")),
    ),
    Case(
        "a replica starts when foreign processes leave a GPU",
        "a 1xT4 foreign=0",
        "p1 red 1",
        "",
        then=(("node a 1xT4", "p1@a"),),
    ),
    Case(
        "nothing starts on a GPU that gets foreign processes",
        "a 1xT4",
        "",
        "",
        then=(("node a 1xT4 foreign=0", ""), ("add p1 red 1", "")),
    ),
    Case(
        "an unexpected lease takes its GPU",
        "a 2xT4",
        "p1 red 2 wait=100",
        "p1@a",
        then=(("end p1", ""), ("run r1 blue 1 on a:0", "r1@a"), ("add p2 red 2", "r1@a"), ("end r1", "p2@a")),
    ),
    Case(
        "a replica starts on a new node after the last one was lost",
        "a 1xT4",
        "p1 red 1; p2 red 1",
        "p1@a",
        then=(("lose a", "p1@a"), ("end p1", ""), ("node b 1xT4", "p2@b")),
    ),
    Case(
        "GPUs are reclaimed from a project whose quota is lowered",
        "a 2xT4",
        "",
        "p1@a p2@a",
        running="p1 red 1 on a:0 train age=900; p2 red 1 on a:1 train age=800",
        projects="red quota=2; blue quota=1",
        evicted="p2",
        then=(("wait 100", "p1@a p2@a"), ("add q1 blue 1", "p1@a p2@a"), ("project red quota=1", "p1@a q1@a")),
    ),
    Case(
        "a replica starts on a node with more GPUs than any before",
        "a 1xT4",
        "p1 red 8",
        "",
        then=(("node b 8xT4", "p1@b"), ("add p2 red 1", "p1@b p2@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
