"""Waiting times of past days: one row for each day (UTC), so that a year is read almost as fast as a day.

A day is stored when it is over, with the submission, wait and member (project and user) of each workload that has
started or ended by then. The others stay *open*: they are read from their own rows, and moved into their day once their
wait is known. A stored day keeps the waits of workloads whose history is deleted later, like the sums of GPU time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, delete, func, insert, select, update

from gpupool.domain.usage import UsageFilter
from gpupool.domain.work.workload import WorkloadKind
from gpupool.services.ports.usage import Wait, Waits
from gpupool.store.schema import tables as t
from gpupool.store.schema.usage_tables import DAY_S, wait_days, wait_members

RECORD = np.dtype([("created_at", "<f8"), ("wait_s", "<f8"), ("member", "<i4")])
IDS_PER_QUERY = 500

_Records = npt.NDArray[np.void]
_Members = dict[tuple[str, str], int]
_w = t.workloads.c
_WAIT = (_w.project, _w.user_name, _w.created_at, _w.started_at, _w.finished_at)
_IN_ORDER = select(wait_members.c.project, wait_members.c.user_name).order_by(wait_members.c.id)


def read(conn: Connection, since: float, until: float, scope: UsageFilter) -> Waits:
    """Return the waits of workloads with their own GPUs, submitted between two times; ``scope``: project and user."""
    days = wait_days.c
    rows = conn.execute(
        select(days.waits, days.open).where(days.at > since - DAY_S, days.at < until).order_by(days.at)
    ).all()
    stored = np.frombuffer(b"".join(row.waits for row in rows), RECORD)
    stored = stored[np.searchsorted(stored["created_at"], since) : np.searchsorted(stored["created_at"], until)]
    members = [(project, user) for project, user in conn.execute(_IN_ORDER)]
    waits = Waits(stored["created_at"], stored["wait_s"], stored["member"], tuple(members))
    live = [wait for wait in _open(conn, rows) if since <= wait.created_at < until]
    live += _submitted(conn, max(since, _stored_until(conn)), until)
    return waits.with_more(live).of(scope.project, scope.user)


def _open(conn: Connection, rows: Iterable[Any]) -> list[Wait]:
    ids = [workload for row in rows if row.open for workload in row.open.split()]
    return [Wait._make(row[1:]) for row in _by_id(conn, ids)]


def _by_id(conn: Connection, ids: Sequence[str]) -> list[Any]:
    chunks = (ids[start : start + IDS_PER_QUERY] for start in range(0, len(ids), IDS_PER_QUERY))
    return [row for chunk in chunks for row in conn.execute(select(_w.id, *_WAIT).where(_w.id.in_(chunk)))]


def _submitted(conn: Connection, since: float, until: float) -> list[Wait]:
    during = (_w.created_at >= since, _w.created_at < until, _w.kind != WorkloadKind.EXEC.value)
    return [Wait._make(row) for row in conn.execute(select(*_WAIT).where(*during).order_by(_w.created_at))]


def _stored_until(conn: Connection) -> int:
    """Return the end of the stored days; 0 if there are none."""
    last = conn.execute(select(func.max(wait_days.c.at))).scalar()
    return 0 if last is None else int(last) + DAY_S


def store_next(conn: Connection, until: float) -> bool:
    """Store the next day that ends by ``until``, and waits of earlier days that are known now; False if there is none.

    ``until`` is a time by which everything was written.
    """
    day = _stored_until(conn) or _first_day(conn)
    if day is None or day + DAY_S > until:
        return False
    members = {(project, user): number for number, (project, user) in enumerate(conn.execute(_IN_ORDER))}
    _close(conn, members)
    during = (_w.created_at >= day, _w.created_at < day + DAY_S, _w.kind != WorkloadKind.EXEC.value)
    rows = conn.execute(select(_w.id, *_WAIT).where(*during)).all()
    known = {row.id: Wait._make(row[1:]) for row in rows}
    ended = [wait for wait in known.values() if wait.known]
    conn.execute(
        insert(wait_days).values(
            at=day,
            waits=_records(conn, ended, members).tobytes(),
            open=" ".join(key for key, wait in known.items() if not wait.known),
        )
    )
    return True


def _first_day(conn: Connection) -> int | None:
    """Return the day of the first workload."""
    first = conn.execute(select(func.min(_w.created_at))).scalar()
    return None if first is None else int(first // DAY_S) * DAY_S


def _close(conn: Connection, members: _Members) -> None:
    """Move the waits that are known now from open workloads into their days."""
    days = wait_days.c
    for at, waits, still in conn.execute(select(days.at, days.waits, days.open).where(days.open != "")).all():
        rows = {row.id: Wait._make(row[1:]) for row in _by_id(conn, still.split())}
        ended = [wait for wait in rows.values() if wait.known]
        if len(rows) == len(still.split()) and not ended:
            continue
        records = np.concatenate((np.frombuffer(waits, RECORD), _records(conn, ended, members)))
        records = records[np.argsort(records["created_at"], kind="stable")]
        left = " ".join(key for key, wait in rows.items() if not wait.known)
        conn.execute(update(wait_days).where(days.at == at).values(waits=records.tobytes(), open=left))


def _records(conn: Connection, waits: Sequence[Wait], members: _Members) -> _Records:
    """Return records in the order of their submission; new members are stored."""
    fresh = dict.fromkeys((w.project, w.user) for w in waits if (w.project, w.user) not in members)
    added: Mapping[tuple[str, str], int] = {key: len(members) + place for place, key in enumerate(fresh)}
    if added:
        rows = [{"id": number, "project": project, "user_name": user} for (project, user), number in added.items()]
        conn.execute(insert(wait_members), rows)
        members.update(added)
    found = [(w.created_at, w.wait_s, members[w.project, w.user]) for w in waits]
    return np.array(sorted(found, key=lambda record: record[0]), RECORD)


def reopen(conn: Connection, now: float) -> bool:
    """Delete days that are not over because the clock was set back; return whether there were any."""
    return conn.execute(delete(wait_days).where(wait_days.c.at > now - DAY_S)).rowcount > 0
