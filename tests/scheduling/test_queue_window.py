"""A user with very many different requests: cycles consider some of them at a time, each has its turn."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, World, lines, pendings, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.explain.wait_case import WaitCode
from gpupool.scheduling.scheduler import PendingAdded, PendingRemoved
from gpupool.scheduling.state import queue, queue_window
from gpupool.scheduling.state.queue_window import MAX_SHAPES


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_window, "MAX_SHAPES", 3)
    monkeypatch.setattr(queue, "ROTATED", 2)


def flood(count: int, request: str = "1", *, first: int = 0, options: str = "") -> str:
    """Return jobs of the user ann that differ in their CPUs."""
    return "; ".join(f"f{n:04} red/ann {request} cpus={1 + n / 1000} {options}" for n in range(first, first + count))


def cycles(w: World, count: int) -> None:
    for _ in range(count):
        w.step()
        w.now += 1


def in_queue(w: World, user: str = "ann") -> int:
    """Return how many different requests of a user are in the queue."""
    demand = w.scheduler.demand
    groups = [group for group in demand.groups() if demand.pending[group.entries[0][2].key].user == user]
    return len({group.shape for group in groups})


def test_cycle_considers_a_bounded_number_of_requests_of_each_user() -> None:
    w = world("a 1xT4", flood(1000), "busy blue 1 on a:0")
    assert in_queue(w) == MAX_SHAPES
    for number, line in enumerate(
        lines("other red/bob 0.5 cpus=3; same red/ann 1 cpus=1; first red/ann 1 cpus=7 prio=1")
    ):
        w.scheduler.apply_all(PendingAdded(one, NOW) for one in pendings(line, number))
    assert in_queue(w, "bob") == 1
    assert in_queue(w) == MAX_SHAPES + 1, "a higher priority has its own bound"
    cycles(w, 3)
    assert in_queue(w) == MAX_SHAPES + 1
    assert len(w.scheduler.demand.pending) == 1003


def test_parked_request_that_fits_starts_when_its_turn_comes(small_window: None) -> None:
    w = world("a 2xT4", f"{flood(9, '2')}; small red/ann 1 cpus=1", "busy blue 1 on a:0")
    assert (WorkloadId("small"), 0) in w.scheduler.demand.window
    cycles(w, 24)
    assert w.granted == ["small"]


@pytest.mark.usefixtures("small_window")
def test_every_request_starts_once() -> None:
    w = world("a 1xT4 cpus=100", flood(40, "0.5"))
    for _ in range(400):
        w.step()
        for key in list(w.running):
            w.leave(key)
        w.now += 1
        if not w.scheduler.demand.pending:
            break
    assert sorted(w.granted) == [f"f{n:04}" for n in range(40)]
    assert not w.scheduler.demand.window
    assert w.scheduler.demand.window._listed == {}


@pytest.mark.usefixtures("small_window")
def test_order_of_arrival_is_kept_where_all_fit() -> None:
    w = world("a 1xT4 cpus=100", flood(12))
    for _ in range(12):
        w.step()
        for key in list(w.running):
            w.leave(key)
        w.now += 0.01  # no rotation between
    assert w.granted[:4] == ["f0000", "f0001", "f0002", "f0003"]


@pytest.mark.usefixtures("small_window")
def test_parked_requests_can_be_removed_and_replaced() -> None:
    w = world("a 1xT4", flood(6), "busy blue 1 on a:0")
    apply = w.scheduler.apply
    apply(PendingRemoved((WorkloadId("f0004"), 0)))
    assert (WorkloadId("f0004"), 0) not in w.scheduler.demand.window
    [other] = pendings("f0005 red/ann 1 cpus=1.001")  # now like one in the queue
    apply(PendingAdded(other, NOW))
    assert (WorkloadId("f0005"), 0) not in w.scheduler.demand.window
    assert in_queue(w) == 3
    for name in ("f0000", "f0001", "f0005", "f0002", "f0003"):
        apply(PendingRemoved((WorkloadId(name), 0)))
    assert in_queue(w) == 0
    assert not w.scheduler.demand.window


@pytest.mark.usefixtures("small_window")
def test_gangs_are_parked_and_start_whole() -> None:
    gangs = "; ".join(f"g{n} red/ann 1 cpus={1 + n / 1000} gang=2" for n in range(5))
    w = world("a 2xT4 cpus=100", gangs)
    for _ in range(80):
        w.step()
        held = {key[0] for key in w.running}
        assert all(len([key for key in w.running if key[0] == name]) == 2 for name in held)
        for key in list(w.running):
            w.leave(key)
        w.now += 1
    assert sorted(w.granted) == sorted([f"g{n}" for n in range(5)] * 2)


@pytest.mark.usefixtures("small_window")
def test_wait_reason_names_the_number_of_requests() -> None:
    w = world("a 1xT4", flood(6), "busy blue 1 on a:0")
    found = w.scheduler.explain((WorkloadId("f0005"), 0), w.now)
    assert found is not None
    assert found.code is WaitCode.MANY_REQUESTS
    assert "waits with 6 different requests" in found.sentence
    assert found.estimate_s is None


@pytest.mark.usefixtures("small_window")
def test_plan_of_another_request_is_not_parked() -> None:
    w = world("a 2xT4 cpus=100", flood(6), "busy blue 1 on a:0; more blue 1 on a:1")
    before = set(w.scheduler.demand.window._places)
    said = w.scheduler.plan(pendings("new red/ann 1 cpus=50"), w.now)
    assert said is not None
    assert set(w.scheduler.demand.window._places) == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    jobs=st.lists(
        st.tuples(st.sampled_from(["red/ann", "red/bob", "blue/ann"]), st.sampled_from(["0.25", "0.5", "1"]),
                  st.integers(0, 9), st.sampled_from(["", "train", "prio=1"])),
        max_size=24,
    )
)  # fmt: skip
def test_everything_starts_in_a_pool_with_room(small_window: None, jobs: list[tuple[str, str, int, str]]) -> None:
    queue_ = "; ".join(f"j{n} {who} {size} cpus={cpus} {more}" for n, (who, size, cpus, more) in enumerate(jobs))
    w = world("a 8xT4 cpus=500; b 8xT4 cpus=500; c 8xT4 cpus=500", queue_)
    cycles(w, 60)
    assert sorted(w.granted) == sorted(f"j{n}" for n in range(len(jobs)))
    assert not w.scheduler.demand.window
    assert w.scheduler.demand.window._listed == {}
