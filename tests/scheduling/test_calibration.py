"""Estimates are corrected by the errors of earlier estimates."""

from __future__ import annotations

import random
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.explain.background import Background
from gpupool.scheduling.explain.calibration import MAX_RATIO, MIN_OUTCOMES, NO_SLIP, PredictedStart, Slip, learn
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.scheduling.holds.runtime_model import RunTimes


def outcomes(*ratios: float) -> list[PredictedStart]:
    return [PredictedStart(100.0, 100.0 * ratio) for ratio in ratios]


def test_few_outcomes_give_no_correction() -> None:
    assert learn(outcomes(*[3.0] * (MIN_OUTCOMES - 1))) == NO_SLIP
    assert NO_SLIP.corrected(70.0) == (70.0,) * 5


def test_first_outcomes_give_their_quantiles() -> None:
    slip = learn(outcomes(1.0, 1.2, 1.3, 1.6, 2.0))
    found = (slip.least, slip.low, slip.mid, slip.high, slip.most)
    assert found == pytest.approx((1.0, 1.2, 1.3, 1.6, 2.0))
    assert slip.corrected(100.0) == pytest.approx((100, 120, 130, 160, 200))
    assert slip.words() == "past estimates were 1.3x too early"


def test_constant_error_is_corrected_exactly() -> None:
    slip = learn(outcomes(*[0.5] * 90))
    assert slip.corrected(100.0) == pytest.approx((50.0,) * 5)
    assert slip.words() == "past estimates were 2.0x too late"
    assert learn(outcomes(*[1.0] * 9)).words() == ""


def test_difference_of_a_second_is_no_error() -> None:
    assert PredictedStart(0.1, 9.0).ratio == 1.0
    assert PredictedStart(0.0, 1e9).ratio == MAX_RATIO
    low = learn(outcomes(0.05, 0.07, 1.0, 2.0, 3.0)).corrected(100.0)[0]
    assert low == 0.0  # 5 seconds count as 10, so the bound must include all shorter times


@pytest.mark.parametrize("change", [1.0, 6.0, 1 / 6], ids=["the same errors", "all later", "all earlier"])
def test_ranges_hold_while_errors_change(change: float) -> None:
    rng = random.Random(7)
    made = [
        PredictedStart(100.0, 100.0 * exp(rng.gauss(0.5, 1.2)) * (change if at > 400 else 1.0)) for at in range(900)
    ]
    half, nine = [], []
    for at in range(100, 900):
        least, low, _, high, most = learn(made[max(0, at - 300) : at][::-1]).corrected(100.0)
        half.append(low <= made[at].actual_s <= high)
        nine.append(least <= made[at].actual_s <= most)
    assert sum(half) / len(half) == pytest.approx(0.5, abs=0.05)
    assert sum(nine) / len(nine) == pytest.approx(0.9, abs=0.05)


@given(st.lists(st.floats(0, 1e6), min_size=MIN_OUTCOMES, max_size=120))
def test_quantiles_are_ordered_and_bounded(waits: list[float]) -> None:
    slip = learn([PredictedStart(60.0, wait) for wait in waits])
    assert 0 < slip.least <= slip.low <= slip.mid <= slip.high <= slip.most < MAX_RATIO * 10
    assert list(slip.corrected(60.0)) == sorted(slip.corrected(60.0))


def told(slip: Slip, history: dict[tuple[str, str], RunTimes] | None = None) -> Explanation:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 end=1000")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, background=Background(history or {}, slip))
    assert found is not None
    return found


def test_corrected_estimate_is_marked() -> None:
    found = told(Slip(12, 0.5, 1.0, 1.5, 2.0, 5.0))
    assert (found.estimate_low_s, found.estimate_s, found.estimate_high_s) == (1000, 1500, 2000)
    assert (found.estimate_least_s, found.estimate_most_s) == (500, 5000)
    assert found.foretold_s == 1000
    assert found.estimate_basis.endswith("corrected, because past estimates were 1.5x too early")


def test_exact_estimate_is_not_corrected() -> None:
    w = world("a 1xT4", "p1 red 1 later=90")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, background=Background(slip=Slip(9, 2, 2, 2, 2, 2)))
    assert found is not None
    assert (found.estimate_s, found.foretold_s) == (90, None)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ({("red", "ann"): RunTimes(9, 900.0, 300.0, 2000.0)}, (300.0, 900.0, 2000.0)),
        ({("red", ""): RunTimes(9, 900.0, 300.0, 2000.0)}, (300.0, 900.0, 2000.0)),
        ({("", ""): RunTimes(9, 900.0, 300.0, 2000.0)}, (300.0, 900.0, 2000.0)),
        ({("red", "ann"): RunTimes(9, 900.0)}, (900.0, 900.0, 900.0)),
    ],
)
def test_estimate_range_follows_spread_of_run_times(
    history: dict[tuple[str, str], RunTimes], expected: tuple[float, float, float]
) -> None:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=0")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, history)
    assert found is not None
    assert (found.estimate_low_s, found.estimate_s, found.estimate_high_s) == expected


def test_run_is_expected_to_end_at_its_usual_run_time_before_limit() -> None:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=0 end=86400")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {("red", "ann"): RunTimes(9, 900.0)})
    assert found is not None
    assert (found.estimate_s, found.estimate_basis) == (900, "the median of 9 past jobs")


def test_workload_within_quota_is_estimated_to_start_after_grace_period() -> None:
    w = world("a 1xT4", "p1 blue 1", "r1 red 1 on a:0 train", "red quota=0; blue quota=1")
    w.scheduler.decide(w.now)
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now)
    assert found is not None
    assert (found.estimate_low_s, found.estimate_high_s) == (0, 10)
    assert "grace period" in found.estimate_basis


def test_estimate_of_starving_workload_includes_its_hold() -> None:
    stream = "; ".join(f"q{n} red 1 wait=5 max=100" for n in range(40))
    w = world("a 2xT4", f"p1 blue 2 wait=200; {stream}", "r1 red 1 on a:0 end=50; r2 red 1 on a:1 end=120")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {})
    assert found is not None
    assert found.estimate_s is not None
    assert found.estimate_s < 1000
    assert not w.scheduler.demand.starved


def test_workload_blocked_by_limit_has_no_estimate() -> None:
    w = world("a 2xT4", "p1 blue 1; q1 red 1", "r1 red 2 on a:01 end=50", "blue quota=0")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {})
    assert found is not None
    assert (found.code, found.estimate_s) == (WaitCode.PROJECT_QUOTA, None)


def test_project_limit_sets_estimate_for_long_queue() -> None:
    queue = "; ".join(f"q{n} red 1 train wait=900 max=100" for n in range(600))
    w = world("a 4xT4", queue + "; p1 red 1 train", "r1 red 1 on a:0 train end=100", "red limit=1")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {})
    assert found is not None
    assert (found.code, found.estimate_s) == (WaitCode.PROJECT_LIMIT, 60_100)


def test_estimate_within_quota_waits_for_min_runtime_of_victims() -> None:
    w = world(
        "a 2xT4",
        "p1 blue 2",
        "r1 red 1 on a:0 train age=20 end=9000; r2 red 1 on a:1 train age=30 end=9000",
        "red quota=0; blue quota=2",
        min_runtime_s=60,
    )
    assert not w.scheduler.decide(w.now).evictions
    before = w.scheduler.demand.searched.copy()
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now)
    assert found is not None
    assert (found.estimate_low_s, found.estimate_high_s) == (40, 50)
    assert "it reclaims GPUs" in found.estimate_basis
    assert w.scheduler.demand.searched == before
    assert [str(e.workload) for e in w.scheduler.decide(w.now + 40).evictions] == ["r1", "r2"]
