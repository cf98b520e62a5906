"""Cases of quotas in whole GPUs: slices of other projects do not block a project's quota."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "slices on four GPUs exceed a quota of two whole GPUs",
        "a 4xT4",
        "p1 blue 1; p2 blue 1",
        "p1@a p2@a r1@a r2@a",
        running="r1 red 0.51 on a:0 train; r2 red 0.51 on a:1 train; "
        "r3 red 0.51 on a:2 train age=900; r4 red 0.51 on a:3 train age=900",
        projects="red quota=2; blue quota=2",
        evicted="r3 r4",
    ),
    Case(
        "whole GPUs are reclaimed by fair share when there are no quotas",
        "a 4xT4",
        "p1 blue 1 train; p2 blue 1 train",
        "p1@a p2@a r1@a r2@a",
        running="r1 red 0.51 on a:0 train; r2 red 0.51 on a:1 train; "
        "r3 red 0.51 on a:2 train age=900; r4 red 0.51 on a:3 train age=900",
        evicted="r3 r4",
    ),
    Case(
        "slices keep as many whole GPUs as their quota",
        "a 4xT4",
        "p1 blue 1 train; p2 blue 1 train; p3 blue 1 train",
        "p1@a p2@a r1@a r2@a",
        running="r1 red 0.1 on a:0 train; r2 red 0.1 on a:1 train",
        projects="red quota=2; blue quota=2",
    ),
    Case(
        "protected slices start on as many GPUs as their quota",
        "a 4xT4",
        "p1 red 0.6; p2 red 0.6; p3 red 0.6; p4 blue 1; p5 blue 1",
        "p1@a p2@a p4@a p5@a",
        projects="red quota=2; blue quota=2",
    ),
    Case(
        "protected slices use more GPUs while all quotas stay available",
        "a 5xT4",
        "p1 red 0.6; p2 red 0.6; p3 red 0.6; p4 red 0.6",
        "p1@a p2@a p3@a",
        projects="red quota=2.5; blue quota=2",
    ),
    Case(
        "spread protected slices share GPUs when quotas need the others",
        "a 4xT4",
        "p1 red 0.2 placement=spread; p2 red 0.2 placement=spread; p3 red 0.2 placement=spread",
        "p1@a p2@a p3@a",
        projects="red quota=2; blue quota=2",
        then=(("add p4 blue 1", "p1@a p2@a p3@a p4@a"), ("add p5 blue 1", "p1@a p2@a p3@a p4@a p5@a")),
    ),
    Case(
        "protected slices without a quota leave the quotas of others available",
        "a 4xT4",
        "p1 red 0.6; p2 red 0.6; p3 red 0.6",
        "p1@a p2@a",
        projects="blue quota=2",
    ),
    Case(
        "training without a quota is evicted first",
        "a 8xT4",
        "p1 blue 1; p2 blue 1; p3 blue 1; p4 blue 1",
        "p1@a p2@a p3@a p4@a q1@a q2@a q3@a q4@a",
        running="q1 red 0.34 on a:0; q2 red 0.34 on a:1; q3 red 0.34 on a:2; q4 red 0.34 on a:3; "
        "r1 green 0.7 on a:4 train; r2 green 0.7 on a:5 train",
        projects="red quota=4; blue quota=4",
        evicted="r1 r2",
    ),
    Case(
        "a GPU shared by two projects counts half for each",
        "a 4xT4",
        "p1 blue 1; p2 blue 1",
        "p1@a p2@a r1@a r2@a s1@a s2@a",
        running="r1 red 0.5 on a:0 train; r2 red 0.5 on a:1 train; s1 green 0.5 on a:0 train; "
        "s2 green 0.5 on a:1 train",
        projects="red quota=1; green quota=1; blue quota=2",
    ),
    Case(
        "several slices of one GPU are evicted",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a r2@a",
        running="r1 red 0.4 on a:0 train; r2 red 0.4 on a:0 train; "
        "r3 red 0.4 on a:1 train age=900; r4 red 0.4 on a:1 train age=900",
        projects="red quota=1; blue quota=1",
        evicted="r3 r4",
    ),
    Case(
        "a gang reclaims whole GPUs on two nodes",
        "a 2xT4; b 2xT4",
        "p1 blue 1 gang=2",
        "p1@a p1@b r1@a r3@b",
        running="r1 red 0.6 on a:0 train; r2 red 0.6 on a:1 train age=900; "
        "r3 red 0.6 on b:0 train; r4 red 0.6 on b:1 train age=900",
        projects="red quota=2; blue quota=2",
        evicted="r2 r4",
    ),
    Case(
        "two whole GPUs are reclaimed on one node",
        "a 3xT4; b 3xT4",
        "p1 blue 2",
        "p1@a r1@a r4@b r5@b r6@b",
        running="r1 red 0.6 on a:0 train; r2 red 0.6 on a:1 train age=900; "
        "r4 red 0.6 on b:0 train; r5 red 0.6 on b:1; r6 red 1 on b:2 train",
        projects="red quota=3; blue quota=2",
        evicted="r2",
    ),
    Case(
        "a whole-GPU job within its quota is not evicted for slices above it",
        "a 2xT4; b 2xT4",
        "p1 blue 2",
        "r1@a r2@b r3@b",
        running="r1 red 2 on a:01 train age=900; r2 red 0.5 on b:0 train; r3 red 0.4 on b:1 train",
        projects="red quota=3; blue quota=2",
    ),
    Case(
        "slices do not reclaim a whole GPU that they would lose again",
        "a 4xT4",
        "p1 red 0.6 train",
        "r1@a r2@a s1@a s2@a",
        running="r1 red 0.6 on a:0 train; r2 red 0.6 on a:1 train; s1 green 1 on a:2 train; s2 green 1 on a:3 train",
        projects="red quota=2; green quota=1",
    ),
    Case(
        "another project with the same rights reclaims a whole GPU for a slice that it can keep",
        "a 5xT4",
        "p1 red 0.8 train; p2 blue 0.8 train",
        "p2@a r1@a r2@a b1@a s1@a",
        running="r1 red 0.3 on a:0 train; r2 red 0.3 on a:1 train; b1 blue 0.6 on a:2 train; "
        "s1 green 1 on a:3 train; s2 green 1 on a:4 train age=900",
        projects="red quota=2; blue quota=2; green quota=1",
        evicted="s2",
    ),
    Case(
        "a GPU with a protected slice is not reclaimed",
        "a 2xT4",
        "p1 blue 1",
        "p1@a r1@a r2@a",
        running="r1 red 0.4 on a:0 train; r2 red 0.4 on a:0; r3 red 0.4 on a:1 train age=900",
        projects="red quota=1; blue quota=1",
        evicted="r3",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
