"""Searches of the event history by user, reason, object and time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest
from databases import Databases
from sqlalchemy import Connection, Engine, event

from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import WorkloadId
from gpupool.services.ports.store import AuditFilter, ChangeSet
from gpupool.store.events import ROUTINE, audit
from gpupool.store.work.writes import apply

ACTORS = ("pool", "ada", "root")
REASONS = (Reason.GRANTED, Reason.EXITED, Reason.CHANGED, Reason.PREEMPTED, Reason.CORDONED)
TARGETS = ("", "node n1", "project red")


@cache
def events() -> list[Event]:
    """Generate two thousand events, some at the same moment and some with a clock that was set back."""
    chance = random.Random(7)
    return [
        Event(
            at=float(1_000 + number // 3 - 200 * (number > 1_500)),
            actor=chance.choice(ACTORS),
            reason=chance.choice(REASONS),
            message=f"event {number}",
            workload=WorkloadId(f"w{chance.randrange(9):010d}") if chance.random() < 0.7 else None,
            target=chance.choice(TARGETS),
            id=number + 1,
        )
        for number in range(2_000)
    ]


@pytest.fixture(scope="module")
def engine(databases: Databases) -> Iterator[Engine]:
    made = databases.engine()
    with made.begin() as conn:
        apply(conn, ChangeSet(events=tuple(events())))
    yield made
    made.dispose()


def fits(row: Event, wanted: AuditFilter) -> bool:
    return (
        wanted.actor in {None, row.actor}
        and (not wanted.reasons or row.reason in wanted.reasons)
        and wanted.target in {None, row.target}
        and wanted.workload in {None, row.workload}
        and (wanted.since is None or row.at >= wanted.since)
        and (wanted.until is None or row.at < wanted.until)
        and (wanted.before is None or (row.at, row.id) < wanted.before)
    )


def expected(wanted: AuditFilter) -> list[Event]:
    found = [row for row in events() if fits(row, wanted)]
    return sorted(found, key=lambda row: (row.at, row.id), reverse=True)[: wanted.limit]


def test_every_combination_of_filters_equals_full_scan(engine: Engine) -> None:
    chance = random.Random(11)
    with engine.connect() as conn:
        for _ in range(200):
            wanted = AuditFilter(
                actor=chance.choice((None, *ACTORS, "nobody")),
                reasons=tuple(chance.sample(REASONS, chance.choice((0, 0, 1, 2)))),
                target=chance.choice((None, None, *TARGETS[1:], "node other")),
                workload=chance.choice((None, None, WorkloadId("w0000000003"))),
                since=chance.choice((None, 1_200.0, 1_300.5)),
                until=chance.choice((None, 1_400.0)),
                before=chance.choice((None, (1_350.0, 1_052))),
                limit=chance.choice((1, 10, 5_000)),
            )
            assert audit(conn, wanted) == expected(wanted), wanted


def test_pages_have_no_gaps_or_repetitions(engine: Engine) -> None:
    seen: list[Event] = []
    with engine.connect() as conn:
        while page := audit(conn, AuditFilter(before=(seen[-1].at, seen[-1].id) if seen else None, limit=130)):
            seen += page
    assert seen == expected(AuditFilter(limit=5_000))


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (AuditFilter(), "ix_events_at"),
        (AuditFilter(since=1_200.0, until=1_201.0), "ix_events_at"),
        (AuditFilter(reasons=(Reason.GRANTED,)), "ix_events_at"),
        (AuditFilter(actor="pool"), "ix_events_at"),
        (AuditFilter(actor="ada"), "ix_events_actor"),
        (AuditFilter(actor="ada", since=1_200.0), "ix_events_actor"),
        (AuditFilter(reasons=(Reason.NODE_LOST,)), "ix_events_reason"),
        (AuditFilter(target="node n1"), "ix_events_target"),
        (AuditFilter(workload=WorkloadId("w0000000003")), "ix_events_workload"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_no_filter_reads_the_whole_table(engine: Engine, wanted: AuditFilter, index: str) -> None:
    with engine.connect() as conn:
        plan = " ".join(plans(conn, wanted))
    assert f"INDEX {index}" in plan
    assert "SCAN events" not in plan.replace("SCAN events USING INDEX", "")


def plans(conn: Connection, wanted: AuditFilter) -> list[str]:
    said: list[str] = []

    def explain(conn: Connection, cursor: object, statement: str, parameters: object, *_: object) -> None:
        del cursor
        if not statement.startswith("EXPLAIN"):
            raw = conn.connection.cursor()
            raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            said.extend(str(row[-1]) for row in raw.fetchall())

    event.listen(conn, "before_cursor_execute", explain)
    audit(conn, wanted)
    event.remove(conn, "before_cursor_execute", explain)
    return said


def test_partial_index_excludes_exactly_routine_events() -> None:
    from gpupool.store.schema.tables import NOT_ROUTINE

    assert {word for word in str(NOT_ROUTINE).split("'") if word.isupper()} == {reason.value for reason in ROUTINE}
