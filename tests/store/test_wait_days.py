"""Waits from stored days plus rows of workloads equal waits from the rows of all workloads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from databases import Databases
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, delete, func, select
from store_values import wid, workload

from gpupool.domain.usage import GroupBy, Period, UsageFilter, WaitLine
from gpupool.domain.work.workload import Workload, WorkloadKind, WorkloadState
from gpupool.services.ports.store import ChangeSet
from gpupool.services.usage.accounting import wait_lines
from gpupool.services.usage.calendar import edges_of
from gpupool.store.schema import tables as t
from gpupool.store.schema import usage_tables as ut
from gpupool.store.schema.usage_tables import DAY_S
from gpupool.store.usage import wait_days
from gpupool.store.work.writes import apply

BEGIN = int(datetime(2024, 3, 29, tzinfo=UTC).timestamp())  # two days before summer time begins in Berlin
SPAN_S = 5 * DAY_S
MOMENTS = st.one_of(
    st.floats(0, SPAN_S, allow_nan=False),
    st.integers(0, 2 * SPAN_S // 3600).map(lambda half: half * 1800.0),
).map(lambda offset: BEGIN + offset)
LENGTHS = st.none() | st.one_of(st.floats(0, 3 * DAY_S), st.sampled_from([0.0, 60.0, 86400.0]))
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/Los_Angeles"])


@st.composite
def pasts(draw: st.DrawFn) -> list[Workload]:
    """Return workloads with the times of their starts and ends, of which some never come."""
    found = []
    for number in range(1, draw(st.integers(0, 9)) + 1):
        at, waited, ran = draw(MOMENTS), draw(LENGTHS), draw(LENGTHS)
        started = None if waited is None else at + waited
        changes = {
            "project": draw(st.sampled_from(["x", "y"])),
            "user": draw(st.sampled_from(["ada", "bob"])),
            "kind": draw(st.sampled_from([WorkloadKind.TRAINING, WorkloadKind.TRAINING, WorkloadKind.EXEC])),
            "started_at": started,
            "finished_at": None if ran is None else (started or at) + ran,
        }
        found.append(workload(wid(number), created_at=at, **changes))
    return found


def known_at(past: Sequence[Workload], now: float) -> list[Workload]:
    """Return the workloads as the store has them at a moment."""
    found = []
    for one in past:
        start = one.started_at if one.started_at is not None and one.started_at <= now else None
        end = one.finished_at if one.finished_at is not None and one.finished_at <= now else None
        state = WorkloadState.SUCCEEDED if end is not None else WorkloadState.QUEUED
        found.append(replace(one, started_at=start, finished_at=end, state=state))
    return [one for one in found if one.created_at <= now]


def put(conn: Connection, past: Sequence[Workload], now: float) -> None:
    conn.execute(delete(t.workloads))
    apply(conn, ChangeSet(workloads=tuple(known_at(past, now))))


def store_all(conn: Connection, until: float) -> int:
    done = 0
    while wait_days.store_next(conn, until):
        done += 1
    return done


def by_hand(known: Sequence[Workload], edges: Sequence[float], by: GroupBy, scope: UsageFilter) -> list[WaitLine]:
    lines = []
    for step in range(len(edges) - 1):
        groups: dict[str, list[Workload]] = defaultdict(list)
        for one in known:
            wanted = scope.project in {None, one.project} and scope.user in {None, one.user}
            if edges[step] <= one.created_at < edges[step + 1] and one.kind is not WorkloadKind.EXEC and wanted:
                groups[{GroupBy.PROJECT: one.project, GroupBy.USER: one.user}.get(by, "")].append(one)
        for key, ones in sorted(groups.items()):
            seconds = sorted(max(0.0, one.started_at - one.created_at) for one in ones if one.started_at is not None)
            waiting = sum(one.started_at is None and one.finished_at is None for one in ones)
            ranks = [seconds[math.ceil(part * len(seconds)) - 1] for part in (0.5, 0.9, 0.99, 1)] if seconds else []
            mean = [pytest.approx(math.fsum(seconds) / len(seconds))] if seconds else []
            never = len(ones) - len(seconds) - waiting
            lines.append(WaitLine(key, edges[step], edges[step + 1], len(seconds), waiting, never, *mean, *ranks))
    return lines


@pytest.fixture(scope="module")
def engine(databases: Databases) -> Engine:
    return databases.engine()


@pytest.fixture
def conn(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as conn, conn.begin() as transaction:
        yield conn
        transaction.rollback()


@settings(max_examples=60, deadline=None)
@given(
    past=pasts(),
    looks=st.lists(MOMENTS, max_size=4).map(sorted),
    ends=st.tuples(MOMENTS, MOMENTS).map(sorted),
    zone=ZONES,
    period=st.sampled_from([None, Period.HOUR, Period.DAY, Period.WEEK]),
    by=st.sampled_from([GroupBy.PROJECT, GroupBy.USER, GroupBy.POOL]),
    scope=st.sampled_from([UsageFilter(), UsageFilter(project="x"), UsageFilter(project="x", user="bob")]),
)
def test_stored_days_and_rows_equal_all_rows(  # noqa: PLR0913, PLR0917 - one value of each kind
    engine: Engine,
    past: list[Workload],
    looks: list[float],
    ends: list[float],
    zone: str,
    period: Period | None,
    by: GroupBy,
    scope: UsageFilter,
) -> None:
    now = max([*looks, *ends])
    edges = tuple(ends) if period is None else edges_of(*ends, period, ZoneInfo(zone))
    with engine.connect() as conn, conn.begin() as transaction:
        for look in looks:
            put(conn, past, look)
            store_all(conn, look)
        put(conn, past, now)
        found = wait_lines(wait_days.read(conn, edges[0], edges[-1], scope), edges, by, lambda _: "")
        assert found == by_hand(known_at(past, now), edges, by, scope)
        transaction.rollback()


def test_day_is_stored_once_after_its_end_and_keeps_deleted_histories(conn: Connection) -> None:
    past = [
        workload(wid(1), created_at=BEGIN + 10.0, started_at=BEGIN + 40.0),
        workload(wid(2), created_at=BEGIN + 20.0, started_at=BEGIN + 1.5 * DAY_S),
        workload(wid(3), created_at=BEGIN + 2.5 * DAY_S),
    ]
    put(conn, past, BEGIN + DAY_S)
    assert store_all(conn, BEGIN + DAY_S - 1.0) == 0
    assert store_all(conn, BEGIN + DAY_S) == 1
    assert conn.execute(select(ut.wait_days.c.open)).scalar() == wid(2)
    put(conn, past, BEGIN + 4 * DAY_S)
    assert store_all(conn, BEGIN + 4 * DAY_S) == 3
    assert conn.execute(select(ut.wait_days.c.open).where(ut.wait_days.c.at == BEGIN)).scalar() == ""
    conn.execute(delete(t.workloads))
    found = wait_days.read(conn, BEGIN, BEGIN + 4 * DAY_S, UsageFilter())
    assert found.wait_s.tolist() == [30.0, 1.5 * DAY_S - 20.0]


def test_days_in_the_future_are_stored_again_after_the_clock_was_set_back(conn: Connection) -> None:
    past = [workload(wid(n), created_at=BEGIN + n * DAY_S + 9.0, started_at=BEGIN + n * DAY_S + 10.0) for n in range(3)]
    put(conn, past, BEGIN + 4 * DAY_S)
    assert store_all(conn, BEGIN + 3 * DAY_S) == 3
    assert not wait_days.reopen(conn, BEGIN + 3 * DAY_S)
    assert wait_days.reopen(conn, BEGIN + 1.5 * DAY_S)
    assert conn.execute(select(func.count()).select_from(ut.wait_days)).scalar() == 1
    late = workload(wid(9), created_at=BEGIN + 1.6 * DAY_S, started_at=BEGIN + 1.7 * DAY_S)
    put(conn, [*past, late], BEGIN + 4 * DAY_S)
    assert store_all(conn, BEGIN + 3 * DAY_S) == 2
    assert len(wait_days.read(conn, BEGIN, BEGIN + 3 * DAY_S, UsageFilter())) == 4
