"""Ten thousand queued jobs: time of submissions and queries, and cost of the waiting queue.

`python benchmarks/queued.py [--jobs 10000]`: a real control plane on a node that runs nothing, whose one GPU is taken;
single submissions over one connection, then `gpupool ps`, `gpupool why` of the last, the same through the API,
and the processor time and memory at rest. The same is measured with an empty queue. Prints a table and writes
results/queued.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import Api, NullPool, Pool, cpu_s, machine, percentile, rows, rss_mib, table, until, write_result

ENV = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home())}
REST_S = 10.0
TIMES = 5


def submit(api: Api, name: str) -> str:
    """Submit a job with one GPU and return its id."""
    body = {"name": name, "command": ["train"], "workdir": "/", "env": ENV, "gpus": {"count": 1}}
    return str(api.ask("POST", "/v1/workloads", body)["id"])


def timed(act: Callable[[], object]) -> float:
    """Return the median of several tries, in milliseconds."""
    found = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        act()
        found.append((time.perf_counter() - begun) * 1000)
    return round(percentile(found, 50), 1)


def look(pool: Pool, api: Api, ref: str) -> dict[str, Any]:
    """Measure the operations that are compared between an empty and a full queue."""
    pid = pool.pids()["control-plane"]
    asked = {
        "gpupool ps, ms": timed(lambda: pool.cli("ps")),
        "gpupool why, ms": timed(lambda: pool.cli("why", ref)),
        "API: list of 100, ms": timed(lambda: api.ask("GET", "/v1/workloads?limit=100")),
        "API: why, ms": timed(lambda: api.ask("GET", f"/v1/workloads/{ref}/why")),
        "API: one more submission, ms": timed(lambda: submit(api, f"late-{time.monotonic_ns()}")),
    }
    time.sleep(2)
    before = cpu_s(pid)
    time.sleep(REST_S)
    asked["control plane at rest, % of a processor"] = round((cpu_s(pid) - before) / REST_S * 100, 1)
    asked["control plane, MiB resident"] = round(rss_mib(pid), 1)
    return asked


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    options = parser.parse_args()
    with NullPool("1xT4", ends=False) as pool:
        api = pool.api()
        submit(api, "holder")
        until(lambda: rows(pool, "SELECT count(*) FROM replicas WHERE state = 'running'")[0][0] == 1, 30)
        empty = look(pool, api, submit(api, "first"))
        begun = time.perf_counter()
        for number in range(options.jobs):
            last = submit(api, f"job-{number}")
        taken = time.perf_counter() - begun
        full = look(pool, api, last)
        said = pool.cli("why", last).stdout.strip()
    result = {"what": "queued", **machine(), "jobs": options.jobs, "submitted_per_s": round(options.jobs / taken, 1)}
    result |= {"empty_queue": empty, "full_queue": full, "why_says": said}
    shown = [(name, empty[name], full[name], f"{full[name] / max(empty[name], 0.1):.1f}") for name in full]
    print(f"{options.jobs} submissions in {taken:.1f} s: {options.jobs / taken:.0f} per s")
    print(table(("", "empty queue", f"{options.jobs} queued", "ratio"), shown))
    print(said)
    write_result("queued", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
