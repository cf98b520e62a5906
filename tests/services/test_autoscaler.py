"""The autoscaler: bounded, steady under constant load, down to zero and back."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.work.service import ScalePolicy
from gpupool.services.serving.autoscaler import Scaler, ServiceDemand, step

POLICY = ScalePolicy(0, 4, concurrency=8, up_s=10, down_s=60, to_zero_s=300)
policies = st.builds(
    ScalePolicy,
    st.integers(0, 3),
    st.integers(3, 9),
    st.integers(1, 20),
    st.floats(0, 60),
    st.floats(0, 600),
    st.floats(0, 900),
)
demands = st.builds(ServiceDemand, st.integers(0, 200), st.integers(0, 50))


def run(policy: ScalePolicy, start: int, loads: Iterable[tuple[int, int]]) -> list[int]:
    """Return the desired number after each (seconds, requests), measured every second."""
    scaler, now, found = Scaler(start), 0.0, []
    for seconds, requests in loads:
        for _ in range(seconds):
            scaler = step(policy, scaler, ServiceDemand(requests), now)
            now += 1
        found.append(scaler.desired)
    return found


def test_more_demand_must_last() -> None:
    assert run(POLICY, 1, [(8, 30), (1, 5), (8, 30), (4, 30)]) == [1, 1, 1, 4]
    assert run(POLICY, 1, [(5, 30), (10, 12)]) == [1, 2]  # the smallest number wanted in that time


def test_less_demand_must_last_longer() -> None:
    assert run(POLICY, 4, [(50, 3), (1, 30), (50, 3), (12, 3)]) == [4, 4, 4, 1]
    assert run(POLICY, 4, [(50, 3), (20, 12)]) == [4, 2]  # the largest number wanted in that time


def test_zero_only_after_a_long_time_without_requests_and_back_at_once() -> None:
    assert run(POLICY, 1, [(290, 0), (12, 0), (100, 0), (1, 1)]) == [1, 0, 0, 1]
    assert run(POLICY, 1, [(290, 0), (1, 1), (290, 0)]) == [1, 1, 1]
    assert run(POLICY, 0, [(50, 0), (1, 25)]) == [0, 4]


def test_fixed_number_never_changes() -> None:
    assert run(ScalePolicy(2, 2), 2, [(1000, 0), (1000, 500)]) == [2, 2]
    assert run(ScalePolicy(2, 2), 7, [(1, 0)]) == [2]


@given(policies, st.integers(0, 12), st.lists(st.tuples(demands, st.floats(0, 400))))
def test_number_is_always_within_the_limits(
    policy: ScalePolicy, start: int, loads: list[tuple[ServiceDemand, float]]
) -> None:
    scaler, now = Scaler(start), 0.0
    for demand, pause in loads:
        scaler = step(policy, scaler, demand, now)
        now += pause
        assert policy.least <= scaler.desired <= policy.most


@given(policies, st.integers(0, 9), demands)
def test_constant_demand_leads_to_one_number_without_oscillation(
    policy: ScalePolicy, start: int, demand: ServiceDemand
) -> None:
    scaler, seen = Scaler(start), []
    for now in range(2000):
        scaler = step(policy, scaler, demand, float(now))
        if not seen or seen[-1] != scaler.desired:
            seen.append(scaler.desired)
    steps = [after - before for before, after in pairwise(seen)]
    assert all(each > 0 for each in steps) or all(each < 0 for each in steps), seen
    wanted = -(-demand.total // policy.concurrency)
    if demand.total:
        assert seen[-1] == min(max(wanted, policy.least, 1), policy.most)
    else:
        assert seen[-1] == policy.least or (seen[-1] == 1 and policy.least == 0 and policy.to_zero_s > 1990)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50))
def test_after_any_past_it_reaches_zero_and_returns(past: list[int]) -> None:
    scaler, now = Scaler(1), 0.0
    for requests in past:
        scaler = step(POLICY, scaler, ServiceDemand(requests), now)
        now += 1
    for _ in range(500):
        scaler = step(POLICY, scaler, ServiceDemand(), now)
        now += 1
    assert scaler.desired == 0
    assert step(POLICY, scaler, ServiceDemand(held=1), now).desired == 1
