"""Hourly, daily and weekly sums plus leases of the remaining time equal sums over leases alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from databases import Databases
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, delete, insert, select
from store_values import lease, share, wid, workload

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.usage import Period, UsageFilter
from gpupool.domain.work.time_windows import read_zone
from gpupool.domain.work.workload import GpuLease, Workload, WorkloadKind, WorkloadState
from gpupool.services.ports.store import ChangeSet
from gpupool.services.ports.usage import Dim, TimeQuery, TimeRow
from gpupool.services.usage.calendar import edges_of
from gpupool.store.migrations.versions import rev_0021_user_totals
from gpupool.store.schema import tables as t
from gpupool.store.schema import usage_tables as ut
from gpupool.store.usage import gpu_hours, rollup
from gpupool.store.usage.gpu_hours import DAY_S, HOUR_S, Marks, SourceSpan, SumFamily, TimeSource, cover
from gpupool.store.work.writes import apply

BEGIN = 20_009 * DAY_S  # Sunday, the last day of a week that is summed
SPAN_S = 3 * DAY_S
MODELS = {"g1": "Tesla T4", "g2": "Tesla V100", "g3": ""}
LARGEST_MIB = 32_000
NEAR = 1e-6

NOT_LOOKED_AT = {
    column.name: 0
    for column in ut.replica_use.columns
    if not column.primary_key and column.name not in {"samples", "busy_s", "idle_s"}
}

MOMENTS = st.one_of(
    st.floats(0, SPAN_S, allow_nan=False),
    st.integers(0, SPAN_S // HOUR_S).map(lambda hour: float(hour * HOUR_S)),
    st.integers(0, SPAN_S // DAY_S).map(lambda day: float(day * DAY_S)),
).map(lambda offset: BEGIN + offset)
LENGTHS = st.one_of(
    st.floats(0, 2 * HOUR_S), st.floats(0, 3 * DAY_S), st.sampled_from([0.0, 3600.0, 86400.0, 86401.0, 20.0 * DAY_S])
)


@dataclass(frozen=True)
class Past:
    """A history of ended leases and workloads, including ends that are not known yet."""

    leases: tuple[GpuLease, ...]
    workloads: tuple[Workload, ...]
    measured: tuple[dict[str, Any], ...] = ()

    def known_at(self, now: float) -> ChangeSet:
        """Return the contents of the store at a moment."""
        leases = [held for held in self.leases if held.granted_at <= now]
        asked = [w for w in self.workloads if w.created_at <= now]
        open_end = [replace(e, released_at=None) if (e.released_at or now) >= now else e for e in leases]
        queued = WorkloadState.QUEUED
        waiting = [replace(w, finished_at=None, state=queued) if (w.finished_at or now) >= now else w for w in asked]
        return ChangeSet(leases=tuple(open_end), workloads=tuple(waiting))


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    leases = []
    for epoch in range(1, draw(st.integers(0, 7)) + 1):
        at, length = draw(MOMENTS), draw(LENGTHS)
        gpus = draw(st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=3, unique=True))
        made = lease(
            epoch,
            wid(epoch),
            *(share(f"{gpu}-{epoch}", draw(st.integers(1, 1000))) for gpu in gpus),
            project=draw(st.sampled_from(["x", "y"])),
            user=draw(st.sampled_from(["ada", "bob"])),
            node=draw(st.sampled_from(["n1", "n2"])),
            granted_at=at,
            released_at=at + length,
        )
        leases.append(made)
    asked = []
    for number in range(1, draw(st.integers(0, 5)) + 1):
        at, length = draw(MOMENTS), draw(LENGTHS)
        gpus = draw(st.sampled_from([GpuRequest(), GpuRequest(count=2, permille=250), GpuRequest(memory_mib=5001)]))
        made_of = draw(st.sampled_from([(1, 1), (6, 2), (2, 6)]))
        kind = draw(st.sampled_from([WorkloadKind.TRAINING, WorkloadKind.TRAINING, WorkloadKind.EXEC]))
        changes: dict[str, Any] = {"gpus": gpus, "completions": made_of[0], "parallelism": made_of[1], "kind": kind}
        changes |= {"project": draw(st.sampled_from(["x", "y"])), "user": draw(st.sampled_from(["ada", "bob"]))}
        changes |= {"state": WorkloadState.SUCCEEDED, "created_at": at, "finished_at": at + length}
        asked.append(workload(wid(100 + number), **changes))
    return Past(tuple(leases), tuple(asked), tuple(row for held in leases for row in looks_at(draw, held)))


def looks_at(draw: st.DrawFn, held: GpuLease) -> Iterator[dict[str, Any]]:
    """Return hourly measurements of a lease, some of which are missing or empty."""
    assert held.released_at is not None
    amounts = st.sampled_from([None, (0.0, 0.0), (1000.0, 17.5), (12.25, 0.0), (0.0, 3600.0)])
    for hour in range(int(held.granted_at // HOUR_S) * HOUR_S, int(held.released_at), HOUR_S * draw(st.integers(1, 9))):
        found = draw(amounts)
        key = {"workload": held.workload, "replica_index": held.index, "attempt": held.attempt, "step_s": HOUR_S}
        if found is not None:
            yield {**key, "at": hour, "samples": 1800, "busy_s": found[0], "idle_s": found[1], **NOT_LOOKED_AT}


@pytest.fixture(scope="module")
def engine(databases: Databases) -> Engine:
    made = databases.engine()
    with made.begin() as conn:
        rows = [{"gpu_uuid": f"{gpu}-{n}", "model": model} for gpu, model in MODELS.items() if model for n in range(9)]
        conn.execute(insert(ut.gpu_models), [{**row, "memory_mib": LARGEST_MIB} for row in rows])
    return made


@pytest.fixture
def conn(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as conn, conn.begin() as transaction:
        yield conn
        transaction.rollback()


def put(conn: Connection, known: ChangeSet) -> None:
    """Make the store contain exactly these leases and workloads."""
    for table in (t.lease_shares, t.leases, t.workloads):
        conn.execute(delete(table))
    apply(conn, known)


def sum_all(conn: Connection, until: float) -> int:
    done = 0
    while (chunk := rollup.sum_up(conn, until)) is not None:
        assert rollup.write(conn, chunk)
        done += 1
    return done


def permille_asked(w: Workload) -> int:
    memory = w.gpus.memory_mib
    part = w.gpus.permille if memory is None else -(-memory * 1000 // LARGEST_MIB)
    return w.gpus.count * part * min(w.completions, w.parallelism)


def overlap(begin: float, end: float | None, span: tuple[float, float], now: float) -> float:
    return max(0.0, min(now if end is None else end, span[1]) - max(begin, span[0]))


def part_of_hour(held: GpuLease, hour: int, span: tuple[float, float], now: float) -> float:
    """Return the part of an hour's lease time that lies in a period."""
    inside = max(hour, held.granted_at), min(hour + HOUR_S, now if held.released_at is None else held.released_at, now)
    length = inside[1] - inside[0]
    return overlap(*inside, span, now) / length if length > 0 else 0.0


NOTHING = (0.0, 0.0, 0, 0.0, 0.0, 0.0)  # allocated, requested, grants, used, idle, measured


def by_hand(
    known: ChangeSet, measured: Sequence[Any], query: TimeQuery
) -> dict[tuple[int, tuple[str, ...]], list[float]]:
    """Compute the values of ``NOTHING`` share by share and workload by workload."""
    found: dict[tuple[int, tuple[str, ...]], list[float]] = defaultdict(lambda: list(NOTHING))
    scope = query.scope
    for step, span in enumerate(zip(query.edges, query.edges[1:], strict=False)):
        for held in known.leases:
            models = [MODELS[part.gpu_uuid[:2]] for part in held.shares]
            for part, model in zip(held.shares, models, strict=True):
                values = dict(zip(Dim, (held.project, held.user, held.node, model, held.workload), strict=True))
                if any(wanted not in {None, values[Dim(name)]} for name, wanted in scope_items(scope)):
                    continue
                cell = found[step, tuple(values[dim] for dim in query.dims)]
                cell[0] += overlap(held.granted_at, held.released_at, span, query.now) * part.permille / 1000
                cell[2] += part is held.shares[0] and span[0] <= held.granted_at < span[1]
                for row in measured:
                    if row["workload"] == held.workload and row["busy_s"] + row["idle_s"]:
                        weight = part_of_hour(held, row["at"], span, query.now) * part.permille / 1000
                        amounts = (row["busy_s"] * 1000 / held.permille, row["idle_s"], row["samples"])
                        cell[3:] = [old + weight * new for old, new in zip(cell[3:], amounts, strict=True)]
        if not query.asks_for_requests:
            continue
        for w in known.workloads:
            values = dict(zip(Dim, (w.project, w.user, "", "", w.id), strict=True))
            if w.kind is WorkloadKind.EXEC or {scope.project, scope.user} - {None, w.project, w.user}:
                continue
            cell = found[step, tuple(values[dim] for dim in query.dims)]
            cell[1] += overlap(w.created_at, w.finished_at, span, query.now) * permille_asked(w) / 1000
    return found


def scope_items(scope: UsageFilter) -> list[tuple[str, str | None]]:
    return [("project", scope.project), ("user", scope.user), ("node", scope.node), ("model", scope.model)]


def amounts_of(row: TimeRow) -> tuple[float, ...]:
    return row.allocated_s, row.requested_s, row.leases, row.used_s, row.idle_s, row.measured_s


def agree(rows: Sequence[TimeRow], wanted: dict[tuple[int, tuple[str, ...]], list[float]]) -> None:
    found = {(row.step, row.keys): amounts_of(row) for row in rows}
    assert len(found) == len(rows)
    for key in {*found, *wanted}:
        assert found.get(key, NOTHING) == pytest.approx(tuple(wanted.get(key, NOTHING)), rel=1e-12, abs=NEAR), key


def folded(
    wanted: dict[tuple[int, tuple[str, ...]], list[float]], query: TimeQuery
) -> dict[tuple[int, tuple[str, ...]], list[float]]:
    """Return amounts with the names that the query does not keep as one."""
    found: dict[tuple[int, tuple[str, ...]], list[float]] = defaultdict(lambda: list(NOTHING))
    for (step, keys), amounts in wanted.items():
        assert query.keep is not None
        column, names = query.keep
        pairs = zip(query.dims, keys, strict=True)
        key = tuple("others:" if dim is column and name not in names else name for dim, name in pairs)
        found[step, key] = [one + other for one, other in zip(found[step, key], amounts, strict=True)]
    return found


DIMS = st.sampled_from(
    [
        (),
        (Dim.MODEL,),
        (Dim.PROJECT, Dim.MODEL),
        (Dim.USER,),
        (Dim.PROJECT, Dim.USER),
        (Dim.NODE, Dim.MODEL),
        (Dim.WORKLOAD,),
        (Dim.PROJECT, Dim.NODE),
    ]
)
SCOPES = st.sampled_from(
    [
        UsageFilter(),
        UsageFilter(project="x"),
        UsageFilter(user="bob"),
        UsageFilter(node="n1"),
        UsageFilter(model="Tesla T4"),
        UsageFilter(project="x", node="n2"),
    ]
)


@settings(max_examples=25, deadline=None)
@given(
    past=pasts(),
    looks=st.lists(MOMENTS, max_size=4).map(sorted),
    edges=st.lists(MOMENTS, min_size=2, max_size=5, unique=True).map(sorted),
    asked=st.tuples(DIMS, SCOPES, st.sampled_from([0, 8])),
)
def test_sums_and_remaining_leases_equal_all_leases(
    engine: Engine, past: Past, looks: list[float], edges: list[float], asked: tuple[tuple[Dim, ...], UsageFilter, int]
) -> None:
    dims, scope, few = asked
    now = max([*looks, *edges])
    with engine.connect() as conn, conn.begin() as transaction:
        conn.execute(delete(ut.replica_use))
        for start in range(0, len(past.measured), 500):
            conn.execute(insert(ut.replica_use), past.measured[start : start + 500])
        for look in looks:  # at each moment, unended leases are open
            put(conn, past.known_at(look))
            sum_all(conn, look)
        known = past.known_at(now)
        put(conn, known)
        query = TimeQuery(tuple(edges), dims, scope, now)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_hours, "FEW_SPANS", few)
            found = gpu_hours.gpu_time(conn, query)
            agree(found, by_hand(known, past.measured, query))
            for dim, name in ((Dim.PROJECT, "x"), (Dim.USER, "bob"), (Dim.NODE, "n1")):
                few_names = replace(query, keep=(dim, frozenset({name})))
                agree(gpu_hours.gpu_time(conn, few_names), folded(by_hand(known, past.measured, query), few_names))
        transaction.rollback()


TIMES = st.floats(0, 60 * DAY_S)
HOURS = st.integers(0, 60 * 24).map(lambda hour: hour * HOUR_S)


@given(since=TIMES, until=TIMES, summed=HOURS, hours_from=HOURS)
def test_each_moment_is_counted_once(since: float, until: float, summed: int, hours_from: int) -> None:
    spans = cover(SourceSpan(TimeSource.LEASES, 7, since, until), Marks(0, summed), hours_from)
    at = since
    for span in spans:
        assert (span.step, span.since) == (7, at)
        assert span.since < span.until
        at = span.until
        if span.source is not TimeSource.LEASES:
            assert span.source.start(span.since) == span.since
            assert span.source.start(span.until) == span.until <= summed
        if span.source is TimeSource.HOURS:
            assert span.since >= hours_from
    assert at == max(since, until if spans else since)
    assert sum(span.source is TimeSource.WEEKS for span in spans) <= 1
    assert sum(span.source is TimeSource.DAYS for span in spans) <= 2


@pytest.fixture
def held(conn: Connection) -> Connection:
    """Insert a GPU lease of three and a half days that was requested one hour before."""
    held = lease(1, wid(1), share("g1-1", 1000), granted_at=BEGIN + 5400.0, released_at=BEGIN + 3.5 * DAY_S)
    asked = workload(wid(1), gpus=GpuRequest(), created_at=BEGIN + 1800.0, finished_at=BEGIN + 3.5 * DAY_S)
    put(conn, ChangeSet(leases=(held,), workloads=(replace(asked, state=WorkloadState.SUCCEEDED),)))
    return conn


def rows_of(conn: Connection) -> list[Any]:
    return list(conn.execute(select(ut.gpu_hours).order_by(*ut.gpu_hours.primary_key)))


def test_each_hour_and_day_is_summed_once_per_table(held: Connection) -> None:
    assert sum_all(held, BEGIN + 3 * DAY_S + 1900.0) == 3
    rows = [(*r[:7], r.allocated_s, r.requested_s, r.leases) for r in rows_of(held)]
    t4 = "Tesla T4"
    assert [row for row in rows if row[1:3] == (DAY_S, BEGIN)] == [
        ("member", DAY_S, BEGIN, "default", "ada", "", "", 0.0, DAY_S - 1800.0, 0),
        ("member", DAY_S, BEGIN, "default", "ada", "", t4, DAY_S - 5400.0, 0.0, 1),
        ("node", DAY_S, BEGIN, "", "", "here", t4, DAY_S - 5400.0, 0.0, 1),
        ("project", DAY_S, BEGIN, "default", "", "", "", 0.0, DAY_S - 1800.0, 0),
        ("project", DAY_S, BEGIN, "default", "", "", t4, DAY_S - 5400.0, 0.0, 1),
        ("total", DAY_S, BEGIN, "default", "", "", "", DAY_S - 5400.0, DAY_S - 1800.0, 1),
        ("user", DAY_S, BEGIN, "", "ada", "", "", DAY_S - 5400.0, DAY_S - 1800.0, 1),
    ]
    for family in SumFamily:
        keys = 2 if family in {SumFamily.PROJECT, SumFamily.MEMBER} else 1  # held by model, and requested
        assert len([row for row in rows if row[:2] == (family, DAY_S)]) == 3 * keys
        assert sum(row[7] for row in rows if row[:2] == (family, HOUR_S)) == 3 * DAY_S - 5400.0


def test_period_is_summed_once_after_its_end(held: Connection) -> None:
    assert sum_all(held, BEGIN + 3599.0) == 0
    assert sum_all(held, BEGIN + 3600.0) == 1
    before = rows_of(held)
    assert sum_all(held, BEGIN + 7199.0) == 0
    assert rows_of(held) == before


def test_unwritten_sum_is_repeated_and_written_sum_is_not(held: Connection) -> None:
    lost = rollup.sum_up(held, BEGIN + DAY_S)
    again = rollup.sum_up(held, BEGIN + DAY_S)
    assert lost == again
    assert again is not None
    assert rollup.write(held, again)
    before = rows_of(held)
    assert not rollup.write(held, again)
    assert rows_of(held) == before


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_old_hours_are_deleted_and_their_days_stay(held: Connection) -> None:
    sum_all(held, BEGIN + 2 * DAY_S)
    hours = {(r.family, r.at) for r in rows_of(held) if r.step_s == HOUR_S}
    assert min(at for family, at in hours if family == "member") == BEGIN
    sum_all(held, BEGIN + SumFamily.MEMBER.hours_kept_s + 1.5 * DAY_S)
    hours = {(r.family, r.at) for r in rows_of(held) if r.step_s == HOUR_S}
    assert min(at for family, at in hours if family == "member") == BEGIN + DAY_S
    assert min(at for family, at in hours if family == "project") == BEGIN
    days = [r.allocated_s for r in rows_of(held) if (r.step_s, r.family) == (DAY_S, "node")]
    assert sum(days) == 3.5 * DAY_S - 5400.0
    for dims, key in (((Dim.USER,), ("ada",)), ((Dim.PROJECT, Dim.USER), ("default", "ada"))):
        query = TimeQuery((BEGIN + 3600.0, BEGIN + 9000.0), dims)
        agree(gpu_hours.gpu_time(held, query), {(0, key): [3600.0, 5400.0, 1, 0, 0, 0]})


def test_weeks_of_a_timeline_in_utc_are_one_sum_each() -> None:
    zone, year = read_zone("UTC"), (BEGIN + 86400.0, BEGIN + 365 * 86400.0)
    edges = edges_of(*year, Period.WEEK, zone)
    for since, until in pairwise(edges[:-1]):  # the last one is not over
        spans = cover(SourceSpan(TimeSource.LEASES, 0, since, until), Marks(0, int(year[1])), 0)
        assert [span.source for span in spans] == [TimeSource.WEEKS]


def test_hours_of_users_that_a_migration_did_not_have_are_read_from_leases(held: Connection) -> None:
    sum_all(held, BEGIN + 2 * DAY_S)
    marks = gpu_hours.load_marks(held)
    gpu_hours.save_marks(held, replace(marks, users_since=BEGIN + DAY_S))
    held.execute(delete(ut.gpu_hours).where(ut.gpu_hours.c.family == "user", ut.gpu_hours.c.at < BEGIN + DAY_S))
    query = TimeQuery((BEGIN + 3600.0, BEGIN + 9000.0), (Dim.USER,))
    agree(gpu_hours.gpu_time(held, query), {(0, ("ada",)): [3600.0, 5400.0, 1, 0, 0, 0]})
    sum_all(held, BEGIN + 3 * DAY_S)
    assert gpu_hours.load_marks(held).users_since == BEGIN + DAY_S
    assert rollup.reopen(held, BEGIN + 30 * HOUR_S)
    assert gpu_hours.load_marks(held).users_since == BEGIN + DAY_S


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_days_without_stored_hours_are_summed(held: Connection) -> None:
    until = BEGIN + (SumFamily.MEMBER.hours_kept_s + 4 * DAY_S)
    assert sum_all(held, until) == until // DAY_S - BEGIN // DAY_S
    steps = {(r.family, r.step_s) for r in rows_of(held)}
    assert ("member", HOUR_S) not in steps
    assert {("member", DAY_S), ("project", HOUR_S), ("member", 7 * DAY_S)} <= steps
    query = TimeQuery((BEGIN, until), (Dim.USER,))
    agree(gpu_hours.gpu_time(held, query), {(0, ("ada",)): [3.5 * DAY_S - 5400.0, 3.5 * DAY_S - 1800.0, 1, 0, 0, 0]})


def test_upgrade_makes_the_sums_that_a_pool_makes(held: Connection) -> None:
    sum_all(held, BEGIN + 9 * DAY_S + HOUR_S)
    computed, marks = rows_of(held), gpu_hours.load_marks(held)
    sums = ut.gpu_hours
    held.execute(delete(sums).where((sums.c.family == "user") | (sums.c.step_s == 7 * DAY_S)))
    old = next(row for row in computed if row[:2] == ("member", DAY_S))
    held.execute(insert(sums).values({**old._mapping, "step_s": 8 * DAY_S}))
    with Operations.context(MigrationContext.configure(held)):
        rev_0021_user_totals.upgrade()
    assert rows_of(held) == computed
    assert gpu_hours.load_marks(held) == replace(marks, users_since=BEGIN + 9 * DAY_S - 35 * DAY_S)


def test_future_hours_are_reopened_after_clock_is_set_back(held: Connection) -> None:
    sum_all(held, BEGIN + 2 * DAY_S)
    assert not rollup.reopen(held, BEGIN + 2 * DAY_S)
    assert rollup.reopen(held, BEGIN + 30 * HOUR_S + 5)
    assert gpu_hours.load_marks(held).until == BEGIN + 30 * HOUR_S
    early = lease(1, wid(1), share("g1-1", 1000), granted_at=BEGIN + 5400.0, released_at=BEGIN + 30 * HOUR_S + 60.0)
    put(held, ChangeSet(leases=(early,)))
    sum_all(held, BEGIN + 3 * DAY_S)
    query = TimeQuery((BEGIN, BEGIN + 3 * DAY_S), (Dim.NODE,))
    agree(gpu_hours.gpu_time(held, query), {(0, ("here",)): [30 * HOUR_S + 60.0 - 5400.0, 0, 1, 0, 0, 0]})


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_lease_queries_use_indexes(conn: Connection) -> None:
    from gpupool.store.usage.gpu_time import _leases_in

    found = select(_leases_in()).params(since=BEGIN, until=BEGIN + HOUR_S)
    text = str(found.compile(conn.engine, compile_kwargs={"literal_binds": True}))
    plan = " ".join(str(row[3]) for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))
    for index in ("ix_leases_long_held", "ix_leases_longer_held", "ix_leases_released_at"):
        assert index in plan, plan
    assert "SCAN leases" not in plan, plan
