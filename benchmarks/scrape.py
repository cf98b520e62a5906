"""Cost of a scrape of `/metrics` and of a refresh of `gpupool top` for the control plane of a large pool.

`python benchmarks/scrape.py [--store PATH] [--leases 400000] [--looks 20]`: a control plane in this process over the
store of `_year.py` (written when PATH does not exist), with 64 nodes that run nothing but report like real ones. Times
are CPU times, so that a busy machine does not count: of a whole answer, and of the longest time in which nothing else
of the control plane could run, with a scrape and without. Prints a table and writes results/scrape.json.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import structlog

import _year
import _year_names as names
from _common import machine, percentile, table, write_result
from _year_pool import YearFabric
from gpupool.api.prometheus import Exposition
from gpupool.api.views.top_view import top_view, written
from gpupool.daemon.control_plane import pause_full_collections
from gpupool.services.clock import SteadyClock
from gpupool.services.pool import Pool, PoolInfo
from gpupool.services.ports.adapters import Ports
from gpupool.store import open_store

GOAL_BLOCK_MS = 5.0
PATIENCE_S = 120.0
LIVE, QUEUED = 1_000, 3_000


class Watcher:
    """Measures the longest turn of the event loop, in CPU seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - last)
            last = now

    async def stop(self) -> float:
        """Return the longest turn in seconds."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.longest_s


async def measured(looks: int, work: Callable[[], Awaitable[int]]) -> dict[str, Any]:
    """Measure ``looks`` requests: CPU milliseconds, the longest turn, and the size of an answer."""
    spent, turns, size = [], [], 0
    for _ in range(looks):
        begun = time.thread_time()
        size = await work()
        spent.append(1000 * (time.thread_time() - begun))
        watcher = Watcher()
        await asyncio.sleep(0)
        await work()
        turns.append(1000 * await watcher.stop())
        await asyncio.sleep(0.05)
    return {
        "ms": {"p50": percentile(spent, 50), "most": max(spent)},
        "longest_turn_ms": {"p50": percentile(turns, 50), "most": max(turns)},
        "bytes": size,
    }


async def bench(store: Path, looks: int) -> dict[str, Any]:
    """Start a control plane and measure the cost of its answers."""
    opened, clock = await open_store(store), SteadyClock()
    ports = Ports(opened, YearFabric(store), clock, secrets.randbits, asyncio.sleep)
    info = PoolInfo("0", opened.pool_id, "user", clock.now(), str(store.parent), None, 0, retention_days=400)
    pool = Pool(ports, info)
    begun = time.perf_counter()
    await pool.start()
    try:
        services = pool.services
        await until(lambda: services.metrics.seconds.loaded)
        known_s = time.perf_counter() - begun
        await until(lambda: len(services.telemetry.latest()) == names.NODES)
        exposition = Exposition(services)

        async def scrape() -> int:
            exposition.forget()
            return len(await exposition.text())

        async def top() -> int:
            return len(await written(await top_view(await services.metrics.snapshot())))

        async def nothing() -> int:
            await asyncio.sleep(0.02)
            return 0

        gc.collect()
        pause_full_collections()  # as the control plane does
        await scrape()
        series = (await exposition.text()).count(b"\n")
        result = {"lines": series, "gpu_seconds_known_after_s": known_s}
        return result | {
            "idle": await measured(looks, nothing),
            "scrape": await measured(looks, scrape),
            "top": await measured(looks, top),
        }
    finally:
        await pool.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a result of the pool."""
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--leases", type=int, default=400_000)
    parser.add_argument("--looks", type=int, default=20)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory(prefix="gpb-") as folder:
        store = options.store or Path(folder) / "pool.db"
        if not store.exists():
            _year.make(store, leases=options.leases, live=LIVE, queued=QUEUED, minute_hours=1)
        result = {"machine": machine(), "leases": options.leases, "goal_turn_ms": GOAL_BLOCK_MS}
        result |= asyncio.run(bench(store, options.looks))
    rows = [(name, result[name]) for name in ("idle", "scrape", "top")]
    lines = [
        (
            name,
            f"{found['ms']['p50']:.1f}",
            f"{found['ms']['most']:.1f}",
            f"{found['longest_turn_ms']['p50']:.1f}",
            f"{found['longest_turn_ms']['most']:.1f}",
            f"{found['bytes'] / 1e6:.2f}",
        )
        for name, found in rows
    ]
    print(table(("request", "CPU ms p50", "CPU ms max", "loop turn p50", "loop turn max", "MB"), lines))
    write_result("scrape", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
