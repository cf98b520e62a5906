"""Fair shares against a slow reference, and which projects may reclaim from which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.domain.people.access import Department, Project
from gpupool.scheduling.fairness.fair_share import Shares
from gpupool.scheduling.fairness.reclaim_rule import ROUNDING
from gpupool.scheduling.state.allocation import EPSILON
from gpupool.scheduling.state.ledger import Ledger
from gpupool.scheduling.state.undo import UndoLog

NOW = 1_000_000.0


def ledger_of(projects: list[Project], held: list[int], waiting: list[int], *departments: Department) -> Ledger:
    """Return the ledger of projects with preemptible work that has just started."""
    ledger, log = Ledger(), UndoLog()
    for department in departments:
        ledger.set_department(department)
    for project, used, wanted in zip(projects, held, waiting, strict=True):
        ledger.set_project(project)
        account = ledger.account(project.name, "ann", preemptible=True)
        ledger.add(log, account, used)
        ledger.started(account, used, NOW)
        ledger.wait(account, wanted)
    log.commit()
    return ledger


def shares_of(ledger: Ledger, capacity: int) -> Shares:
    return Shares(ledger, capacity, NOW)


def reference(amount: float, demand: list[float], quota: list[float], weight: list[float]) -> list[float]:
    """Compute shares by water-filling: raise the level until the next project is full, again and again."""
    owed = [min(q, d) for q, d in zip(quota, demand, strict=True)]
    share = owed if sum(owed) <= amount else _raise(amount, owed, quota)
    for by in (weight, [1.0] * len(weight)):
        need = [d - s for d, s in zip(demand, share, strict=True)]
        more = _raise(max(amount - sum(share), 0.0), need, by)
        share = [s + m for s, m in zip(share, more, strict=True)]
    return share


def _raise(amount: float, need: list[float], weight: list[float]) -> list[float]:
    got = [0.0] * len(need)
    for _ in range(len(need) + 1):
        thirsty = [i for i in range(len(need)) if weight[i] > 0 and need[i] - got[i] > 1e-9]
        heavy = sum(weight[i] for i in thirsty)
        left = amount - sum(got)
        if not thirsty or left <= 1e-9:
            break
        step = min(left / heavy, *((need[i] - got[i]) / weight[i] for i in thirsty))
        for i in thirsty:
            got[i] += step * weight[i]
    return got


Row = tuple[int | None, float, int, int]
quotas = st.one_of(st.none(), st.sampled_from([0, 500, 1000, 2500, 10_000]))
tables = st.lists(
    st.tuples(quotas, st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e-3]), st.integers(0, 8), st.integers(0, 20_000)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(tables, st.integers(0, 30_000))
def test_shares_equal_slow_reference(table: list[Row], capacity: int) -> None:
    projects = [Project(f"p{i}", quota, weight=weight) for i, (quota, weight, _, _) in enumerate(table)]
    ledger = ledger_of(projects, [0] * len(table), [wanted for *_, wanted in table])
    found = shares_of(ledger, capacity).fair
    expected = reference(
        capacity, [float(row[3]) for row in table], [float(row[0] or 0) for row in table], [row[1] for row in table]
    )
    assert found == pytest.approx(expected, abs=0.01)


@settings(max_examples=150, deadline=None)
@given(
    tables, st.integers(0, 30_000), st.lists(st.sampled_from(["", "x", "y"]), min_size=6, max_size=6), quotas, quotas
)
def test_shares_sum_to_minimum_of_capacity_and_demand(
    table: list[Row], capacity: int, where: list[str], quota: int | None, limit: int | None
) -> None:
    projects = [Project(f"p{i}", q, weight=w, department=where[i]) for i, (q, w, _, _) in enumerate(table)]
    held, waiting = [row[2] * 1000 for row in table], [row[3] for row in table]
    ledger = ledger_of(projects, held, waiting, Department("x", quota, 2.0, limit))
    for i, project in enumerate(projects):  # decayed usage changes the division and not the sum
        ledger.remember(ledger.account(project.name, "ann", preemptible=True), 1e8 * i, NOW)
    found = shares_of(ledger, capacity)
    demands = [sum(found.division.demand[found.division.dept == d]) for d in range(len(found.division.dept_fair))]
    bounded = [min(demand, ledger.dept_limit[d]) for d, demand in enumerate(demands)]
    assert sum(found.division.dept_fair) == pytest.approx(min(capacity, sum(bounded)), abs=0.01)
    for d, fair in enumerate(found.division.dept_fair):
        assert sum(found.fair[found.division.dept == d]) == pytest.approx(fair, abs=0.01)
    assert (found.fair <= found.division.demand + 1e-9).all()
    assert (found.fair >= 0).all()
    owed = [
        min(project.quota_permille or 0, demand)
        for project, demand in zip(projects, found.division.demand, strict=True)
    ]
    alone = [i for i, project in enumerate(projects) if project.department != "x"]
    if sum(owed) <= capacity:  # quotas are met outside the department that has a quota of its own
        assert all(found.fair[i] >= owed[i] - 0.01 for i in alone if sum(owed) <= capacity - (quota or 0))


def test_over_quota_gpus_are_divided_by_weight() -> None:
    both = [Project("a", 10_000, weight=3.0), Project("b", 10_000, weight=1.0)]
    found = shares_of(ledger_of(both, [0, 0], [100_000, 100_000]), 100_000)
    assert found.fair.tolist() == pytest.approx([70_000, 30_000])


def test_unused_share_goes_to_other_projects() -> None:
    three = [Project("a", weight=2.0), Project("b"), Project("c")]
    found = shares_of(ledger_of(three, [0, 0, 0], [1000, 9000, 9000]), 8000)
    assert found.fair.tolist() == pytest.approx([1000, 3500, 3500])


def test_quotas_above_capacity_are_met_in_proportion() -> None:
    two = [Project("a", 12_000), Project("b", 4000)]
    assert shares_of(ledger_of(two, [0, 0], [20_000, 20_000]), 8000).fair.tolist() == pytest.approx([6000, 2000])


def test_departments_share_before_their_projects() -> None:
    """As in KAI: ten projects in one department get no more than one project in another."""
    projects = [Project(f"p{i}", department="x") for i in range(10)] + [Project("alone", department="y")]
    ledger = ledger_of(projects, [0] * 11, [10_000] * 11, Department("x"), Department("y"))
    found = shares_of(ledger, 10_000)
    assert found.fair.tolist() == pytest.approx([500] * 10 + [5000])


def test_department_limit_bounds_its_share() -> None:
    projects = [Project("a", department="x"), Project("b")]
    ledger = ledger_of(projects, [0, 0], [9000, 9000], Department("x", limit_permille=1000))
    assert shares_of(ledger, 8000).fair.tolist() == pytest.approx([1000, 7000])


def test_decayed_usage_lowers_over_quota_share() -> None:
    ledger = ledger_of([Project("a", 2000), Project("b", 2000)], [0, 0], [9000, 9000])
    weight_s = ledger.usage.decay.weight_s
    ledger.remember(ledger.account("a", "ann", preemptible=True), 4000 * weight_s, NOW)  # 4 GPUs for days, all of it
    found = shares_of(ledger, 8000)
    assert found.division.recent.tolist() == pytest.approx([4000, 0])
    # W = 1/2 each, U = 1/2 and 0: the weights are 1/2 and 1, and the quotas stay
    assert found.fair.tolist() == pytest.approx([2000 + 4000 / 3, 2000 + 8000 / 3])


def test_order_is_below_share_then_within_quota_then_smaller_use() -> None:
    projects = [Project("full", 1000), Project("part", 4000), Project("none", 4000)]
    ledger = ledger_of(projects, [3000, 2000, 0], [5000, 5000, 5000])
    found = shares_of(ledger, 9000)
    assert sorted(range(3), key=lambda p: found.order(p, 1000)) == [2, 1, 0]
    assert found.order(1, 1000)[0] == 0
    assert found.order(1, 3000)[0] == 1  # below its share, above its quota by this amount
    assert found.order(0, 1000)[0] == 3


def test_project_within_share_reclaims_from_project_above_share() -> None:
    ledger = ledger_of([Project("rich"), Project("poor"), Project("fair")], [5000, 0, 2000], [0, 9000, 0])
    found = shares_of(ledger, 7000)
    assert found.fair.tolist() == pytest.approx([2500, 2500, 2000], abs=5)
    assert found.victims(1, 1000).tolist() == [True, False, False]
    assert found.may_reclaim(1, 2000)
    assert not found.may_reclaim(1, 4000)
    assert found.budget(1) == int(found.fair[1] / (1 - ROUNDING) + EPSILON)
    assert found.may_take(1, 1000, 0, 1000, {})
    assert found.may_take(1, 1000, 0, 1000, {0: 2000})
    assert not found.may_take(1, 1000, 0, 1000, {0: 3000})  # without this amount, it is no longer above its share


@pytest.mark.parametrize(
    ("large", "small", "job", "piece", "taken"),
    [
        (13, 3, 1, 8, False),  # only 4.9 of the 8 GPUs are above the share
        (17, 3, 1, 8, True),
        (16, 0, 1, 8, True),  # the project could hold the same amount within its own share
        (16, 0, 1, 16, False),
        (9, 7, 1, 1, True),
    ],
)
def test_larger_victim_is_allowed_if_fully_above_share(
    large: int, small: int, job: int, piece: int, taken: bool
) -> None:
    projects = [Project("large", weight=8.1), Project("small", weight=7.9)]
    ledger = ledger_of(projects, [large * 1000, small * 1000], [9000, 9000])
    ledger.usage_weight = 0.0
    found = shares_of(ledger, 16_000)
    assert found.may_take(1, job * 1000, 0, piece * 1000, {}) is taken
    assert found.takes(1, job * 1000, np.array([0]), np.array([piece * 1000])).tolist() == [taken]


def test_over_quota_project_never_reclaims_from_within_quota() -> None:
    ledger = ledger_of([Project("small", 1000), Project("large", 6000)], [1000, 6000], [9000, 0])
    found = shares_of(ledger, 7000)
    assert not found.victims(0, 1000).any()


def test_departments_are_compared_below_common_ancestor() -> None:
    """Both projects of x hold more than y's, but x as a whole is within its share: y reclaims nothing."""
    projects = [Project("x1", department="x"), Project("x2", department="x"), Project("y1", department="y")]
    departments = [Department("x", weight=3.0), Department("y")]
    found = shares_of(ledger_of(projects, [5000, 1000, 2000], [0, 5000, 5000], *departments), 8000)
    assert found.division.dept_fair.tolist() == pytest.approx([6000, 2000])
    assert not found.victims(2, 500).any()
    assert found.victims(1, 1000).tolist() == [True, False, False]  # inside x the projects are compared


@st.composite
def pools(draw: st.DrawFn) -> tuple[Ledger, int]:
    count = draw(st.integers(2, 5))
    where = st.sampled_from(["", "", "x", "y"])
    projects = [
        Project(f"p{i}", draw(quotas), weight=draw(st.sampled_from([0.5, 1.0, 2.0])), department=draw(where))
        for i in range(count)
    ]
    held = [draw(st.integers(0, 6)) * 1000 for _ in projects]
    waiting = [draw(st.integers(0, 12)) * 1000 for _ in projects]
    capacity = sum(held) + draw(st.integers(0, 2)) * 1000
    return ledger_of(projects, held, waiting, Department("x", draw(quotas), 2.0), Department("y", 2000)), capacity


class Market:
    """Projects that reclaim by the rules, in whole workloads, and fill free GPUs in order."""

    def __init__(self, ledger: Ledger, capacity: int) -> None:
        self.ledger, self.shares, self.log = ledger, shares_of(ledger, capacity), UndoLog()
        self.count, self.free = len(ledger.projects), capacity - int(ledger.used.sum())

    def move(self, project: int, permille: int) -> None:
        account = self.ledger.account(self.ledger.projects[project].name, "ann", preemptible=True)
        self.ledger.add(self.log, account, permille)
        self.free -= permille

    def wants(self, project: int, extra: int) -> bool:
        return bool(self.ledger.used[project] + extra <= self.shares.division.demand[project])

    def fill(self) -> None:
        while self.free > 0 and (hungry := [p for p in range(self.count) if self.wants(p, 1000)]):
            self.move(min(hungry, key=lambda p: self.shares.order(p, 1000)), 1000)

    def take(self, who: int, extra: int) -> bool:
        """Return whether a workload was evicted; workloads of project ``p`` have ``1 + p % 3`` GPUs."""
        found, used, freed = self.shares, self.ledger.used, dict[int, int]()
        if not self.wants(who, extra) or not found.may_reclaim(who, extra):
            return False
        while sum(freed.values()) < extra:
            left = {v: int(used[v]) - freed.get(v, 0) for v in range(self.count)}
            piece = {v: min(left[v], 1000 * (1 + v % 3)) for v in left}
            allowed = [v for v in left if left[v] > 0 and found.may_take(who, extra, v, piece[v], freed)]
            if not freed:
                takes = found.takes(who, extra, np.arange(self.count), np.array(list(piece.values())))
                assert set(allowed) == {v for v in left if left[v] > 0 and takes[v]}
                assert all(found.victims(who, extra)[v] for v in allowed)
            if not allowed:
                return False
            victim = allowed[0]
            quota = self.ledger.projects[victim].quota_permille
            assert found.within_quota(who, extra) or quota is None or left[victim] > quota
            freed[victim] = freed.get(victim, 0) + piece[victim]
        for victim, permille in freed.items():
            self.move(victim, -permille)
        self.move(who, extra)
        self.fill()
        return True


def test_project_above_share_is_safe_if_department_is_within_quota() -> None:
    """It would be reclaimed again: x holds less than its quota, although more than its share."""
    projects = [
        Project("small", weight=0.5),
        *(Project(f"x{quota}", quota, weight=0.5, department="x") for quota in (2500, 2499, None)),
    ]
    ledger = ledger_of(projects, [0, 3000, 0, 4000], [1000, 0, 0, 0], Department("x", weight=2.0))
    found = shares_of(ledger, 7000)
    assert 750 < found.fair[0] < 1000
    assert not found.victims(0, 1000).any()
    assert not any(found.may_take(0, 1000, victim, 1000, {}) for victim in (1, 2, 3))
    assert found.victims(0, 700).any()


def test_department_quota_alone_does_not_reclaim_above_share() -> None:
    """Reclaimed GPUs would be lost again: ``near`` is below its share, x above, with or without p0's unused quota."""
    projects = [
        Project("p0", 2500, weight=0.5, department="x"),
        Project("near", 500, weight=1.0),
        Project("p2", weight=0.5, department="x"),
        Project("p3", weight=0.5),
        Project("p4", weight=0.5),
    ]
    ledger = ledger_of(projects, [2000, 1000, 1000, 1000, 1000], [0, 1000, 1000, 0, 0], Department("x", weight=2.0))
    found = shares_of(ledger, 6000)
    assert found.fair[2] < 2000 <= found.fair[2] + ROUNDING * 1000
    assert found.fair[1] > 1000
    assert not found.victims(2, 1000)[1]
    assert not found.may_take(2, 1000, 1, 1000, {})
    assert found.victims(2, 1000)[3]


def test_project_without_quota_never_reclaims_from_within_share() -> None:
    """Not by the unused department quota: the other project, above its own quota only, would reclaim it again."""
    projects = [
        Project("p0", 2500, weight=0.5, department="x"),
        Project("p1", 0, weight=2.0),
        Project("p2", weight=0.5, department="x"),
        Project("p3", weight=0.5),
    ]
    ledger = ledger_of(projects, [0, 2000, 1000, 2000], [0, 0, 2000, 0], Department("x", weight=2.0))
    found = shares_of(ledger, 5000)
    assert found.fair[1] >= 2000
    assert found.fair[2] > 2000
    assert found.reclaimable()[1]
    assert found.victims(2, 1000).tolist() == [False, False, False, True]
    assert not found.may_take(2, 1000, 1, 1000, {})


@settings(max_examples=150, deadline=None)
@given(pools(), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=40))
def test_reclaim_ends_and_quotas_are_kept(pool: tuple[Ledger, int], wishes: list[tuple[int, int]]) -> None:
    """Every allowed reclaim in any order and size under constant demand ends: there is no cycle."""
    market = Market(*pool)
    market.fill()
    for _ in range(20):
        if not any(market.take(wish % market.count, gpus * 1000) for wish, gpus in wishes):
            return
    raise AssertionError("still taking after 20 rounds")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(quotas, st.sampled_from(["", "", "ml", "bio"]), st.integers(0, 8), st.integers(0, 20)),
        min_size=3,
        max_size=9,
    ),
    quotas,
    st.sampled_from([4000, 9000]),
    st.sampled_from([125, 1000, 2000]),
)
def test_projects_of_equal_or_lower_standing_may_reclaim_no_more(
    table: list[tuple[int | None, str, int, int]], quota: int | None, capacity: int, extra: int
) -> None:
    projects = [Project(f"p{i}", row[0], department=row[1]) for i, row in enumerate(table)]
    used, waiting = [row[2] * 500 for row in table], [row[3] * 500 for row in table]
    ledger = ledger_of(projects, used, waiting, Department("ml", quota), Department("bio"))
    shares, seen = shares_of(ledger, capacity), dict[object, tuple[int, list[bool]]]()
    pieces = np.array([125, 500, 1000, 1500, 2000, 3000, 4000])
    owner = np.repeat(np.arange(len(projects)), len(pieces))
    for number in range(len(projects)):
        allowed = shares.takes(number, extra, owner, np.tile(pieces, len(projects))).tolist()
        other, known = seen.setdefault(shares.standing(number, extra, pieces), (number, allowed))
        assert allowed == known, f"{number} stands as {other}"
        own = shares.standing(number, extra, pieces)
        like = [shares.standing(other, extra, pieces) == own for other in range(len(projects))]
        assert shares.stands_like(np.arange(len(projects)), number, extra, pieces).tolist() == like
        for lower in np.flatnonzero(shares.may_take_no_more(np.arange(len(projects)), number, extra, pieces)).tolist():
            less = shares.takes(lower, extra, owner, np.tile(pieces, len(projects))).tolist()
            assert all(more for one, more in zip(less, allowed, strict=True) if one), f"{lower} is below {number}"
            assert shares.promised(lower, extra) <= shares.promised(number, extra)
