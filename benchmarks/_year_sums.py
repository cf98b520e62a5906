"""The sums of hours and days that a pool computes itself, written at once for all but the last days of the year.

`gpupool.store.usage.rollup` would write the same rows day by day, but much slower than this module, which takes a
minute. The pool computes the rest itself. All input is read from the store.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import _year_names as names
from gpupool.store.usage.gpu_hours import DAY_S, MARKS, WEEK_S, Marks, SumFamily, TimeSource

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HOUR = 3600
AMOUNTS = ("allocated_s", "used_s", "idle_s", "measured_s", "requested_s", "leases")
COLUMNS = ("family", "step_s", "at", "project", "user_name", "node", "model", *AMOUNTS)
KINDS = sorted(set(names.MODELS))
NOBODY = -1  # in place of a node or a model: requests have neither


@dataclass(frozen=True, slots=True)
class Parts:
    """Times cut at the hours: the row of each part, its hour (the first second), and its seconds."""

    row: Ints
    hour: Ints
    seconds: Floats


def by_hour(begin: Floats, end: Floats) -> Parts:
    """Return every hour that each time touches."""
    first = (begin // HOUR).astype(np.int64)
    spans = (end // HOUR).astype(np.int64) - first + 1
    row = np.repeat(np.arange(len(begin)), spans)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(spans) - spans, spans)
    hour = (first[row] + offset) * HOUR
    seconds = np.minimum(end[row], hour + HOUR) - np.maximum(begin[row], hour)
    held = seconds > 0
    return Parts(row[held], hour[held], seconds[held])


@dataclass(frozen=True, slots=True)
class Ledger:
    """Amounts [6, N], and the keys of each column."""

    hour: Ints
    project: Ints
    user: Ints
    node: Ints
    model: Ints
    amounts: Floats

    def only(self, wanted: npt.NDArray[np.bool_]) -> Ledger:
        """Return some of the columns."""
        keys = (self.hour, self.project, self.user, self.node, self.model)
        return Ledger(*(key[wanted] for key in keys), self.amounts[:, wanted])


def ledger(conn: sqlite3.Connection, until: int) -> Ledger:
    """All held, measured and requested time before a given time."""
    rows = conn.execute(
        "SELECT l.workload, l.project, l.user_name, l.node, l.permille, l.granted_at, l.released_at, w.created_at"
        " FROM leases l JOIN workloads w ON w.id = l.workload WHERE l.released_at IS NOT NULL"
    ).fetchall()
    number = {row[0]: at for at, row in enumerate(rows)}
    who = [np.array([int(row[at].rpartition("-")[2]) for row in rows]) for at in (1, 2, 3)]
    kind = np.array([KINDS.index(model) for model in names.MODELS])[who[2]]
    share, granted, released, created = (np.array([row[at] for row in rows], dtype=float) for at in (4, 5, 6, 7))
    share /= 1000
    held, asked = by_hour(granted, released), by_hour(created, released)
    fresh = (granted[held.row] // HOUR * HOUR == held.hour).astype(float)
    looks = conn.execute("SELECT workload, at, samples, busy_s, idle_s FROM replica_use WHERE step_s = 3600")
    seen = [(number[key], *rest) for key, *rest in looks if key in number]
    row, hour, samples, busy, idle = (np.array(column) for column in zip(*seen, strict=True))
    parts = (
        (held.row, held.hour, {0: held.seconds * share[held.row], 5: fresh}, True),
        (row, hour, {1: busy, 2: idle * share[row], 3: samples * share[row]}, True),
        (asked.row, asked.hour, {4: asked.seconds * share[asked.row]}, False),
    )
    found = [_part(who, kind, *part) for part in parts]
    keys = zip(*((f.hour, f.project, f.user, f.node, f.model) for f in found), strict=True)
    every = Ledger(*(np.concatenate(key) for key in keys), np.concatenate([f.amounts for f in found], axis=1))
    return every.only(every.hour < until)


def _part(who: list[Ints], kind: Ints, row: Ints, hour: Ints, amounts: dict[int, Floats], placed: bool) -> Ledger:
    table = np.zeros((len(AMOUNTS), len(row)))
    for at, amount in amounts.items():
        table[at] = amount
    nowhere = np.full(len(row), NOBODY)
    project, user, node = (column[row] for column in who)
    return Ledger(hour, project, user, node if placed else nowhere, kind[row] if placed else nowhere, table)


def summed(book: Ledger, family: SumFamily, step_s: int) -> Iterator[tuple[Any, ...]]:
    """Return rows of the table."""
    if family is SumFamily.NODE:
        book = book.only(book.node != NOBODY)
    nothing = np.full(len(book.hour), NOBODY)
    project = book.project if family not in {SumFamily.NODE, SumFamily.USER} else nothing
    user = book.user if family in {SumFamily.MEMBER, SumFamily.USER} else nothing
    node = book.node if family is SumFamily.NODE else nothing
    model = book.model if family not in {SumFamily.TOTAL, SumFamily.USER} else nothing
    origin = TimeSource(step_s).start(0) + step_s  # of the first step after the epoch
    at = (book.hour - origin) // step_s
    packed = (((at * 64 + project + 1) * 256 + user + 1) * 128 + node + 1) * 8 + model + 1
    keys, where = np.unique(packed, return_inverse=True)
    sums = [np.bincount(where, weights=amount, minlength=len(keys)).tolist() for amount in book.amounts]
    for key, *amounts, leases in zip(keys.tolist(), *sums, strict=True):
        rest, model = divmod(key, 8)
        rest, node_number = divmod(rest, 128)
        rest, user_number = divmod(rest, 256)
        number, project_number = divmod(rest, 64)
        yield (
            *(family.value, step_s, origin + number * step_s),
            names.project(project_number - 1) if project_number else "",
            names.user(user_number - 1) if user_number else "",
            names.node(node_number - 1) if node_number else "",
            KINDS[model - 1] if model else "",
            *(*amounts, int(leases)),
        )


def write(path: Path, now: float) -> None:
    """Sum everything up to a midnight two days ago."""
    until = int((now - 2 * DAY_S) // DAY_S) * DAY_S
    conn = sqlite3.connect(path)
    book = ledger(conn, until)
    put = f"INSERT INTO gpu_hours ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    for family in SumFamily:
        kept = int(now - family.hours_kept_s) // DAY_S * DAY_S
        conn.executemany(put, summed(book.only(book.hour >= kept), family, HOUR))
        conn.executemany(put, summed(book, family, DAY_S))
        whole = TimeSource.WEEKS.start(until)
        conn.executemany(put, summed(book.only(book.hour < whole), family, WEEK_S))
    marks = Marks(int(book.hour.min()) // DAY_S * DAY_S, until)
    told = json.dumps({"since": marks.since, "until": marks.until})
    conn.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (MARKS, told))
    conn.commit()
    conn.close()
