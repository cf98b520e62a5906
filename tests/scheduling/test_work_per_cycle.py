"""The work of a cycle, counted: it must not grow with the number of projects that have no chance."""

from __future__ import annotations

import pytest
from scheduling_world import NOW, World, world

from gpupool.scheduling.eviction.victim_search import Work

FEW, MANY = 5, 60


@pytest.fixture
def considered(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Return a list that gets an entry for each group for which a cycle considers evictions."""
    found: list[Work] = []
    consider = Work.consider

    def count(work: Work) -> None:
        found.append(work)
        consider(work)

    monkeypatch.setattr(Work, "consider", count)
    return found


def _pool_without_suitable_victims(projects: int, request: str) -> World:
    """Return a pool where many projects may reclaim, but only GPUs of a model that their work does not accept."""
    numbers = range(projects)
    return world(
        "a 4xA100\nt 8xT4",
        "\n".join(f"w{n} p{n} {request} train model=a100 wait=100" for n in numbers),
        "\n".join(["g guard 4 on a:0,1,2,3 age=5000", *(f"r{n} greedy 1 on t:{n} train age=5000" for n in range(8))]),
        "\n".join(["guard quota=4", "greedy quota=0", *(f"p{n} quota=1" for n in numbers)]),
    )


@pytest.mark.parametrize("request_", ["0.5", "8000M"])
def test_one_failed_search_speaks_for_all_projects(considered: list[Work], request_: str) -> None:
    counts = []
    for projects in (FEW, MANY):
        considered.clear()
        decisions = _pool_without_suitable_victims(projects, request_).scheduler.decide(NOW)
        assert not decisions.grants
        assert not decisions.evictions
        counts.append(len(considered))
    assert counts[0] == counts[1] > 0


def test_search_ends_when_all_waiting_groups_are_known_to_fail(considered: list[Work]) -> None:
    counts = []
    for projects in (40, 80):
        considered.clear()
        victims = [f"r{n} greedy 1 on t:{n} train age=5000" for n in range(6)]
        victims += [f"h{n} greedy 0.5 on t:{n} train age=5000" for n in (6, 7)]
        pool = world(
            "a 4xA100\nt 8xT4",
            "\n".join(f"w{n} p{n} 1 train model=a100 wait=100" for n in range(projects)),
            "\n".join(["g guard 4 on a:0,1,2,3 age=5000", *victims]),
            "\n".join(["guard quota=4", "greedy quota=0", *(f"p{n} quota=1" for n in range(projects))]),
        )
        assert not pool.scheduler.decide(NOW).evictions
        counts.append(len(considered))
    assert counts[0] == counts[1] < 40
