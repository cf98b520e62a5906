"""Estimates learn from how far off earlier ones were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.background import Background
from gpupool.scheduling.calibration import FEWEST_OUTCOMES, MOST_OFF, Outcome, Slip, learn
from gpupool.scheduling.explain import Explanation, WaitCode
from gpupool.scheduling.runtimes import RunTimes


def outcomes(*ratios: float, project: str = "red") -> list[Outcome]:
    return [Outcome(project, 100.0, 100.0 * ratio) for ratio in ratios]


def test_a_few_outcomes_say_nothing() -> None:
    assert learn(outcomes(*[3.0] * (FEWEST_OUTCOMES - 1))) == {}


def test_the_quartiles_of_the_ratios() -> None:
    slip = learn(outcomes(1.0, 1.0, 1.3, 1.3, 1.3, 1.6, 1.6))["red"]
    assert (slip.low, slip.mid, slip.high) == (1.0, 1.3, 1.6)
    assert slip.words() == "past estimates were 1.3x too early"
    assert learn(outcomes(*[0.5] * 9))["red"].words() == "past estimates were 2.0x too late"
    assert learn(outcomes(*[1.0] * 9))["red"].words() == ""


def test_the_latest_count_most() -> None:
    assert learn(outcomes(*[2.0] * 30, *[1.0] * 70))["red"].mid == 2.0


def test_a_project_with_few_is_judged_by_the_pool() -> None:
    slips = learn([*outcomes(*[2.0] * 9), *outcomes(1.0, project="blue")])
    known = Background(slips=slips)
    assert known.slip("blue") == slips[""]
    assert Background().slip("red").outcomes == 0


def test_a_second_more_or_less_is_no_error() -> None:
    assert Outcome("red", 0.1, 9.0).ratio == 1.0
    assert Outcome("red", 0.0, 1e9).ratio == MOST_OFF


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=150))
def test_slips_are_in_order_and_bounded(made: list[tuple[str, float, float]]) -> None:
    for slip in learn([Outcome(*one) for one in made]).values():
        assert 1 / MOST_OFF <= slip.low <= slip.mid <= slip.high <= MOST_OFF


def told(slips: dict[str, Slip], history: dict[tuple[str, str], RunTimes] | None = None) -> Explanation:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 end=1000")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, background=Background(history or {}, slips))
    assert found is not None
    return found


def test_an_estimate_is_corrected_and_says_so() -> None:
    found = told({"": Slip(12, 1.0, 1.5, 2.0)})
    assert (found.estimate_low_s, found.estimate_s, found.estimate_high_s) == (1000, 1500, 2000)
    assert found.foretold_s == 1000
    assert found.estimate_basis.endswith("past estimates were 1.5x too early, which is counted in")


def test_what_cannot_be_off_is_not_corrected() -> None:
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
def test_a_range_from_how_run_times_scatter(
    history: dict[tuple[str, str], RunTimes], expected: tuple[float, float, float]
) -> None:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=0")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, history)
    assert found is not None
    assert (found.estimate_low_s, found.estimate_s, found.estimate_high_s) == expected


def test_a_run_that_usually_ends_long_before_its_limit_is_expected_to() -> None:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=0 end=86400")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {("red", "ann"): RunTimes(9, 900.0)})
    assert found is not None
    assert (found.estimate_s, found.estimate_basis) == (900, "the median of 9 past jobs")


def test_who_is_owed_the_space_starts_within_the_grace_period() -> None:
    w = world("a 1xT4", "p1 blue 1", "r1 red 1 on a:0 train", "red quota=0; blue quota=1")
    w.scheduler.decide(w.now)
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now)
    assert found is not None
    assert (found.estimate_low_s, found.estimate_high_s) == (0, 10)
    assert "grace period" in found.estimate_basis


def test_a_starving_one_is_foreseen_to_get_its_reservation() -> None:
    stream = "; ".join(f"q{n} red 1 wait=5 max=100" for n in range(40))
    w = world("a 2xT4", f"p1 blue 2 wait=200; {stream}", "r1 red 1 on a:0 end=50; r2 red 1 on a:1 end=120")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {})
    assert found is not None
    assert found.estimate_s is not None
    assert found.estimate_s < 1000
    assert not w.scheduler.demand.starved


def test_what_a_bound_never_lets_start_is_not_estimated() -> None:
    w = world("a 2xT4", "p1 blue 1; q1 red 1", "r1 red 2 on a:01 end=50", "blue quota=0")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {})
    assert found is not None
    assert (found.code, found.estimate_s) == (WaitCode.PROJECT_QUOTA, None)


def test_far_down_a_queue_the_bound_of_the_project_sets_the_pace() -> None:
    queue = "; ".join(f"q{n} red 1 train wait=900 max=100" for n in range(600))
    w = world("a 4xT4", queue + "; p1 red 1 train", "r1 red 1 on a:0 train end=100", "red limit=1")
    found = w.scheduler.explain((WorkloadId("p1"), 0), w.now, {})
    assert found is not None
    assert (found.code, found.estimate_s) == (WaitCode.PROJECT_LIMIT, 60_100)


def test_who_is_owed_space_starts_when_its_holders_have_run_for_long_enough() -> None:
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
    assert "owed space" in found.estimate_basis
    assert w.scheduler.demand.searched == before
    assert [str(e.workload) for e in w.scheduler.decide(w.now + 40).evictions] == ["r1", "r2"]
