"""Quotas, limits, and limits of users."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case("protected work stays within quota", "a 4xT4", "p1 red 1; p2 red 1", "p1@a", projects="red quota=1"),
    Case("training may exceed it", "a 4xT4", "p1 red 1 train; p2 red 1 train", "p1@a p2@a", projects="red quota=1"),
    Case("up to the limit", "a 4xT4", "p1 red 2 train; p2 red 2 train", "p1@a", projects="red quota=1 limit=3"),
    Case(
        "not where that is not wanted",
        "a 4xT4",
        "p1 red 1 train; p2 red 1 train",
        "p1@a",
        projects="red quota=1 strict",
    ),
    Case("quotas have fractions", "a 4xT4", "p1 red 0.5; p2 red 0.5; p3 red 0.1", "p1@a p2@a", projects="red quota=1"),
    Case("no quota at all", "a 4xT4", "p1 red 1; p2 red 1 train", "p2@a", projects="red quota=0"),
    Case("a head over quota does not block", "a 4xT4", "p1 red 3; p2 red 1", "p2@a", projects="red quota=2"),
    Case(
        "training over quota leaves the quota to protected work",
        "a 4xT4",
        "p1 red 2",
        "p1@a r1@a",
        running="r1 red 2 on a:01 train",
        projects="red quota=2",
    ),
    Case(
        "a user's limit in a project",
        "a 4xT4",
        "p1 red/ann 1; p2 red/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        projects="red user=1",
    ),
    Case(
        "a user's limit over all",
        "a 4xT4",
        "p1 red/ann 1; p2 blue/ann 1; p3 red/bob 1",
        "p1@a p3@a",
        users="ann limit=1",
    ),
    Case("a limit by memory on the larger card", "a 1xT4; b 1xA100", "p1 red 8000M", "p1@b", projects="red limit=0.2"),
    Case("what is held counts", "a 4xT4", "p1 red 1", "r1@a", running="r1 red 1 on a:0", projects="red quota=1"),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
