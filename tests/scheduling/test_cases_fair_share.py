"""Cases of fair share: over-quota GPUs are divided by weight, department and decayed usage."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "two projects that request all GPUs get half each",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a b1@a b2@a",
    ),
    Case(
        "over-quota GPUs are divided by weight",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a r3@a b1@a",
        projects="red quota=0 weight=3; blue quota=0 weight=1",
    ),
    Case(
        "projects without quotas get GPUs by weight",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a r3@a b1@a",
        projects="red weight=3; blue weight=1",
    ),
    Case(
        "weights apply only to GPUs above the quotas",
        "a 6xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a b1@a b2@a b3@a b4@a",
        projects="red quota=2 weight=1; blue quota=2 weight=9",
    ),
    Case(
        "a project with little demand leaves the rest to others",
        "a 4xT4",
        "r1 red 1 train; b1 blue 1 train; b2 blue 1 train; b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a b2@a b3@a",
    ),
    Case(
        "quotas larger than the pool are served in proportion",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a r3@a b1@a",
        projects="red quota=6; blue quota=2",
    ),
    Case(
        "a project of weight 0 gets only GPUs that no other project requests",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train",
        "r1@a r2@a b1@a b2@a",
        projects="red quota=0 weight=0; blue quota=0",
    ),
    Case(
        "a project of weight 0 gets its quota",
        "a 2xT4",
        "b1 blue 1 train; b2 blue 1 train; b3 blue 1 train; b4 blue 1 train; r1 red 1 train",
        "r1@a b1@a",
        projects="red quota=1 weight=0; blue quota=0",
    ),
    Case(
        "fair shares of slices are not rounded",
        "a 1xT4",
        "r1 red 0.25 train; r2 red 0.25 train; r3 red 0.25 train; r4 red 0.25 train; r5 red 0.25 train; "
        "r6 red 0.25 train; b1 blue 0.25 train; b2 blue 0.25 train; b3 blue 0.25 train; b4 blue 0.25 train; "
        "b5 blue 0.25 train; b6 blue 0.25 train",
        "r1@a r2@a r3@a b1@a",
        projects="red weight=3; blue weight=1",
    ),
    Case(
        "a department counts as one next to another department",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "r1@a b1@a g1@a g2@a",
        departments="ml; bio",
        projects="red dep=ml; blue dep=ml; green dep=bio",
    ),
    Case(
        "a project without a department counts like a department",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "r1@a b1@a g1@a g2@a",
        departments="ml",
        projects="red dep=ml; blue dep=ml; green",
    ),
    Case(
        "departments get GPUs by weight",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a b2@a b3@a",
        departments="ml weight=1; bio weight=3",
        projects="red dep=ml; blue dep=bio",
    ),
    Case(
        "projects of a department get GPUs by weight",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a b2@a b3@a",
        departments="ml",
        projects="red dep=ml quota=0 weight=1; blue dep=ml quota=0 weight=3",
    ),
    Case(
        "a department's quota is served before over-quota work of others",
        "a 5xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "g1@a g2@a g3@a g4@a r1@a",
        departments="ml quota=0; bio quota=3",
        projects="red dep=ml quota=0; blue dep=ml quota=0; green dep=bio quota=3",
    ),
    Case(
        "a department never exceeds its limit",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a",
        departments="ml limit=2",
        projects="red dep=ml; blue dep=ml",
    ),
    Case(
        "GPUs above a department's limit go to other projects",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "r1@a b1@a g1@a g2@a",
        departments="ml limit=2",
        projects="red dep=ml; blue dep=ml; green",
    ),
    Case(
        "protected work never exceeds the department's quota",
        "a 4xT4",
        "r1 red 1; b1 blue 1",
        "r1@a",
        departments="ml quota=1",
        projects="red dep=ml quota=2; blue dep=ml quota=2",
    ),
    Case(
        "training may exceed the department's quota",
        "a 4xT4",
        "r1 red 1 train; b1 blue 1 train",
        "r1@a b1@a",
        departments="ml quota=1",
        projects="red dep=ml quota=2; blue dep=ml quota=2",
    ),
    Case(
        "a department without demand leaves its quota to others",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train",
        "r1@a r2@a r3@a r4@a",
        departments="ml; bio",
        projects="red dep=ml quota=0; green dep=bio quota=4",
    ),
    Case(
        "more work starts when a department's limit is raised",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train",
        "r1@a r2@a",
        departments="ml limit=2",
        projects="red dep=ml",
        then=(("department ml limit=3", "r1@a r2@a r3@a"),),
    ),
    Case(
        "a project that joins a department is subject to its limit",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train",
        "r1@a r2@a",
        departments="ml limit=2",
        then=(("project red dep=ml", "r1@a r2@a"), ("add r3 red 1 train", "r1@a r2@a")),
    ),
    Case("an unknown department has no quota and no limit", "a 2xT4", "r1 red 2", "r1@a", projects="red dep=missing"),
    Case(
        "a project with more recent usage waits",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train",
        "b1@a",
        past="red/ann 4 for=36000",
    ),
    Case(
        "usage of long ago does not count",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train wait=5",
        "r1@a",
        past="red/ann 4 for=36000 ago=9000000",
    ),
    Case(
        "recent usage does not reduce a quota",
        "a 1xT4",
        "r1 red 1 train; b1 blue 1 train wait=900",
        "r1@a",
        past="red/ann 4 for=36000",
        projects="red quota=1; blue quota=0",
    ),
    Case(
        "recent usage does not count with usage_weight 0",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train",
        "r1@a",
        past="red/ann 4 for=36000",
        settings={"usage_weight": 0.0},
    ),
    Case(
        "the project with less recent usage is served first",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train",
        "b1@a",
        past="red/ann 4 for=36000; blue/ann 1 for=36000",
    ),
    Case(
        "a user with more recent usage waits for another user",
        "a 1xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p2@a",
        past="red/ann 4 for=36000",
    ),
    Case(
        "a user's usage of long ago does not count",
        "a 1xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p1@a",
        past="red/ann 4 for=36000 ago=9000000",
    ),
    Case(
        "a user's usage in another project does not count",
        "a 1xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p1@a",
        past="blue/ann 4 for=36000",
    ),
    Case(
        "priority counts before a user's recent usage",
        "a 1xT4",
        "p1 red/ann 1 prio=1; p2 red/bob 1 wait=900",
        "p1@a",
        past="red/ann 4 for=36000",
    ),
    Case(
        "small jobs of one project start before a large job of another",
        "a 4xT4",
        "r1 red 4 train wait=5; b1 blue 1 train; b2 blue 1 train; b3 blue 1 train; b4 blue 1 train",
        "b1@a b2@a b3@a b4@a",
    ),
    Case(
        "over-quota work is evicted until both projects have their fair share",
        "a 2xT4",
        "b1 blue 1 train; b2 blue 1 train",
        "b1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100",
        projects="red quota=0; blue quota=0",
        evicted="r2",
    ),
    Case(
        "a whole GPU is not reclaimed when each project's share is half",
        "a 1xT4",
        "b1 blue 1 train",
        "r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=0",
    ),
    Case(
        "slices are reclaimed until both projects have their fair share",
        "a 1xT4",
        "b1 blue 0.25 train; b2 blue 0.25 train; b3 blue 0.25 train",
        "b1@a b2@a r1@a r2@a",
        running="r1 red 0.25 on a:0 train age=900; r2 red 0.25 on a:0 train age=800; "
        "r3 red 0.25 on a:0 train age=700; r4 red 0.25 on a:0 train age=600",
        projects="red quota=0; blue quota=0",
        evicted="r3 r4",
    ),
    Case(
        "a project of larger weight reclaims more GPUs",
        "a 4xT4",
        "b1 blue 1 train; b2 blue 1 train; b3 blue 1 train; b4 blue 1 train",
        "b1@a b2@a b3@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=800; r3 red 1 on a:2 train age=700; "
        "r4 red 1 on a:3 train age=600",
        projects="red quota=0; blue quota=0 weight=3",
        evicted="r2 r3 r4",
        settings={"usage_weight": 0.0},
    ),
    Case(
        "over-quota work reclaims nothing within a quota",
        "a 2xT4",
        "b1 blue 1 train",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=2; blue quota=0",
    ),
    Case(
        "GPUs are divided among departments before projects",
        "a 4xT4",
        "g1 green 1 train; g2 green 1 train; g3 green 1 train",
        "g1@a g2@a r1@a b1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100; b1 blue 1 on a:2 train age=900; "
        "b2 blue 1 on a:3 train age=100",
        departments="ml; bio",
        projects="red dep=ml quota=0; blue dep=ml quota=0; green dep=bio quota=0",
        evicted="b2 r2",
    ),
    Case(
        "a project reclaims its fair share from another of its department",
        "a 2xT4",
        "b1 blue 1 train",
        "b1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100",
        departments="ml",
        projects="red dep=ml quota=0; blue dep=ml quota=0",
        evicted="r2",
    ),
    Case(
        "GPUs within a department's quota are not reclaimed",
        "a 2xT4",
        "g1 green 1 train",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        departments="ml quota=2; bio quota=0",
        projects="red dep=ml quota=2; green dep=bio quota=0",
    ),
    Case(
        "a project at its fair share waits",
        "a 2xT4",
        "b2 blue 1 train",
        "b1@a r1@a",
        running="r1 red 1 on a:0 train; b1 blue 1 on a:1 train",
        projects="red quota=0; blue quota=0",
    ),
    Case(
        "three over-quota projects end with equal shares",
        "a 3xT4",
        "b1 blue 1 train; g1 green 1 train",
        "b1@a g1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=800; r3 red 1 on a:2 train age=700",
        projects="red quota=0; blue quota=0; green quota=0",
        evicted="r2 r3",
    ),
    Case(
        "nothing is evicted in a department when one of two victims is within its quota",
        "a 2xT4",
        "b1 blue 2",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        departments="ml",
        projects="red dep=ml quota=1; blue dep=ml quota=2",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()
