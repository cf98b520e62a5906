"""Parts of GPUs: where they go, and what they leave."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
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


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
