"""A year of a large pool, written straight into a store: 64 nodes of 8 GPUs, 40 projects, 200 users, 400,000 leases.

`python benchmarks/_year.py PATH [--leases 400000] [--live 1000] [--queued 3000] [--minute-hours 24]`. The data is
synthetic, not measured: records of such a pool with daily and weekly patterns, so that pages and reports can be timed
with it. The store's own functions create the schema, and its own mapping the rows of workloads.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent))

from sqlalchemy import Column

import _year_live as alive
import _year_names as people
import _year_past as past
import _year_sums as sums
from _year_names import GPUS_PER_NODE, NODES
from _year_sums import Parts, by_hour
from gpupool.domain.ids import workload_id
from gpupool.store.backends import sqlite
from gpupool.store.migrations.migrate import prepare
from gpupool.store.pool.nodes import save_nodes
from gpupool.store.schema.usage_tables import metadata
from gpupool.store.usage import rollup

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

YEAR_S = 365 * 86400
HOUR = 3600
BATCH = 20_000
LAYOUTS = (  # how the GPUs of a node are usually allocated: (first GPU, number, thousandths), in turn over nodes
    ((0, 8, 1000),),
    ((0, 4, 1000), (4, 4, 1000)),
    tuple((gpu, 1, 1000) for gpu in range(8)),
    tuple((gpu, 1, 1000) for gpu in range(4))
    + tuple((gpu, 1, 250) for gpu in (4, 5) for _ in range(4))
    + tuple((gpu, 1, 100) for gpu in (6, 7) for _ in range(10)),
)
CYCLE_H = {8000: 25.0, 4000: 20.0, 1000: 8.3, 250: 15.0, 100: 15.0}  # from one start in a place to the next


@dataclass(frozen=True, slots=True)
class Lanes:
    """Places that are reused by many leases: node, first GPU, number of GPUs, thousandths of each."""

    node: Ints
    first: Ints
    count: Ints
    permille: Ints

    @property
    def total(self) -> Ints:
        """Return the thousandths over all GPUs of each lease."""
        return self.count * self.permille


@dataclass(frozen=True, slots=True)
class Leases:
    """Ended leases, in order of their grants; times are seconds since the epoch, ``busy`` is between 0 and 1."""

    lane: Ints
    granted: Floats
    released: Floats
    waited: Floats
    user: Ints
    project: Ints
    busy: Floats

    def __len__(self) -> int:
        return len(self.lane)


def lanes() -> Lanes:
    """Return all places of the pool."""
    found = [(node, *lane) for node in range(NODES) for lane in LAYOUTS[node % len(LAYOUTS)]]
    return Lanes(*(np.array(column, dtype=np.int64) for column in zip(*found, strict=True)))


def rhythm(hours: int) -> Floats:
    """Return the demand of each hour, with a mean of about 1: more on working days, most in the afternoon."""
    hour = np.arange(hours)
    of_day, weekday = hour % 24, (hour // 24) % 7
    day = 0.35 + 1.3 * np.exp(-(((of_day - 14.0) / 4.5) ** 2))
    season = 1.0 + 0.25 * np.sin(2 * np.pi * hour / (24 * 182))
    return np.asarray(day * np.where(weekday < 5, 1.2, 0.5) * season)


def draw(rng: np.random.Generator, places: Lanes, since: float, until: float, wanted: int) -> Leases:
    """Return the wanted number of leases, none of which overlaps with another on its place."""
    asked = np.concatenate(([0.0], np.cumsum(rhythm(int((until - since) // HOUR) + 1))))
    marks = since + HOUR * np.arange(len(asked))
    cycle = np.array(
        [CYCLE_H[total if total > 1000 else size] for total, size in zip(places.total, places.permille, strict=True)]
    )
    at = since + rng.uniform(0, 86400, len(cycle))
    rows: list[tuple[Ints, Floats, Floats]] = []
    while (alive := at < until - HOUR).any():
        lane = np.flatnonzero(alive)
        gap = rng.exponential(0.22 * cycle[lane])
        start = np.interp(np.interp(at[lane], marks, asked) + gap, asked, marks)
        held = HOUR * cycle[lane] * rng.lognormal(-0.75, 1.0, len(lane)) + 20
        end = np.minimum(start + held, until - rng.uniform(1, 60, len(lane)))
        fits = end > start + 5
        rows.append((lane[fits], start[fits], end[fits]))
        at[lane] = end + rng.uniform(0.5, 30, len(lane))
        at[lane[~fits]] = until
    lane, granted, released = (np.concatenate(column) for column in zip(*rows, strict=True))
    keep = rng.permutation(len(lane))[:wanted]
    keep = keep[np.argsort(granted[keep], kind="stable")]
    return _dress(rng, lane[keep], granted[keep], released[keep])


def _dress(rng: np.random.Generator, lane: Ints, granted: Floats, released: Floats) -> Leases:
    """Return owners, waits and GPU use of the leases."""
    count = len(lane)
    weights = 1.0 / np.arange(1, people.USERS + 1) ** 0.7
    user = rng.choice(people.USERS, count, p=weights / weights.sum())
    project = (user + rng.choice(3, count, p=(0.7, 0.2, 0.1)) * 7) % people.PROJECTS
    of_day = (granted % 86400) / HOUR
    busy_hours = np.exp(-(((of_day - 15.0) / 5.0) ** 2))
    waited = rng.lognormal(1.0 + 5.0 * busy_hours, 1.4)
    busy = np.where(rng.random(count) < 0.08, 0.0, rng.beta(4.0, 1.6, count))
    return Leases(lane, granted, released, np.minimum(waited, 3 * 86400), user, project, busy)


class Book:
    """The database while it is filled: no fsync, indexes made at the end."""

    def __init__(self, path: Path) -> None:
        prepare(path)
        self._conn = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "foreign_keys=OFF", "cache_size=-262144"):
            self._conn.execute(f"PRAGMA {pragma}")
        found = self._conn.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        self._indexes: list[tuple[str, str]] = found.fetchall()
        for name, _ in self._indexes:
            self._conn.execute(f"DROP INDEX {name}")
        self._conn.execute("BEGIN")

    def put(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows given in the order of the columns."""
        marks = ", ".join("?" * len(columns))
        self._conn.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def put_dicts(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows as the store's mapping makes them."""
        if rows:
            self.put(table, tuple(rows[0]), (past.plain(row) for row in rows))

    def columns(self, table: str) -> Sequence[Column[Any]]:
        """Return the columns of a table, in order."""
        return tuple(metadata.tables[table].columns)

    def close(self) -> None:
        """Create indexes and statistics; afterwards it is a normal store."""
        for _, sql in self._indexes:
            self._conn.execute(sql)
        self._conn.execute("COMMIT")
        self._conn.execute("ANALYZE")
        self._conn.close()


def finish(path: Path, now: float) -> None:
    """Write the rows that the pool itself stores: its nodes, and the sums of past hours and days."""
    sums.write(path, now)
    engine = sqlite.make_engine(path)
    with engine.begin() as conn:
        for node in people.nodes():
            save_nodes(conn, [node])
    while True:
        with engine.begin() as conn:
            chunk = rollup.sum_up(conn, now)
            if chunk is None or not rollup.write(conn, chunk):
                break
    engine.dispose()


def ids(rng: np.random.Generator, count: int) -> list[str]:
    """Return a number of workload ids."""
    return [workload_id(int(bits)) for bits in rng.integers(0, 1 << 50, count)]


def write_work(book: Book, rng: np.random.Generator, places: Lanes, leases: Leases, names: list[str]) -> None:
    """Write workloads, replicas, leases, shares and events of ended work."""
    ends = rng.choice(3, len(leases), p=(0.82, 0.11, 0.07))
    book.put(*past.past_workloads(names, places, leases, ends))
    book.put(*past.past_replicas(names, places, leases, ends))
    book.put(*past.past_leases(names, places, leases))
    book.put(*past.past_shares(places, leases))
    book.put(*past.past_events(names, leases, ends))


def write_use(book: Book, places: Lanes, leases: Leases, names: list[str], since: float, until: float) -> None:
    """Write the hourly measurements."""
    parts = by_hour(leases.granted, leases.released)
    whole = leases.busy[parts.row] * parts.seconds
    part = np.minimum(1.0, places.permille[leases.lane[parts.row]] / 1000 * 1.4)  # slices use a little more than theirs
    gpus = places.count[leases.lane[parts.row]]
    idle = np.where(leases.busy[parts.row] == 0, parts.seconds, 0.1 * (parts.seconds - whole))
    _write_replica_use(book, parts, names, whole * gpus * part, idle)
    hours = _hours(since, until)
    past.put_gpu_use(book, _gpu_busy(places, leases, parts, whole, hours), hours, HOUR)


def _write_replica_use(book: Book, parts: Parts, names: list[str], busy: Floats, idle: Floats) -> None:
    order = np.lexsort((parts.hour, np.array(names)[parts.row]))
    columns = (
        *("workload", "replica_index", "attempt", "step_s", "at", "samples", "busy_s", "idle_s"),
        *("gpu_memory_mean_mib", "gpu_memory_max_mib", "cpu_s", "memory_max_mib", "read_bytes", "written_bytes"),
    )
    for chunk in _chunks(order):
        seconds = parts.seconds[chunk]
        values = (parts.hour[chunk], seconds.astype(int), busy[chunk], idle[chunk], seconds * 2.5)
        book.put(
            "replica_use",
            columns,
            (
                (names[lease], 0, 1, HOUR, at, samples, on, off, 6000.0, 8000, cpu, 9000, 1 << 28, 1 << 24)
                for lease, at, samples, on, off, cpu in _rows(parts.row[chunk], *values)
            ),
        )


def _hours(since: float, until: float) -> Ints:
    return np.arange(int(since // HOUR) * HOUR, int(until // HOUR) * HOUR, HOUR)


def _gpu_busy(places: Lanes, leases: Leases, parts: Parts, whole: Floats, hours: Ints) -> Floats:
    """Return the busy seconds of each GPU in each hour, a little more for slices: [G, T]."""
    busy = np.zeros((NODES * GPUS_PER_NODE, len(hours)))
    lane = leases.lane[parts.row]
    column = (parts.hour - hours[0]) // HOUR
    inside = (column >= 0) & (column < len(hours))
    for offset in range(GPUS_PER_NODE):
        on = inside & (places.count[lane] > offset)
        gpu = places.node[lane[on]] * GPUS_PER_NODE + places.first[lane[on]] + offset
        part = np.minimum(1.0, places.permille[lane[on]] / 1000 * 1.4)
        np.add.at(busy, (gpu, column[on]), whole[on] * part)
    return np.minimum(busy, HOUR)


def _chunks(order: Ints) -> Iterator[Ints]:
    return (order[start : start + BATCH] for start in range(0, len(order), BATCH))


def _rows(*columns: npt.NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def make(path: Path, *, leases: int, live: int, queued: int, minute_hours: int, seed: int = 1) -> dict[str, Any]:
    """Write a year that ends now; return what was written, and the time that this took."""
    begun = time.perf_counter()
    until = time.time()
    since = until - YEAR_S
    rng = np.random.default_rng(seed)
    places = lanes()
    over = draw(rng, places, since, until, leases)
    keys = ids(rng, len(over) + live + queued)
    book = Book(path)
    past.write_standing(book)
    write_work(book, rng, places, over, keys)
    write_use(book, places, over, keys, since, until)
    running = alive.write_live(book, rng, until, keys[len(over) :], len(over) + 1, live)
    alive.write_minutes(book, rng, until, minute_hours, running)
    book.close()
    finish(path, until)
    return {
        "leases": len(over),
        "live": len(running),
        "queued": live + queued - len(running),
        "nodes": NODES,
        "gpus": NODES * GPUS_PER_NODE,
        "database_mib": round(path.stat().st_size / (1 << 20)),
        "written_in_s": round(time.perf_counter() - begun, 1),
    }


def main() -> int:
    """Write one and print its contents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--leases", type=int, default=400_000)
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--queued", type=int, default=3000)
    parser.add_argument("--minute-hours", type=int, default=24)
    options = parser.parse_args()
    sizes = {"leases": options.leases, "live": options.live, "queued": options.queued}
    print(make(options.path, **sizes, minute_hours=options.minute_hours))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
