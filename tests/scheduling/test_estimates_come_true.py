"""If every run ends at its limit and nothing is evicted, estimates are exact."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, World, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.scheduler import LeaseReleased

WAITING = st.lists(
    st.tuples(
        st.just("red"),  # two projects may exchange their order because of usage in between
        st.sampled_from(["1", "2", "0.5", "0.25", "4"]),
        st.integers(5, 500),  # its time limit
        st.integers(1, 200),  # how long it has waited
    ),
    min_size=1,
    max_size=12,
)
RUNNING = st.lists(st.tuples(st.sampled_from(["red", "blue"]), st.integers(1, 400)), min_size=4, max_size=8)


def simulated(w: World) -> dict[str, float]:
    """Return the start times in a simulation with the real scheduler."""
    demand, starts = w.scheduler.demand, dict[str, float]()
    now = w.now
    for _ in range(100):
        more = True
        while more:
            decisions = w.scheduler.decide(now)
            starts |= {str(grant.workload): now for grant in decisions.grants}
            more = decisions.more
        ends = [r.expected_end for r in demand.running.values() if r.expected_end is not None]
        if not ends:
            break
        now = min(ends)
        for key in [key for key, r in demand.running.items() if r.expected_end == now]:
            w.scheduler.apply(LeaseReleased(key))
    return starts


def told_and_true(
    waiting: list[tuple[str, str, int, int]], active: list[tuple[str, int]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the estimated and the simulated start of each waiting workload."""
    running = [f"r{n} {project} 1 on {'ab'[n // 4]}:{n % 4} end={end}" for n, (project, end) in enumerate(active)]
    queue = [f"q{n} {project} {gpus} max={run} wait={wait}" for n, (project, gpus, run, wait) in enumerate(waiting)]
    w = world("a 4xT4; b 4xT4", "; ".join(queue), "; ".join(running), reserve_after_s=1e9)
    w.scheduler.decide(w.now)
    told = {}
    for number in range(len(waiting)):
        found = w.scheduler.explain((WorkloadId(f"q{number}"), 0), w.now, {})
        if found is not None:
            assert found.estimate_s is not None
            assert "the rate" not in found.estimate_basis
            told[f"q{number}"] = NOW + found.estimate_s
    return told, simulated(w)


@settings(max_examples=25, deadline=None)
@given(WAITING, RUNNING)
def test_estimate_from_time_limits_is_exact(
    waiting: list[tuple[str, str, int, int]], active: list[tuple[str, int]]
) -> None:
    told, starts = told_and_true(waiting, active)
    assert {name: round(at, 3) for name, at in told.items()} == {name: round(starts[name], 3) for name in told}


ALIKE = st.lists(
    st.tuples(st.sampled_from(["red", "blue"]), st.just("1"), st.just(60), st.integers(1, 200)), max_size=12
)


@settings(max_examples=25, deadline=None)
@given(ALIKE, RUNNING)
def test_start_times_of_two_projects_are_exact(
    waiting: list[tuple[str, str, int, int]], active: list[tuple[str, int]]
) -> None:
    """Usage in between may exchange two equal projects: that changes which one starts, not when."""
    told, starts = told_and_true(waiting, active)
    assert sorted(round(at, 3) for at in told.values()) == sorted(round(starts[name], 3) for name in told)
