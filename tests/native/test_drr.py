"""The round robin in virtual time: shares, caps, response times, and what always holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from drr_model import CAP, GUARANTEE, MS, NONE, US, Outcome, S, Settings, Tenant, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TINY, MIDDLE, LONG = (50 * US,), (5 * MS,), (30 * MS,)
MIXED = (50 * US, 5 * MS, 50 * US, 30 * MS)
KERNELS = {"tiny": TINY, "middle": MIDDLE, "long": LONG, "mixed": MIXED}
POINTS_10_S, POINTS_1_S = 2.0, 5.0


def due(tenants: Sequence[Tenant]) -> list[float]:
    """Return the part of each tenant, in percent."""
    return [100 * tenant.weight / sum(one.weight for one in tenants) for tenant in tenants]


def assert_fair(tenants: Sequence[Tenant], outcome: Outcome) -> None:
    assert outcome.worst_error(due(tenants), 10 * S) <= POINTS_10_S
    assert outcome.worst_error(due(tenants), S) <= POINTS_1_S
    assert outcome.two_grants == outcome.early_overlaps == 0


@pytest.mark.parametrize("first", KERNELS)
@pytest.mark.parametrize("second", KERNELS)
@pytest.mark.parametrize("weight", [100, 250, 500])
def test_two_tenants_get_their_shares(weight: int, first: str, second: str) -> None:
    tenants = [Tenant(weight, kernels=KERNELS[first]), Tenant(1000 - weight, kernels=KERNELS[second])]
    outcome = run(tenants, 15)
    assert_fair(tenants, outcome)
    assert outcome.idle_wanted < 0.015 * 15 * S


@pytest.mark.parametrize("weights", [(200, 300, 500), (100, 100, 100), (600, 30, 300), (100,) * 10])
@pytest.mark.parametrize("kernels", [*KERNELS, "each its own"])
def test_many_tenants_get_their_shares(weights: Sequence[int], kernels: str) -> None:
    every = [KERNELS.get(kernels, list(KERNELS.values())[i % 4]) for i in range(len(weights))]
    tenants = [Tenant(weight, kernels=one) for weight, one in zip(weights, every, strict=True)]
    assert_fair(tenants, run(tenants, 15))


def test_slow_handovers_cost_all_tenants_equally() -> None:
    tenants = [Tenant(200, wake=500 * US, drained=500 * US), Tenant(800, wake=500 * US, drained=500 * US)]
    assert_fair(tenants, run(tenants, 15))


def test_share_of_a_tenth_is_kept() -> None:
    tenants = [Tenant(10), Tenant(990)]
    assert run(tenants, 20).worst_error(due(tenants), 10 * S) < 0.5


def test_kernels_longer_than_a_round_are_balanced() -> None:
    tenants = [Tenant(300, kernels=(200 * MS,)), Tenant(700)]
    assert run(tenants, 30).worst_error(due(tenants), 10 * S) <= POINTS_10_S


def test_single_tenant_has_the_whole_gpu() -> None:
    outcome = run([Tenant(100)], 5)
    assert outcome.grants == [1]
    assert outcome.idle_wanted < MS
    assert outcome.served[0] > 0.999 * 5 * S


def test_time_alone_causes_no_debt() -> None:
    tenants = [Tenant(500), Tenant(500, starts=10 * S)]
    outcome = run(tenants, 21)
    assert outcome.worst_error(due(tenants), S, warm_ns=10 * S) <= POINTS_1_S
    assert outcome.longest_wait[1] < 100 * MS


def test_intermittent_tenant_gets_at_most_its_share() -> None:
    tenants = [Tenant(500, burst=60 * MS, think=1 * MS), Tenant(500)]
    assert run(tenants, 15).shares[0] <= 50 + POINTS_10_S


@pytest.mark.parametrize("pause", [600 * US, 1 * MS, 3 * MS])
@pytest.mark.parametrize("kernel", [30 * MS, 200 * MS])
def test_long_kernels_do_not_exploit_short_pauses(kernel: int, pause: int) -> None:
    outcome = run([Tenant(100, kernels=(kernel,)), Tenant(900, burst=50 * MS, think=pause)], 20)
    assert outcome.shares[0] <= 10 + POINTS_10_S
    assert sum(outcome.served) > 0.94 * 20 * S


@pytest.mark.parametrize("kernels", KERNELS)
def test_cap_limits_alone_and_with_other_tenants(kernels: str) -> None:
    alone = run([Tenant(300, CAP, kernels=KERNELS[kernels])], 20)
    assert 28 <= 100 * alone.served[0] / (20 * S) <= 30.5
    contended = run([Tenant(100, CAP, kernels=KERNELS[kernels]), Tenant(500)], 20)
    assert 8.5 <= 100 * contended.served[0] / (20 * S) <= 10.5
    assert sum(contended.served) > 0.98 * 20 * S


def test_policy_none_is_outside_the_round_robin() -> None:
    outcome = run([Tenant(500, NONE), Tenant(500)], 5)
    assert outcome.grants == [0, 1]


@pytest.mark.parametrize(("weight", "worst_ms"), [(500, 12), (100, 12)])
def test_tenant_with_credit_is_granted_soon(weight: int, worst_ms: int) -> None:
    outcome = run([Tenant(weight, burst=5 * MS, think=50 * MS), Tenant(1000 - weight)], 10)
    responses = outcome.responses[0]
    assert len(responses) > 100
    assert responses[-len(responses) // 100] <= worst_ms * MS


def test_bursts_above_the_share_get_no_priority() -> None:
    tenants = [Tenant(100, burst=5 * MS, think=5 * MS), Tenant(900)]
    assert run(tenants, 15).shares[0] <= 10 + POINTS_10_S


def test_endless_kernel_shares_with_other_tenants() -> None:
    outcome = run([Tenant(500, kernels=(1000 * S,)), Tenant(500)], 20)
    assert outcome.shares[1] > 45
    assert outcome.early_overlaps == 0
    many = run([Tenant(500, kernels=(1000 * S,)), Tenant(250), Tenant(250)], 20)
    assert min(many.shares[1:]) > 20


def test_stopped_process_costs_other_tenants_little() -> None:
    assert run([Tenant(500, stopped=True), Tenant(500)], 10).shares[1] == 100
    assert run([Tenant(500, stopped=True), Tenant(500)], 10).served[1] > 0.95 * 10 * S


def test_processes_of_a_tenant_share_its_time() -> None:
    tenants = [Tenant(500, processes=8), Tenant(500)]
    assert_fair(tenants, run(tenants, 15))


def test_wait_is_limited_as_documented() -> None:
    tenants = [Tenant(10, kernels=(40 * S,)), *(Tenant(110) for _ in range(9))]
    assert max(run(tenants, 100).longest_wait) < 25 * S


def test_quantum_is_configurable() -> None:
    short, long = (run([Tenant(), Tenant()], 5, Settings(quantum=q * MS)) for q in (10, 50))
    assert short.grants[0] > 2 * long.grants[0]


TENANTS = st.builds(
    Tenant,
    weight=st.integers(1, 1000),
    policy=st.sampled_from([GUARANTEE, GUARANTEE, CAP, NONE]),
    kernels=st.sampled_from([TINY, MIDDLE, LONG, MIXED, (400 * MS,)]),
    burst=st.sampled_from([0, 0, 1 * MS, 20 * MS]),
    think=st.integers(1 * US, 200 * MS),
    gap=st.sampled_from([0, 0, 100 * US, 3 * MS]),
    inflight=st.integers(100 * US, 8 * MS),
    wake=st.integers(10 * US, 1 * MS),
    drained=st.integers(10 * US, 1 * MS),
    starts=st.integers(0, 1 * S),
    ends=st.sampled_from([0, 0, 2 * S]),
    processes=st.integers(1, 4),
    stopped=st.booleans(),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tenants=st.lists(TENANTS, min_size=1, max_size=6))
def test_invariants_hold_under_random_events(tenants: list[Tenant]) -> None:
    outcome = run(tenants, 3)
    gated = [t for t in tenants if t.policy != NONE]
    assert outcome.two_grants == 0
    assert outcome.early_overlaps == 0
    assert max(outcome.longest_wait) < 25 * S
    assert sum(outcome.held) <= 3.001 * S
    assert outcome.steps < 60_000 * (1 + sum(t.processes for t in tenants if t.policy == NONE))
    if all(t.policy == GUARANTEE for t in gated) and not any(t.stopped for t in tenants):
        assert outcome.longest_idle_wanted <= 60 * MS
