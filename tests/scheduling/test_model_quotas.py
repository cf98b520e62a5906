"""Quotas of GPU models: a bound on protected work that asks for the model by name."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table
from scheduling_world import NOW, project, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.scheduler import ProjectChanged

CASES = [
    Case(
        "protected work by name stays within it",
        "a 3xT4; b 3xA100",
        "p1 red 1 model=a100; p2 red 1 model=a100; p3 red 1 model=a100; p4 red 1 model=t4",
        "p1@b p2@b p4@a",
        projects="red quota=4 quota.a100=2",
    ),
    Case(
        "however the name is written",
        "a 3xA100",
        "p1 red 1 model=a100; p2 red 1 model=A100",
        "p1@a",
        projects="red quota=4 quota.A100=1",
    ),
    Case(
        "training does not count",
        "a 3xA100",
        "p1 red 1 model=a100 train; p2 red 1 model=a100 train; p3 red 1 model=a100",
        "p1@a p2@a p3@a",
        projects="red quota=3 quota.a100=1",
    ),
    Case(
        "what runs counts",
        "a 3xA100",
        "p1 red 1 model=a100",
        "r1@a",
        running="r1 red 1 on a:0 model=a100",
        projects="red quota=3 quota.a100=1",
    ),
    Case(
        "of another project it says nothing",
        "a 3xA100",
        "p1 blue 1 model=a100; p2 blue 1 model=a100",
        "p1@a p2@a",
        projects="red quota=3 quota.a100=1; blue quota=3",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()


def test_it_says_why_and_may_be_changed() -> None:
    w = world("a 3xA100", "p1 red 1 model=a100; p2 red 1 model=a100", projects="red quota=3 quota.a100=1")
    w.settle()
    why = w.scheduler.explain((WorkloadId("p2"), 0), NOW)
    assert why is not None
    assert "the quota by model of the project red is 1 GPU, 1 in use" in why.sentence.replace(".00", "")
    w.scheduler.apply(ProjectChanged(project("red quota=3")))
    w.settle()
    assert w.places() == "p1@a p2@a"
