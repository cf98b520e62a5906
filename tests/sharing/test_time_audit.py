from __future__ import annotations

import pytest

from gpupool.node.sharing.slices.time_audit import (
    FORGIVE_SAMPLES,
    TimeAction,
    TimeCase,
    TimeFinding,
    TimeLimits,
    TimeSample,
    judge_time,
)

LIMITS = TimeLimits(margin_percent=15, warn=2, throttle=4, throttled=3)
EXCESS = TimeFinding(used=55, granted=0, share=10, pids=(7,))


def sample(
    used: dict[int, float], granted: float, *, share: float = 10, concerned: bool = True, unknown: tuple[int, ...] = ()
) -> TimeSample:
    return TimeSample(used, granted, share, concerned, frozenset(unknown))


@pytest.mark.parametrize(
    ("what", "pids"),
    [
        (sample({1: 55}, 0), (1,)),
        (sample({1: 25}, 0), None),  # the share and the margin
        (sample({1: 26}, 0), (1,)),
        (sample({1: 95}, 90), None),  # granted, because the neighbour was idle
        (sample({1: 55}, 0, concerned=False), None),  # nobody else wants the GPU
        (sample({1: 80}, 0, share=75), None),
        (sample({1: 10, 2: 40, 3: 0.5}, 0), (2, 1)),
        (sample({1: 40, 2: 20}, 0, unknown=(2,)), (2,)),  # a process without the library is the cause
        (sample({}, 0), None),
    ],
)
def test_excess_is_use_beyond_grant_and_share(what: TimeSample, pids: tuple[int, ...] | None) -> None:
    found = judge_time(what, LIMITS)
    assert (None if found is None else found.pids) == pids


@pytest.mark.parametrize(("used", "share", "pause"), [(100, 1, 0.9), (50, 10, 0.8), (30, 20, 0.5)])
def test_pause_leaves_the_share(used: float, share: float, pause: float) -> None:
    assert TimeFinding(used, 0, share, (1,)).pause == pytest.approx(pause)


def steps(*excesses: bool, only_warn: bool = False) -> dict[int, TimeAction]:
    """Return the steps by number of the sample, from 1."""
    case, found = TimeCase(), {}
    for number, excess in enumerate(excesses, 1):
        step = case.next(EXCESS if excess else None, LIMITS, only_warn=only_warn)
        if step is not None:
            found[number] = step
    return found


def test_continued_excess_is_warned_throttled_asked_and_killed() -> None:
    expected = {2: TimeAction.WARN, 4: TimeAction.THROTTLE, 9: TimeAction.TERM, 11: TimeAction.KILL}
    assert steps(*[True] * 11) == expected  # three samples are not judged, while it is throttled


def test_single_samples_of_excess_have_no_effect() -> None:
    assert steps(*[True, False] * 10) == {}


def test_throttled_program_that_changes_its_behaviour_survives() -> None:
    assert steps(*[True] * 4, *[False] * 20) == {2: TimeAction.WARN, 4: TimeAction.THROTTLE}


def test_steps_begin_anew_after_a_long_time_without_excess() -> None:
    found = steps(*[True] * 4, *[False] * (FORGIVE_SAMPLES + 3), *[True] * 4)
    assert list(found.values()) == [TimeAction.WARN, TimeAction.THROTTLE] * 2


def test_only_warnings_where_the_administrator_wants_no_more() -> None:
    assert steps(*[True] * 30, only_warn=True) == {2: TimeAction.WARN}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", TimeLimits()), ("20", TimeLimits(20)), ("20,1,2,3", TimeLimits(20, 1, 2, 3)), (" ", TimeLimits())],
)
def test_limits_are_read_from_text(text: str, expected: TimeLimits) -> None:
    assert TimeLimits.parse(text) == expected


@pytest.mark.parametrize("text", ["x", "20,0", "1,2,3,4,5", "20,,2"])
def test_wrong_limits_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of int() and float() as well
        TimeLimits.parse(text)
