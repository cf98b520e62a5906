"""Windows: when GPUs are held although nobody knows when the work on them ends."""

from __future__ import annotations

import pytest
from scheduling_world import NOW, World, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.holds.windows import window
from gpupool.scheduling.scheduler import LeaseReleased
from gpupool.scheduling.values import HoldKind

AFTER_S = 300.0
NO_LIMIT = "r1 blue 1 on a:0 age=1"


def reserved(w: World) -> list[str]:
    return sorted(f"{hold.workload}@{hold.node}" for hold in w.scheduler.holds if hold.kind is HoldKind.RESERVED)


@pytest.mark.parametrize(
    ("waited_s", "found"),
    [
        (300, (True, 375)),
        (374.9, (True, 375)),
        (375, (False, 600)),
        (599.9, (False, 600)),
        (600, (True, 750)),
        (750, (False, 1200)),
        (1200 - 1e-7, (True, 1500)),  # the clock of a cycle that was to begin at 1200
        (300 * 2**20, (True, 375 * 2**20)),
    ],
)
def test_window_is_the_first_quarter_of_each_doubling(waited_s: float, found: tuple[bool, float]) -> None:
    assert window(waited_s, AFTER_S) == found


def test_window_is_always_open_without_a_wait_before_reservations() -> None:
    assert window(0.0, 0.0) == (True, float("inf"))


def test_gpus_are_held_in_a_window_and_released_at_its_end() -> None:
    w = world("a 2xT4", "big red 2 wait=600; small red 1", NO_LIMIT)
    w.step()
    assert (reserved(w), w.places(), w.last.wake_at) == (["big@a"], "r1@a", NOW + 150)
    w.now = NOW + 149
    w.step()
    assert (reserved(w), w.places()) == (["big@a"], "r1@a")
    w.now = NOW + 150
    w.step()
    assert (reserved(w), w.places()) == ([], "r1@a small@a")
    w.step()
    assert w.last.wake_at == NOW + 600
    w.now = NOW + 600
    w.step()
    assert reserved(w) == ["big@a"]


@pytest.mark.parametrize(
    ("nodes", "pending", "running"),
    [
        ("a 2xT4", "big red 2 wait=900; small red 1", "r1 blue 1 on a:0 end=5000"),
        ("a 1xT4", "big red 1 wait=900; small red 0.5", "r1 blue 0.5 on a:0"),
    ],
    ids=["the work has a time limit", "one GPU"],
)
def test_gpus_are_held_outside_windows_too(nodes: str, pending: str, running: str) -> None:
    w = world(nodes, pending, running)
    for later in (0, 200, 700, 2000):
        w.now = NOW + later
        w.step()
        assert (reserved(w), w.places()) == (["big@a"], "r1@a"), later


def test_gang_is_released_as_a_whole() -> None:
    w = world("a 2xT4; b 2xT4", "big red 1 gang=3 wait=700", "r1 blue 1 on a:0; r2 blue 1 on b:0")
    w.step()
    assert len(reserved(w)) == 3
    w.now = NOW + 50
    w.step()
    assert reserved(w) == []


def test_waiting_work_starts_outside_windows_when_its_gpus_are_free() -> None:
    w = world("a 2xT4", "big red 2 wait=900", NO_LIMIT)
    w.step()
    assert reserved(w) == []
    del w.running[WorkloadId("r1"), 0]
    w.scheduler.apply(LeaseReleased((WorkloadId("r1"), 0)))
    w.step()
    assert w.places() == "big@a"
