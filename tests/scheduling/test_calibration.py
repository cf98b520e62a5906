"""Estimates are corrected by the errors of earlier estimates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.explain.background import Background
from gpupool.scheduling.explain.calibration import MAX_RATIO, MIN_OUTCOMES, Outcome, Slip, learn
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.scheduling.holds.runtime_model import RunTimes


def outcomes(*ratios: float, project: str = "red") -> list[Outcome]:
    return [Outcome(project, 100.0, 100.0 * ratio) for ratio in ratios]


def test_few_outcomes_give_no_correction() -> None:
    assert learn(outcomes(*[3.0] * (MIN_OUTCOMES - 1))) == {}


def test_correction_uses_quartiles_of_ratios() -> None:
    slip = learn(outcomes(1.0, 1.0, 1.3, 1.3, 1.3, 1.6, 1.6))["red"]
    assert (slip.low, slip.mid, slip.high) == (1.0, 1.3, 1.6)
    assert slip.words() == "past estimates were 1.3x too early"
    assert learn(outcomes(*[0.5] * 9))["red"].words() == "past estimates were 2.0x too late"
    assert learn(outcomes(*[1.0] * 9))["red"].words() == ""


def test_latest_outcomes_have_most_weight() -> None:
    assert learn(outcomes(*[2.0] * 30, *[1.0] * 70))["red"].mid == 2.0


def test_project_with_few_outcomes_uses_pool_correction() -> None:
    slips = learn([*outcomes(*[2.0] * 9), *outcomes(1.0, project="blue")])
    known = Background(slips=slips)
    assert known.slip("blue") == slips[""]
    assert Background().slip("red").outcomes == 0


def test_difference_of_a_second_is_no_error() -> None:
    assert Outcome("red", 0.1, 9.0).ratio == 1.0
    assert Outcome("red", 0.0, 1e9).ratio == MAX_RATIO


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=150))
def test_corrections_are_ordered_and_bounded(made: list[tuple[str, float, float]]) -> None:
    for slip in learn([Outcome(*one) for one in made]).values():
        assert 1 / MAX_RATIO <= slip.low <= slip.mid <= slip.high <= MAX_RATIO


def told(slips: dict[str, Slip], history: dict[tuple[str, str], RunTimes] | None = None) -> Explanation:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 end=1000")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, background=Background(history or {}, slips))
    assert found is not None
    return found


def test_corrected_estimate_is_marked() -> None:
    found = told({"": Slip(12, 1.0, 1.5, 2.0)})
    assert (found.estimate_low_s, found.estimate_s, found.estimate_high_s) == (1000, 1500, 2000)
    assert found.foretold_s == 1000
    assert found.estimate_basis.endswith("corrected, because past estimates were 1.5x too early")


def test_exact_estimate_is_not_corrected() -> None:
    w = world("a 1xT4", "p1 red 1 later=90")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, background=Background(slips={"": Slip(9, 2, 2, 2)}))
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
    before = set(w.scheduler.demand.searched)
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now)
    assert found is not None
    assert (found.estimate_low_s, found.estimate_high_s) == (40, 50)
    assert "it reclaims GPUs" in found.estimate_basis
    assert w.scheduler.demand.searched == before
    assert [str(e.workload) for e in w.scheduler.decide(w.now + 40).evictions] == ["r1", "r2"]
