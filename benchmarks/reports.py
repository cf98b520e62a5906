"""Times of reports over a day and over a year, and the longest pause of the event loop meanwhile.

`python benchmarks/reports.py [--store PATH] [--leases 120000]` uses the store of `_year.py`, and writes it if PATH does
not exist. Prints a table, with the ratio of a year to a day, and writes results/reports.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import _year
from _common import machine, table, write_result
from gpupool.domain.usage import GroupBy
from gpupool.services.usage.accounting import AccountingService
from gpupool.services.usage.reports import ReportRequest, make_report
from gpupool.store import open_store

DAY_S = 86400
ROUNDS = 3


async def measure(path: Path) -> list[dict[str, Any]]:
    """Return the best wall and CPU time of each report, and the longest pause of the event loop."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        now = float(conn.execute("SELECT max(granted_at) FROM leases").fetchone()[0]) + 3600
    store = await open_store(path)
    while await store.usage_books.sum_next(now - 3600):
        pass  # a pool does this in the background
    engine: Any = SimpleNamespace(ports=SimpleNamespace(store=store, clock=SimpleNamespace(now=lambda: now)))
    identities: Any = SimpleNamespace(projects={}, users={})
    permissions: Any = SimpleNamespace()
    accounting = AccountingService(engine, identities, permissions, "UTC")
    rows = []
    for by in (GroupBy.PROJECT, GroupBy.USER, GroupBy.MODEL):
        for days in (1, 365):
            pauses = Pauses()
            watch = asyncio.create_task(pauses.run())
            times = [await _once(accounting, ReportRequest(now - days * DAY_S, now, by)) for _ in range(ROUNDS)]
            watch.cancel()
            wall, cpu = (round(min(values), 3) for values in zip(*times, strict=True))
            rows.append(
                {"by": str(by), "days": days, "wall_s": wall, "cpu_s": cpu, "pause_s": round(pauses.longest, 3)}
            )
    await store.close()
    return rows


async def _once(accounting: AccountingService, wish: ReportRequest) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    await make_report(accounting, wish)
    return time.perf_counter() - wall, time.process_time() - cpu


class Pauses:
    """Measures how long the event loop does nothing else."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - before - 0.001)


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="a store of _year.py; written if it does not exist")
    parser.add_argument("--leases", type=int, default=120_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.store or Path(folder) / "year.db"
        if not path.exists():
            _year.make(path, leases=options.leases, live=1000, queued=1000, minute_hours=2)
        rows = asyncio.run(measure(path))
    ratios = {
        by: {
            figure: round(next(r[figure] for r in of_key if r["days"] == 365) / max(of_key[0][figure], 0.001), 1)
            for figure in ("wall_s", "cpu_s")
        }
        for by in dict.fromkeys(row["by"] for row in rows)
        if (of_key := [row for row in rows if row["by"] == by])
    }
    names = ("by", "days", "wall_s", "cpu_s", "pause_s")
    print(table([name.upper() for name in names], [[row[name] for name in names] for row in rows]))
    print("a year / a day:", ratios)
    result = {"what": "reports", **machine(), "leases": options.leases, "reports": rows, "year_to_day": ratios}
    write_result("reports", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
