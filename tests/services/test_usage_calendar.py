"""Limits of timeline steps, waiting times, and the cost of GPU hours."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.errors import GpupoolError
from gpupool.domain.usage import CostRates, GroupBy, Period
from gpupool.domain.work.time_windows import read_zone
from gpupool.services.ports.usage import NO_WAITS, Wait
from gpupool.services.usage.accounting import wait_lines
from gpupool.services.usage.calendar import edges_of

BERLIN = read_zone("Europe/Berlin")


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def hours_of(since: str, until: str, period: Period) -> list[float]:
    return [(b - a) / 3600 for a, b in pairwise(edges_of(moment(since), moment(until), period, BERLIN))]


def test_days_of_clock_changes_have_23_and_25_hours() -> None:
    assert hours_of("2026-03-28", "2026-03-31", Period.DAY) == [24, 23, 24]
    assert hours_of("2026-10-24", "2026-10-27", Period.DAY) == [24, 25, 24]


def test_first_and_last_steps_are_cut() -> None:
    assert hours_of("2026-11-20T18:00", "2026-11-22T06:00", Period.DAY) == [6, 24, 6]
    assert hours_of("2026-11-20T18:30", "2026-11-20T20:15", Period.HOUR) == [0.5, 1, 0.25]


def test_weeks_start_on_mondays_and_months_on_the_first() -> None:
    weeks = edges_of(moment("2026-11-20"), moment("2026-12-03"), Period.WEEK, BERLIN)
    assert weeks == tuple(moment(day) for day in ("2026-11-20", "2026-11-23", "2026-11-30", "2026-12-03"))
    months = edges_of(moment("2025-12-15"), moment("2026-03-02"), Period.MONTH, BERLIN)
    starts = ("2025-12-15", "2026-01-01", "2026-02-01", "2026-03-01", "2026-03-02")
    assert months == tuple(moment(day) for day in starts)


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(GpupoolError):
        edges_of(0.0, 4e9, Period.HOUR, UTC)
    with pytest.raises(GpupoolError):
        edges_of(0.0, 1e11, Period.MONTH, UTC)


ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/Havana", "Australia/Lord_Howe"])
TIMES = st.floats(1e9, 2e9)


@given(since=TIMES, length=st.floats(0, 90 * 86400), period=st.sampled_from(Period), zone=ZONES)
def test_steps_have_no_gaps(since: float, length: float, period: Period, zone: str) -> None:
    edges = edges_of(since, since + length, period, read_zone(zone))
    assert (edges[0], edges[-1]) == (since, since + length)
    assert all(a < b for a, b in pairwise(edges)) or since + length == since
    longest = {Period.HOUR: 3600, Period.DAY: 25 * 3600, Period.WEEK: 169 * 3600, Period.MONTH: 31.05 * 86400}
    assert all(b - a <= longest[period] for a, b in pairwise(edges))


def test_waiting_times_count_started_workloads_only() -> None:
    started = [Wait("red", "ada", 100.0 + n, 100.0 + n + n, None) for n in range(1, 101)]
    others = [Wait("red", "bob", 150.0, None, None), Wait("red", "bob", 160.0, None, 170.0)]
    known = NO_WAITS.with_more(started)
    (line,) = wait_lines(known.with_more(others), (0.0, 1000.0), GroupBy.PROJECT, lambda _: "")
    assert (line.key, line.started, line.waiting, line.never) == ("red", 100, 1, 1)
    assert (line.mean_s, line.p50_s, line.p90_s, line.p99_s, line.longest_s) == (50.5, 50, 90, 99, 100)
    (nobody,) = wait_lines(NO_WAITS.with_more(others), (0.0, 1000.0), GroupBy.DEPARTMENT, lambda _: "dept")
    assert (nobody.key, nobody.started, nobody.p50_s) == ("dept", 0, None)
    two = wait_lines(known, (0.0, 150.0, 1000.0), GroupBy.POOL, lambda _: "")
    assert [(step.at, step.started) for step in two] == [(0.0, 49), (150.0, 51)]
    with pytest.raises(GpupoolError):
        wait_lines(known, (0.0, 1000.0), GroupBy.NODE, lambda _: "")


def test_rate_is_found_by_model_name() -> None:
    rates = CostRates("EUR", 0.5, (("a100", 2.0), ("a100 80gb", 3.0), ("Tesla T4", 0.3)))
    found = {
        model: rates.rate_of(model) for model in ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "Tesla T4", "?")
    }
    assert list(found.values()) == [2.0, 3.0, 0.3, 0.5]
    assert rates.cost_of([("Tesla T4", 7200.0), ("", 0.0)]) == pytest.approx(0.6)
    assert CostRates("EUR", None, (("t4", 1.0),)).cost_of([("Tesla V100", 1.0), ("Tesla T4", 1.0)]) is None
