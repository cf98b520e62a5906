"""Time windows by the clock on the wall, over a week and over both changes of the clocks."""

from datetime import datetime, timedelta
from math import inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.time_windows import TimeWindows, parse_moment, parse_window, parse_windows, read_zone

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def windows(*texts: str, zone: ZoneInfo = BERLIN) -> TimeWindows:
    return TimeWindows(parse_windows(texts), zone)


# 2026-11-16 is a Monday.
@pytest.mark.parametrize(
    ("text", "moment", "is_open", "changes"),
    [
        ("mon-fri 20:00-08:00", "2026-11-16 19:59", False, "2026-11-16 20:00"),
        ("mon-fri 20:00-08:00", "2026-11-16 20:00", True, "2026-11-17 08:00"),
        ("mon-fri 20:00-08:00", "2026-11-17 07:59", True, "2026-11-17 08:00"),
        ("mon-fri 20:00-08:00", "2026-11-17 08:00", False, "2026-11-17 20:00"),
        ("mon-fri 20:00-08:00", "2026-11-21 07:00", True, "2026-11-21 08:00"),  # opened on Friday
        ("mon-fri 20:00-08:00", "2026-11-21 20:00", False, "2026-11-23 20:00"),
        ("sat,sun", "2026-11-20 23:59", False, "2026-11-21 00:00"),
        ("weekends", "2026-11-22 12:00", True, "2026-11-23 00:00"),
        ("nights", "2026-11-22 03:00", True, "2026-11-22 08:00"),
        ("fri-mon 10:00-11:00", "2026-11-17 10:30", False, "2026-11-20 10:00"),
        ("12:00-13:00", "2026-11-17 12:30", True, "2026-11-17 13:00"),
        ("sun 22:00-24:00", "2026-11-22 23:00", True, "2026-11-23 00:00"),
    ],
)
def test_windows_are_evaluated_over_a_week(text: str, moment: str, is_open: bool, changes: str) -> None:
    found, t = windows(text), at(moment)
    assert found.open_at(t) is is_open
    if is_open:
        assert found.closes_at(t) == at(changes)
        assert found.next_open(t) == t
    else:
        assert found.next_open(t) == at(changes)
        assert found.closes_at(t) is None


def test_adjacent_windows_are_merged() -> None:
    both = windows("nights", "weekends")
    assert both.closes_at(at("2026-11-20 21:00")) == at("2026-11-23 08:00")
    assert windows("always").closes_at(at("2026-11-20 21:00")) == inf
    assert windows("mon-fri", "sat,sun").closes_at(at("2026-11-20 21:00")) == inf


def test_night_windows_follow_clock_changes() -> None:
    spring, autumn = at("2026-03-28 20:00"), at("2026-10-24 20:00")
    assert windows("nights").closes_at(spring) == at("2026-03-29 08:00") == spring + 11 * 3600
    assert windows("nights").closes_at(autumn) == at("2026-10-25 08:00") == autumn + 13 * 3600


def test_skipped_time_in_spring() -> None:
    found = windows("02:30-05:00")
    assert found.next_open(at("2026-03-29 00:00")) == at("2026-03-29 03:30")  # 02:30 would have been now
    assert not windows("02:00-03:00").open_at(at("2026-03-29 03:30"))
    assert windows("01:00-02:30").closes_at(at("2026-03-29 01:10")) == at("2026-03-29 03:30")


def test_repeated_time_in_autumn() -> None:
    opens, closes = windows("02:30-05:00"), windows("01:00-02:30")
    assert opens.next_open(at("2026-10-25 00:00")) == at("2026-10-25 02:30", fold=0)
    assert closes.closes_at(at("2026-10-25 01:10")) == at("2026-10-25 02:30", fold=1)


def test_next_opening_is_returned() -> None:
    assert windows("mon-fri 20:00-08:00").describe(at("2026-11-21 12:00")).endswith("; next Monday 20:00")
    assert windows("nights").describe(at("2026-11-21 22:00")) == "nights"


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "someday", "mon-", "25:00-26:00", "10:00-10:00", "10:60-11:00", "mon tue", "mon 10-12"),
        *("24:00-01:00", "x" * 500, "mon,,tue", "mon-fri 20:00-08:00 sat"),
    ],
)
def test_invalid_windows_are_refused(text: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        parse_window(text)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_too_many_windows_and_unknown_time_zone_are_refused() -> None:
    with pytest.raises(GpupoolError):
        parse_windows(["nights"] * 17)
    for name in ("Nowhere/City", "../etc/passwd", ""):
        with pytest.raises(GpupoolError):
            read_zone(name)


@given(
    t=st.floats(at("2025-01-01"), at("2027-12-31")).map(round).map(float),
    texts=st.lists(
        st.sampled_from(["nights", "weekends", "mon-fri 20:00-08:00", "02:00-03:00", "wed 01:30-02:30", "tue"]),
        min_size=1,
        max_size=3,
    ),
)
def test_openings_and_closings_match_open_state(t: float, texts: list[str]) -> None:
    def fresh() -> TimeWindows:
        return windows(*texts)

    opens = fresh().next_open(t)
    assert fresh().open_at(opens)
    assert opens == t or not fresh().open_at(opens - 1)
    closes = fresh().closes_at(opens)
    assert closes is not None
    assert closes > opens
    if closes < inf:
        assert not fresh().open_at(closes)
        assert fresh().open_at(closes - 1)
    assert opens - t <= timedelta(days=8).total_seconds()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", 1_000.0),
        ("+2h", 8_200.0),
        ("2026-11-23 09:00", 1_795_420_800.0),  # 08:00 UTC
        ("2026-11-23T09:00", 1_795_420_800.0),
        ("2026-07-01 09:00", 1_782_889_200.0),  # summer: 07:00 UTC
        ("2026-11-23T08:00:00+00:00", 1_795_420_800.0),
    ],
)
def test_moment_is_parsed_in_its_time_zone(text: str, moment: float) -> None:
    assert parse_moment(text, read_zone("Europe/Berlin"), 1_000.0) == moment


@pytest.mark.parametrize("text", ["", "tomorrow", "+", "+soon", "2026-13-01 09:00", "9" * 50])
def test_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(GpupoolError):
        parse_moment(text, read_zone("UTC"), 0.0)
