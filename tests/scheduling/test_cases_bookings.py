"""Nodes that are booked: for some, or for maintenance, from a time on."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "kept for those they are booked for",
        "a 2xT4",
        "p1 red 1; p2 blue 1",
        "p2@a",
        bookings="m1 on=a from=-10 for=9000 projects=blue",
    ),
    Case(
        "kept for a user",
        "a 2xT4",
        "p1 red/ann 1; p2 red/bob 1",
        "p2@a",
        bookings="m1 on=a from=-10 for=9000 users=bob",
    ),
    Case("maintenance is for nobody", "a 2xT4", "p1 red 1; p2 blue 1 train", "", bookings="m1 on=a from=-10 for=9000"),
    Case(
        "other nodes are for all",
        "a 2xT4; b 1xT4",
        "p1 red 1; p2 red 1",
        "p1@b",
        bookings="m1 on=a from=-10 for=9000 projects=blue",
    ),
    Case("over is over", "a 1xT4", "p1 red 1", "p1@a", bookings="m1 on=a from=-9000 for=8000"),
    Case(
        "when it is over others come",
        "a 1xT4",
        "p1 red 1",
        "",
        bookings="m1 on=a from=-10 for=100",
        then=(("wait 60", ""), ("wait 60", "p1@a")),
    ),
    Case(
        "who ends before may start",
        "a 2xT4",
        "p1 red 1 max=50; p2 red 1 max=200",
        "p1@a",
        bookings="m1 on=a from=100 for=9000",
    ),
    Case(
        "protected work that has no end is kept off for long",
        "a 1xT4",
        "p1 red 1",
        "",
        bookings="m1 on=a from=9000 for=9000",
    ),
    Case(
        "protected work that has no end, before the lead",
        "a 1xT4",
        "p1 red 1",
        "p1@a",
        bookings="m1 on=a from=9000 for=9000 lead=600",
    ),
    Case(
        "training starts while it is worth it",
        "a 1xT4",
        "p1 red 1 train",
        "p1@a",
        bookings="m1 on=a from=1000 for=9000",
        evicted="p1",
        then=(("wait 900", "p1@a"), ("wait 110", ""), ("wait 9900", "p1@a")),
    ),
    Case(
        "training does not start for a few minutes",
        "a 1xT4",
        "p1 red 1 train",
        "",
        bookings="m1 on=a from=200 for=9000",
    ),
    Case(
        "training goes in time, with its grace",
        "a 1xT4",
        "",
        "r1@a",
        running="r1 red 1 on a:0 train grace=100",
        bookings="m1 on=a from=500 for=9000",
        evicted="r1",
        then=(("wait 380", "r1@a"), ("wait 30", "")),
    ),
    Case(
        "training goes elsewhere",
        "a 1xT4; b 1xT4",
        "",
        "r1@a",
        running="r1 red 1 on a:0 train",
        bookings="m1 on=a from=50 for=9000",
        evicted="r1",
        then=(("wait 60", "r1@b"),),
    ),
    Case(
        "protected work that runs stays",
        "a 1xT4",
        "",
        "r1@a",
        running="r1 red 1 on a:0",
        bookings="m1 on=a from=50 for=9000",
        then=(("wait 60", "r1@a"),),
    ),
    Case(
        "training of those it is booked for stays",
        "a 1xT4",
        "",
        "r1@a",
        running="r1 blue 1 on a:0 train",
        bookings="m1 on=a from=50 for=9000 projects=blue",
        then=(("wait 60", "r1@a"),),
    ),
    Case(
        "training that ends before stays",
        "a 1xT4",
        "",
        "r1@a",
        running="r1 red 1 on a:0 train end=40",
        bookings="m1 on=a from=50 for=9000",
        then=(("wait 30", "r1@a"),),
    ),
    Case(
        "who booked finds it empty",
        "a 2xT4",
        "p1 blue 2",
        "r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=2",
        bookings="m1 on=a from=100 for=9000 projects=blue",
        evicted="r1",
        then=(("wait 80", "r1@a"), ("wait 30", "p1@a")),
    ),
    Case("called off", "a 1xT4", "p1 red 1", "", bookings="m1 on=a from=-10 for=9000", then=(("unbook m1", "p1@a"),)),
    Case(
        "booked for two, one after the other",
        "a 1xT4",
        "p1 red 1 max=40; p2 blue 1 max=40; p3 green 1 max=40",
        "p2@a",
        bookings="m1 on=a from=-10 for=100 projects=blue; m2 on=a from=90 for=9000 projects=red",
        then=(("end p2", ""), ("wait 100", "p1@a")),
    ),
    Case(
        "a gang takes no booked node",
        "a 1xT4; b 1xT4; c 1xT4",
        "p1 red 1 gang=2",
        "p1@b p1@c",
        bookings="m1 on=a from=-10 for=9000",
    ),
    Case(
        "nobody is evicted from where one may not be placed",
        "a 1xT4; b 1xT4",
        "p1 red 1 prio=1",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train end=500; r2 red 1 on b:0",
        bookings="m1 on=a from=600 for=9000",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
