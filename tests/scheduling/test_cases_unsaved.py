"""Cases of unsaved work: after a while it is protected, and only quotas and priority take its GPUs."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "work that saves its state is evicted for a fair share",
        "a 1xT4; b 1xT4",
        "p1 blue 1 train",
        "p1@a r2@b",
        running="r1 red 1 on a:0 train age=9000; r2 red 1 on b:0 train age=9900 prio=1",
        evicted="r1",
    ),
    Case(
        "long-running unsaved work is not evicted for a fair share",
        "a 1xT4; b 1xT4",
        "p1 blue 1 train",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train unsaved age=9000",
    ),
    Case(
        "unsaved work that has not run longer than the setting is evicted for a fair share",
        "a 1xT4; b 1xT4",
        "p1 blue 1 train",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train unsaved age=300",
        evicted="r2",
        settings={"unsaved_after_s": 600},
    ),
    Case(
        "unsaved work is protected as soon as its min-runtime has passed",
        "a 1xT4; b 1xT4",
        "p1 blue 1 train",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train unsaved age=70",
    ),
    Case(
        "work that has just reported a checkpoint is evicted for a fair share",
        "a 1xT4; b 1xT4",
        "p1 blue 1 train",
        "p1@b r1@a",
        running="r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train unsaved age=9500 saved=60",
        evicted="r2",
    ),
    Case(
        "work whose last reported checkpoint is old is not evicted for a fair share",
        "a 1xT4; b 1xT4",
        "p1 blue 1 train",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train unsaved age=9500 saved=8000",
    ),
    Case(
        "the loss since a reported checkpoint counts, not the run time",
        "a 1xT4; b 1xT4; c 1xT4",
        "p1 blue 1",
        "p1@a r2@b r3@c",
        running="""r1 red 1 on a:0 train unsaved age=90000 saved=7000; r2 red 1 on b:0 train unsaved age=8000;
                   r3 red 1 on c:0 train unsaved age=8500""",
        projects="red quota=0; blue quota=1",
        evicted="r1",
    ),
    Case(
        "unsaved work with the smallest loss is evicted for a set quota",
        "a 1xT4; b 1xT4; c 1xT4",
        "p1 blue 1",
        "p1@b r1@a r3@c",
        running="""r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train unsaved age=8000;
                   r3 red 1 on c:0 train unsaved age=8500""",
        projects="red quota=0; blue quota=1",
        evicted="r2",
    ),
    Case(
        "two victims that lose nothing are preferred to one with unsaved work",
        "a 2xT4; b 2xT4",
        "p1 blue 2",
        "p1@b r1@a",
        running="""r1 red 2 on a:01 train unsaved age=9000; r2 red 1 on b:0 train age=9000;
                   r3 red 1 on b:1 train age=9000""",
        projects="red quota=0; blue quota=2",
        evicted="r2 r3",
    ),
    Case(
        "a gang is not evicted while one member has long unsaved work",
        "a 2xT4",
        "p1 blue 2 train",
        "r1@a r1@a",
        running="""r1.0 red 1 on a:0 train unsaved gang=2 age=9000
                   r1.1 red 1 on a:1 train unsaved gang=2 age=100""",
    ),
    Case(
        "work of higher priority preempts unsaved work of its project",
        "a 1xT4",
        "p1 red 1 prio=1",
        "p1@a",
        running="r1 red 1 on a:0 train unsaved age=9000",
        evicted="r1",
    ),
    Case(
        "consolidation does not move long-running unsaved work",
        "a 2xT4; b 2xT4",
        "p1 red 2 wait=900",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train unsaved age=9000",
    ),
    Case(
        "consolidation moves work that saves its state",
        "a 2xT4; b 2xT4",
        "p1 red 2 wait=900",
        "p1@b r1@a r2@a",
        running="r1 red 1 on a:0 train unsaved age=9000; r2 red 1 on b:0 train age=9000",
        evicted="r2",
    ),
    Case(
        "consolidation respects the doubled min-runtime",
        "a 2xT4; b 2xT4",
        "p1 red 2 wait=900",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train age=500 evictions=5; r2 red 1 on b:0 train age=500 evictions=5",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
