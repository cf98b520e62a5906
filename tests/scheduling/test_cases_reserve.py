"""Who has waited long gets a reservation; others slip under it by their time limits."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
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


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
