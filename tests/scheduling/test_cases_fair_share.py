"""What is left when quotas are served: by weight, department and use lately."""

from __future__ import annotations

import pytest
from scheduling_cases import Case, table

CASES = [
    Case(
        "two projects want all of it",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a b1@a b2@a",
    ),
    Case(
        "by weight",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a r3@a b1@a",
        projects="red quota=0 weight=3; blue quota=0 weight=1",
    ),
    Case(
        "by weight, without quotas",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a r3@a b1@a",
        projects="red weight=3; blue weight=1",
    ),
    Case(
        "weights begin where quotas end",
        "a 6xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a b1@a b2@a b3@a b4@a",
        projects="red quota=2 weight=1; blue quota=2 weight=9",
    ),
    Case(
        "who wants little leaves the rest",
        "a 4xT4",
        "r1 red 1 train; b1 blue 1 train; b2 blue 1 train; b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a b2@a b3@a",
    ),
    Case(
        "quotas beyond what there is, in proportion",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a r2@a r3@a b1@a",
        projects="red quota=6; blue quota=2",
    ),
    Case(
        "no weight, only what nobody else wants",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train",
        "r1@a r2@a b1@a b2@a",
        projects="red quota=0 weight=0; blue quota=0",
    ),
    Case(
        "a quota is served without any weight",
        "a 2xT4",
        "b1 blue 1 train; b2 blue 1 train; b3 blue 1 train; b4 blue 1 train; r1 red 1 train",
        "r1@a b1@a",
        projects="red quota=1 weight=0; blue quota=0",
    ),
    Case(
        "parts are not rounded",
        "a 1xT4",
        "r1 red 0.25 train; r2 red 0.25 train; r3 red 0.25 train; r4 red 0.25 train; r5 red 0.25 train; "
        "r6 red 0.25 train; b1 blue 0.25 train; b2 blue 0.25 train; b3 blue 0.25 train; b4 blue 0.25 train; "
        "b5 blue 0.25 train; b6 blue 0.25 train",
        "r1@a r2@a r3@a b1@a",
        projects="red weight=3; blue weight=1",
    ),
    Case(
        "a department is one",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "r1@a b1@a g1@a g2@a",
        departments="ml; bio",
        projects="red dep=ml; blue dep=ml; green dep=bio",
    ),
    Case(
        "a project of no department stands beside departments",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "r1@a b1@a g1@a g2@a",
        departments="ml",
        projects="red dep=ml; blue dep=ml; green",
    ),
    Case(
        "departments by weight",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a b2@a b3@a",
        departments="ml weight=1; bio weight=3",
        projects="red dep=ml; blue dep=bio",
    ),
    Case(
        "projects of a department by weight",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a b2@a b3@a",
        departments="ml",
        projects="red dep=ml quota=0 weight=1; blue dep=ml quota=0 weight=3",
    ),
    Case(
        "a department's quota before others borrow",
        "a 5xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "g1@a g2@a g3@a g4@a r1@a",
        departments="ml quota=0; bio quota=3",
        projects="red dep=ml quota=0; blue dep=ml quota=0; green dep=bio quota=3",
    ),
    Case(
        "a department's limit",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train",
        "r1@a b1@a",
        departments="ml limit=2",
        projects="red dep=ml; blue dep=ml",
    ),
    Case(
        "a department's limit leaves the rest to others",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train; b1 blue 1 train; b2 blue 1 train; "
        "b3 blue 1 train; b4 blue 1 train; g1 green 1 train; g2 green 1 train; g3 green 1 train; g4 green 1 train",
        "r1@a b1@a g1@a g2@a",
        departments="ml limit=2",
        projects="red dep=ml; blue dep=ml; green",
    ),
    Case(
        "a department's quota is all its protected work may have",
        "a 4xT4",
        "r1 red 1; b1 blue 1",
        "r1@a",
        departments="ml quota=1",
        projects="red dep=ml quota=2; blue dep=ml quota=2",
    ),
    Case(
        "training of a department may exceed its quota",
        "a 4xT4",
        "r1 red 1 train; b1 blue 1 train",
        "r1@a b1@a",
        departments="ml quota=1",
        projects="red dep=ml quota=2; blue dep=ml quota=2",
    ),
    Case(
        "a department that wants nothing leaves all of it",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train",
        "r1@a r2@a r3@a r4@a",
        departments="ml; bio",
        projects="red dep=ml quota=0; green dep=bio quota=4",
    ),
    Case(
        "a department's limit raised",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train; r3 red 1 train; r4 red 1 train",
        "r1@a r2@a",
        departments="ml limit=2",
        projects="red dep=ml",
        then=(("department ml limit=3", "r1@a r2@a r3@a"),),
    ),
    Case(
        "a project comes into a department and under its limit",
        "a 4xT4",
        "r1 red 1 train; r2 red 1 train",
        "r1@a r2@a",
        departments="ml limit=2",
        then=(("project red dep=ml", "r1@a r2@a"), ("add r3 red 1 train", "r1@a r2@a")),
    ),
    Case("a department nobody described has no bounds", "a 2xT4", "r1 red 2", "r1@a", projects="red dep=ghost"),
    Case(
        "who held much lately waits",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train",
        "b1@a",
        past="red/ann 4 for=36000",
    ),
    Case(
        "who held much long ago does not",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train wait=5",
        "r1@a",
        past="red/ann 4 for=36000 ago=9000000",
    ),
    Case(
        "use lately takes nothing from a quota",
        "a 1xT4",
        "r1 red 1 train; b1 blue 1 train wait=900",
        "r1@a",
        past="red/ann 4 for=36000",
        projects="red quota=1; blue quota=0",
    ),
    Case(
        "use lately weighs nothing where that is not wanted",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train",
        "r1@a",
        past="red/ann 4 for=36000",
        settings={"usage_weight": 0.0},
    ),
    Case(
        "of two who held something, who held less",
        "a 1xT4",
        "r1 red 1 train wait=900; b1 blue 1 train",
        "b1@a",
        past="red/ann 4 for=36000; blue/ann 1 for=36000",
    ),
    Case(
        "a user who held much lately waits for another",
        "a 1xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p2@a",
        past="red/ann 4 for=36000",
    ),
    Case(
        "a user's use of long ago is forgotten",
        "a 1xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p1@a",
        past="red/ann 4 for=36000 ago=9000000",
    ),
    Case(
        "a user's use in another project counts for nothing",
        "a 1xT4",
        "p1 red/ann 1 wait=900; p2 red/bob 1",
        "p1@a",
        past="blue/ann 4 for=36000",
    ),
    Case(
        "importance goes before use lately",
        "a 1xT4",
        "p1 red/ann 1 prio=1; p2 red/bob 1 wait=900",
        "p1@a",
        past="red/ann 4 for=36000",
    ),
    Case(
        "a large job of the one, small ones of the other",
        "a 4xT4",
        "r1 red 4 train wait=5; b1 blue 1 train; b2 blue 1 train; b3 blue 1 train; b4 blue 1 train",
        "b1@a b2@a b3@a b4@a",
    ),
    Case(
        "who borrows shares with who would borrow",
        "a 2xT4",
        "b1 blue 1 train; b2 blue 1 train",
        "b1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100",
        projects="red quota=0; blue quota=0",
        evicted="r2",
    ),
    Case(
        "nobody gives a whole GPU when each is due half",
        "a 1xT4",
        "b1 blue 1 train",
        "r1@a",
        running="r1 red 1 on a:0 train",
        projects="red quota=0; blue quota=0",
    ),
    Case(
        "parts are shared out to the last",
        "a 1xT4",
        "b1 blue 0.25 train; b2 blue 0.25 train; b3 blue 0.25 train",
        "b1@a b2@a r1@a r2@a",
        running="r1 red 0.25 on a:0 train age=900; r2 red 0.25 on a:0 train age=800; "
        "r3 red 0.25 on a:0 train age=700; r4 red 0.25 on a:0 train age=600",
        projects="red quota=0; blue quota=0",
        evicted="r3 r4",
    ),
    Case(
        "who weighs more gets more back",
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
        "who borrows takes nothing from within a quota",
        "a 2xT4",
        "b1 blue 1 train",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        projects="red quota=2; blue quota=0",
    ),
    Case(
        "departments share first",
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
        "one department's projects among themselves",
        "a 2xT4",
        "b1 blue 1 train",
        "b1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100",
        departments="ml",
        projects="red dep=ml quota=0; blue dep=ml quota=0",
        evicted="r2",
    ),
    Case(
        "a department within its quota gives nothing to another beyond",
        "a 2xT4",
        "g1 green 1 train",
        "r1@a r2@a",
        running="r1 red 1 on a:0 train; r2 red 1 on a:1 train",
        departments="ml quota=2; bio quota=0",
        projects="red dep=ml quota=2; green dep=bio quota=0",
    ),
    Case(
        "who is at its share waits",
        "a 2xT4",
        "b2 blue 1 train",
        "b1@a r1@a",
        running="r1 red 1 on a:0 train; b1 blue 1 on a:1 train",
        projects="red quota=0; blue quota=0",
    ),
    Case(
        "three who borrow end even",
        "a 3xT4",
        "b1 blue 1 train; g1 green 1 train",
        "b1@a g1@a r1@a",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=800; r3 red 1 on a:2 train age=700",
        projects="red quota=0; blue quota=0; green quota=0",
        evicted="r2 r3",
    ),
    Case(
        "in one department, nobody goes when the second of two would be from within the quota",
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
