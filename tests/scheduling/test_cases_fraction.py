"""Cases of slices: where parts of GPUs are placed, and what remains free."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("two slices of half a GPU share a GPU", "a 1xT4", "p1 red 0.5; p2 red 0.5", "p1@a p2@a"),
    Case("a third slice of half a GPU waits", "a 1xT4", "p1 red 0.5; p2 red 0.5; p3 red 0.5", "p1@a p2@a"),
    Case(
        "a slice goes to a GPU that is already shared",
        "a 1xT4; b 1xT4",
        "p1 red 0.3",
        "p1@b r1@b",
        running="r1 red 0.5 on b:0",
    ),
    Case(
        "a slice goes to the shared GPU with the least free space",
        "a 1xT4; b 1xT4; c 1xT4",
        "p1 red 0.3",
        "p1@b r1@a r2@b",
        running="r1 red 0.2 on a:0; r2 red 0.7 on b:0",
    ),
    Case(
        "a slice without a shared GPU goes to the fullest node",
        "a 4xT4; b 4xT4",
        "p1 red 0.6",
        "p1@b r1@b",
        running="r1 red 2 on b:01",
    ),
    Case(
        "slices share a GPU so that another stays whole", "a 2xT4", "p1 red 0.5; p2 red 1; p3 red 0.5", "p1@a p2@a p3@a"
    ),
    Case("a replica gets half of each of two GPUs", "a 2xT4", "p1 red 2x0.5; p2 red 2x0.5; p3 red 2x0.5", "p1@a p2@a"),
    Case(
        "a replica waits when one of its slices does not fit",
        "a 2xT4",
        "p1 red 2x0.6",
        "r1@a",
        running="r1 red 0.5 on a:0",
    ),
    Case(
        "two requests for half of the memory share a GPU",
        "a 1xT4",
        "p1 red 8000M; p2 red 8000M; p3 red 1M",
        "p1@a p2@a",
    ),
    Case("a request by memory goes to the only GPU that is large enough", "a 1xT4; b 1xA100", "p1 red 20000M", "p1@b"),
    Case("a request by memory goes to the smaller GPU first", "a 1xA100; b 1xT4", "p1 red 8000M", "p1@b"),
    Case("a request for more memory than any GPU has waits", "a 1xT4", "p1 red 17000M", ""),
    Case(
        "a slice of 0.001 fits next to one of 0.999", "a 1xT4", "p1 red 0.999; p2 red 0.001; p3 red 0.001", "p1@a p2@a"
    ),
    Case(
        "a request for all memory of a GPU needs a free GPU",
        "a 1xT4",
        "p1 red 16000M",
        "r1@a",
        running="r1 red 0.001 on a:0",
    ),
    Case(
        "two slices fill a GPU exactly", "a 1xT4", "p1 red 0.6; p2 red 0.001", "p1@a r1@a", running="r1 blue 0.4 on a:0"
    ),
    Case(
        "three slices of 0.333 leave room for one of 0.001",
        "a 1xT4",
        "p1 red 0.333; p2 red 0.333; p3 red 0.333; p4 red 0.001; p5 red 0.001",
        "p1@a p2@a p3@a p4@a",
    ),
    Case(
        "requests by memory and by fraction share a GPU", "a 1xT4", "p1 red 0.5; p2 red 8000M; p3 red 1M", "p1@a p2@a"
    ),
    Case("a request for 1 MiB too much waits", "a 1xT4", "p1 red 0.5; p2 red 8001M", "p1@a"),
    Case(
        "GPU memory goes to the replica queued first",
        "a 1xT4",
        "p1 red 10000M; p2 red 7000M; p3 red 6000M",
        "p1@a p3@a",
    ),
    Case("two slices of one replica need two GPUs", "a 1xT4", "p1 red 2x0.5", ""),
    Case("two slices of one replica need one node", "a 1xT4; b 1xT4", "p1 red 2x0.5", ""),
    Case(
        "two slices of one replica go to GPUs that are already shared",
        "a 4xT4",
        "p1 red 2x0.5",
        "p1@a r1@a r2@a",
        running="r1 red 0.5 on a:1; r2 red 0.5 on a:3",
        slots="p1:13",
    ),
    Case("no slice fits on a GPU that is used as a whole", "a 1xT4", "p1 red 0.001", "r1@a", running="r1 red 1 on a:0"),
    Case("projects share a GPU", "a 1xT4", "p1 red 0.5; p2 blue 0.5", "p1@a p2@a"),
    Case("users share a GPU", "a 1xT4", "p1 red/ann 0.5; p2 red/bob 0.5", "p1@a p2@a"),
    Case(
        "a GPU is free as a whole when its last slice ends",
        "a 1xT4",
        "p1 red 1",
        "r1@a r2@a",
        running="r1 red 0.2 on a:0; r2 red 0.3 on a:0",
        then=(("end r1", "r2@a"), ("end r2", "p1@a")),
    ),
    Case(
        "large and small slices fill two GPUs exactly",
        "a 2xT4",
        "p1 red 0.7; p2 red 0.6; p3 red 0.4; p4 red 0.3",
        "p1@a p2@a p3@a p4@a",
    ),
    Case(
        "slices fill two GPUs exactly when a small one is first",
        "a 2xT4",
        "p1 red 0.3; p2 red 0.7; p3 red 0.4; p4 red 0.6",
        "p1@a p2@a p3@a p4@a",
    ),
    Case(
        "a slice that does not fit does not block a smaller one",
        "a 1xT4",
        "p1 red 0.6; p2 red 0.4",
        "p2@a r1@a",
        running="r1 red 0.5 on a:0",
    ),
    Case(
        "slices fill one node so that another stays free",
        "a 2xT4 cpus=32; b 2xT4",
        "p1 red 0.5; p2 red 0.5; p3 red 0.5; p4 red 0.5; p5 red 2",
        "p1@a p2@a p3@a p4@a p5@b",
    ),
    Case(
        "a request by memory goes to the larger GPU when the small one is in use",
        "a 1xT4; b 1xA100",
        "p1 red 8000M",
        "p1@b r1@a",
        running="r1 red 1 on a:0",
        slots="p1:0",
    ),
    Case(
        "a slice goes to the requested GPU model",
        "a 1xT4; b 1xA100",
        "p1 red 0.5 model=a100; p2 red 0.5 model=a100; p3 red 0.5 model=a100",
        "p1@b p2@b",
    ),
    Case(
        "no slice starts on a failed GPU",
        "a 2xT4 failed=0",
        "p1 red 0.5",
        "p1@a r1@a",
        running="r1 red 0.2 on a:0",
        slots="p1:1",
    ),
    Case(
        "a request for all memory of a GPU gets the whole GPU",
        "a 2xT4",
        "p1 red 16000M; p2 red 16000M; p3 red 1M",
        "p1@a p2@a",
    ),
    Case(
        "a hundred slices of 0.01 fill a GPU",
        "a 1xT4",
        "; ".join(f"p{i:03} red 0.01" for i in range(101)),
        " ".join(f"p{i:03}@a" for i in range(100)),
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
