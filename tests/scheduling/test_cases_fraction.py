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
    Case("two parts make exactly one", "a 1xT4", "p1 red 0.6; p2 red 0.001", "p1@a r1@a", running="r1 blue 0.4 on a:0"),
    Case(
        "three thirds and a thousandth",
        "a 1xT4",
        "p1 red 0.333; p2 red 0.333; p3 red 0.333; p4 red 0.001; p5 red 0.001",
        "p1@a p2@a p3@a p4@a",
    ),
    Case("memory and parts meet on a GPU", "a 1xT4", "p1 red 0.5; p2 red 8000M; p3 red 1M", "p1@a p2@a"),
    Case("a MiB too many beside a half", "a 1xT4", "p1 red 0.5; p2 red 8001M", "p1@a"),
    Case("memory goes first to who queued first", "a 1xT4", "p1 red 10000M; p2 red 7000M; p3 red 6000M", "p1@a p3@a"),
    Case("half of two needs two GPUs", "a 1xT4", "p1 red 2x0.5", ""),
    Case("half of two needs one node", "a 1xT4; b 1xT4", "p1 red 2x0.5", ""),
    Case(
        "half of two on two that are shared",
        "a 4xT4",
        "p1 red 2x0.5",
        "p1@a r1@a r2@a",
        running="r1 red 0.5 on a:1; r2 red 0.5 on a:3",
        slots="p1:13",
    ),
    Case("nothing beside a whole GPU", "a 1xT4", "p1 red 0.001", "r1@a", running="r1 red 1 on a:0"),
    Case("projects share a GPU", "a 1xT4", "p1 red 0.5; p2 blue 0.5", "p1@a p2@a"),
    Case("users share a GPU", "a 1xT4", "p1 red/ann 0.5; p2 red/bob 0.5", "p1@a p2@a"),
    Case(
        "the GPU is whole again when its last part ends",
        "a 1xT4",
        "p1 red 1",
        "r1@a r2@a",
        running="r1 red 0.2 on a:0; r2 red 0.3 on a:0",
        then=(("end r1", "r2@a"), ("end r2", "p1@a")),
    ),
    Case(
        "small and large meet exactly",
        "a 2xT4",
        "p1 red 0.7; p2 red 0.6; p3 red 0.4; p4 red 0.3",
        "p1@a p2@a p3@a p4@a",
    ),
    Case(
        "small and large meet exactly, small first",
        "a 2xT4",
        "p1 red 0.3; p2 red 0.7; p3 red 0.4; p4 red 0.6",
        "p1@a p2@a p3@a p4@a",
    ),
    Case(
        "a part that fits nowhere does not block a smaller one",
        "a 1xT4",
        "p1 red 0.6; p2 red 0.4",
        "p2@a r1@a",
        running="r1 red 0.5 on a:0",
    ),
    Case(
        "parts do not break into a second node",
        "a 2xT4 cpus=32; b 2xT4",
        "p1 red 0.5; p2 red 0.5; p3 red 0.5; p4 red 0.5; p5 red 2",
        "p1@a p2@a p3@a p4@a p5@b",
    ),
    Case(
        "memory by the larger card when the small one is taken",
        "a 1xT4; b 1xA100",
        "p1 red 8000M",
        "p1@b r1@a",
        running="r1 red 1 on a:0",
        slots="p1:0",
    ),
    Case(
        "a part of the model asked for",
        "a 1xT4; b 1xA100",
        "p1 red 0.5 model=a100; p2 red 0.5 model=a100; p3 red 0.5 model=a100",
        "p1@b p2@b",
    ),
    Case(
        "parts of a failed GPU are nobody's",
        "a 2xT4 failed=0",
        "p1 red 0.5",
        "p1@a r1@a",
        running="r1 red 0.2 on a:0",
        slots="p1:1",
    ),
    Case("a whole card by memory", "a 2xT4", "p1 red 16000M; p2 red 16000M; p3 red 1M", "p1@a p2@a"),
    Case(
        "a hundred slivers",
        "a 1xT4",
        "; ".join(f"p{i:03} red 0.01" for i in range(101)),
        " ".join(f"p{i:03}@a" for i in range(100)),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
