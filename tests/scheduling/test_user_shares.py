"""Properties of reclaim among the users of a project: it comes to rest, and users get their share."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_world import World, world

from gpupool.domain.people.access import Project, ProjectRules
from gpupool.scheduling.fairness import user_shares
from gpupool.scheduling.fairness.user_shares import UserShares, divide_among_users
from gpupool.scheduling.fairness.water_filling import Floats, Ints, fill
from gpupool.scheduling.state.ledger import Ledger
from gpupool.scheduling.state.undo import UndoLog
from gpupool.scheduling.state.user_division import UserDivision

STEP_S = 100.0
Users = dict[str, tuple[int, list[int]]]  # by name: how many steps later, and the GPUs of each job


def users(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Users]:
    jobs = st.tuples(st.integers(0, 5), st.lists(sizes, min_size=1, max_size=8))
    return st.dictionaries(st.sampled_from(["ann", "bob", "cat", "dan"]), jobs, min_size=2)


def jobs_of(demand: Users, step: int) -> str:
    lines = [
        f"{user}{at} red/{user} {gpus} train later={later * STEP_S:g}"
        for user, (later, sizes) in demand.items()
        for at, gpus in enumerate(sizes)
        if later >= step
    ]
    return "; ".join(lines)


def at_rest(pool: World) -> Counter[str]:
    """Run until the last jobs have come and all shields are gone; return what each user holds in GPUs."""
    for _ in range(60):
        pool.step()
        pool.now += STEP_S
    before = len(pool.evicted)
    for _ in range(30):
        pool.step()
        pool.now += STEP_S
    assert len(pool.evicted) == before, "work is evicted for ever"
    held: Counter[str] = Counter()
    for running in pool.scheduler.demand.running.values():
        held[running.lease.user] += running.lease.permille // 1000
    return held


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(users(st.integers(1, 3)), st.integers(1, 3))
def test_evictions_end_under_constant_demand(demand: Users, nodes: int) -> None:
    pool = world("; ".join(f"n{at} 4xT4" for at in range(nodes)), jobs_of(demand, 0))
    at_rest(pool)
    asked = sum(len(sizes) for _, sizes in demand.values())
    assert len(pool.evicted) <= 3 * asked


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(users(st.just(1)), st.integers(1, 8))
def test_users_of_single_gpus_hold_equal_shares(demand: Users, gpus: int) -> None:
    held = at_rest(world(f"n {gpus}xT4", jobs_of(demand, 0)))
    asked = {user: len(sizes) for user, (_, sizes) in demand.items()}
    assert sum(held.values()) == min(gpus, sum(asked.values()))
    most = max(held.values())
    for user, wanted in asked.items():
        assert held[user] == wanted or held[user] >= most - 1, (held, asked)


quotas_ = st.dictionaries(st.sampled_from(["ann", "bob", "cat", "dan"]), st.integers(1, 8), min_size=1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(users(st.just(1)), quotas_, st.integers(1, 8))
def test_users_hold_their_quotas_whatever_others_do(demand: Users, quotas: dict[str, int], gpus: int) -> None:
    rule = ",".join(f"{user}:{quota}" for user, quota in quotas.items())
    held = at_rest(world(f"n {gpus}xT4", jobs_of(demand, 0), projects=f"red quotas={rule}"))
    asked = {user: len(sizes) for user, (_, sizes) in demand.items()}
    assert sum(held.values()) == min(gpus, sum(asked.values()))
    guaranteed = {user: min(quotas.get(user, 0), wanted) for user, wanted in asked.items()}
    part = min(1.0, gpus / max(sum(guaranteed.values()), 1))
    for user, wanted in guaranteed.items():
        assert held[user] > part * wanted - 1, (held, asked, quotas)
        assert part < 1 or held[user] >= wanted, (held, asked, quotas)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(users(st.integers(1, 3)), quotas_, st.integers(1, 3))
def test_evictions_end_with_quotas(demand: Users, quotas: dict[str, int], nodes: int) -> None:
    rule = ",".join(f"{user}:{quota}" for user, quota in quotas.items())
    nodes_ = "; ".join(f"n{at} 4xT4" for at in range(nodes))
    pool = world(nodes_, jobs_of(demand, 0), projects=f"red quotas={rule}")
    at_rest(pool)
    assert len(pool.evicted) <= 3 * sum(len(sizes) for _, sizes in demand.values())


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    users(st.integers(1, 3)), st.integers(1, 3), st.sampled_from(["red", "red quota=2", "red weights=ann:3,bob:0.5"])
)
def test_quick_check_of_users_changes_no_decision(
    monkeypatch: pytest.MonkeyPatch, demand: Users, nodes: int, project: str
) -> None:
    def decisions() -> list[str]:
        pool = world("; ".join(f"n{at} 4xT4" for at in range(nodes)), jobs_of(demand, 0), "", project)
        for _ in range(60):
            pool.step()
            pool.now += STEP_S
        return [*pool.granted, "-", *pool.evicted]

    quick = decisions()
    with monkeypatch.context() as patch:
        patch.setattr(UserShares, "might_take", lambda _shares, pairs, _needs, _smallest: np.ones(len(pairs), np.bool_))
        assert decisions() == quick


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_division_of_changed_projects_equals_the_division_of_all(data: st.DataObject) -> None:
    ledger, log, kept = Ledger(), UndoLog(), UserDivision()
    for _ in range(data.draw(st.integers(1, 12))):
        project, user = data.draw(st.sampled_from(["red", "blue", "green"])), data.draw(st.sampled_from("abc"))
        rules = ProjectRules(user_quotas=((user, 1500),)) if data.draw(st.booleans()) else ProjectRules()
        if data.draw(st.booleans()):
            ledger.set_project(Project(project, rules=rules))
        account = ledger.account(project, user, preemptible=True)
        ledger.add(log, account, 1000 * data.draw(st.integers(0, 3)))
        ledger.wait(account, 500 * data.draw(st.integers(0, 3)))
        kept, anew = divide_among_users(ledger, kept), divide_among_users(ledger, UserDivision())
        for name in ("share", "base", "most", "uneven"):
            assert np.allclose(getattr(kept, name), getattr(anew, name)), name


def test_unchanged_projects_are_not_divided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[int] = []

    def count(amount: Floats, pot: Ints, need: Floats, weight: Floats) -> Floats:
        divided.extend(pot.tolist())
        return fill(amount, pot, need, weight)

    monkeypatch.setattr(user_shares, "fill", count)
    ledger, log = Ledger(), UndoLog()
    accounts = [ledger.account(f"p{n}", user, preemptible=True) for n in range(20) for user in ("ann", "bob")]
    for account in accounts:
        ledger.add(log, account, 1000)
    division = divide_among_users(ledger, UserDivision())
    assert len(divided) == len(accounts)
    divided.clear()
    assert divide_among_users(ledger, division) is division
    ledger.wait(accounts[6], 1000)
    divide_among_users(ledger, division)
    assert divided == [3, 3]
