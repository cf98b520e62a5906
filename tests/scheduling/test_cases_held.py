"""Cases of replicas that must not start yet: suspended, before a time window, a dependency or a time."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "a suspended replica waits until it is resumed",
        "a 1xT4",
        "p1 red 1 suspended; p2 red 1",
        "p2@a",
        then=(("end p2", ""), ("add p1 red 1", "p1@a")),
    ),
    Case(
        "a replica outside its time window waits",
        "a 1xT4",
        "p1 red 1 train window",
        "",
        then=(("add p1 red 1 train", "p1@a"),),
    ),
    Case("a replica waits for its dependency", "a 1xT4", "p1 red 1 dependency", "", then=(("add p1 red 1", "p1@a"),)),
    Case(
        "a replica held by parallelism waits",
        "a 4xT4",
        "p1 red 1; p2 red 1 parallelism",
        "p1@a",
        then=(("end p1", ""), ("add p2 red 1", "p2@a")),
    ),
    Case(
        "a replica that is suspended while it waits does not start",
        "a 1xT4",
        "p1 red 1",
        "r1@a",
        running="r1 blue 1 on a:0",
        then=(("add p1 red 1 suspended", "r1@a"), ("end r1", "")),
    ),
    Case("a back-off ends by itself", "a 1xT4", "p1 red 1 later=90", "", then=(("wait 60", ""), ("wait 40", "p1@a"))),
    Case(
        "a back-off keeps its place in the queue",
        "a 1xT4",
        "p1 red 1 wait=100 later=90; p2 red 1 wait=50",
        "r1@a",
        running="r1 blue 1 on a:0",
        then=(("wait 100", "r1@a"), ("end r1", "p1@a")),
    ),
    Case(
        "a back-off ends while another one continues",
        "a 2xT4",
        "p1 red 1 later=90; p2 red 1 later=900",
        "",
        then=(("wait 100", "p1@a"), ("wait 900", "p1@a p2@a")),
    ),
    Case("a held replica of high priority does not block others", "a 1xT4", "p1 red 1 prio=9 window; p2 red 1", "p2@a"),
    Case(
        "a held replica gets no reservation",
        "a 2xT4",
        "p1 red 2 wait=9000 window; p2 red 1",
        "p2@a r1@a",
        running="r1 blue 1 on a:0 end=100",
        reserved="",
    ),
    Case(
        "a held replica evicts nothing within its quota",
        "a 1xT4",
        "p1 blue 1 window",
        "r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=1",
        evicted="r1",
        then=(("add p1 blue 1", "p1@a"),),
    ),
    Case(
        "nothing starts when all replicas are held",
        "a 4xT4",
        "p1 red 1 window; p2 red 1 suspended; p3 red 1 dependency; p4 red 1 parallelism; p5 red 1 later=9999",
        "",
    ),
    Case(
        "a held replica that is stopped leaves the queue",
        "a 1xT4",
        "p1 red 1 window",
        "",
        then=(("stop p1", ""), ("add p2 red 1", "p2@a")),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
