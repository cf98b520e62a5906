"""Throughput of one-GPU jobs that run `true`, on eight emulated GPUs.

`python benchmarks/throughput.py [--jobs 400] [--rounds 3]`: as single submissions of one client and as one sweep, with
real processes and with a node that runs nothing (the control plane alone); for comparison the same programs started
directly, eight at a time. The time is from the first submission until the database has the last end. Prints a table and
writes results/throughput.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import Api, NullPool, Pool, cpu_s, live, machine, percentile, table, until, write_result

GPUS = 8
GOAL_REAL = 60.0
GOAL_NULL = 200.0
LONGEST_S = 120.0
Submit = Callable[[Api, int], None]
ENV = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home())}


def one_by_one(api: Api, jobs: int) -> None:
    """Send a number of submissions over one connection."""
    for _ in range(jobs):
        api.ask("POST", "/v1/workloads", {"command": ["true"], "workdir": "/", "env": ENV, "gpus": {"count": 1}})


def one_sweep(api: Api, jobs: int) -> None:
    """Send one submission with a number of replicas."""
    rows = [{"number": i} for i in range(jobs)]
    api.ask("POST", "/v1/workloads", {"command": ["true"], "workdir": "/", "env": ENV, "sweep": {"list": rows}})


def per_second(pool: Pool, submit: Submit, jobs: int) -> tuple[float, dict[str, float]]:
    """Return the jobs per second, and the CPU milliseconds per job of each process of the pool."""
    before = {name: cpu_s(pid) for name, pid in pool.pids().items()}
    begun = time.perf_counter()
    submit(pool.api(), jobs)
    if not until(lambda: live(pool) == 0, LONGEST_S):
        raise RuntimeError(f"{live(pool)} workloads are not done after {LONGEST_S:.0f} s")
    rate = jobs / (time.perf_counter() - begun)
    cost = {name: (cpu_s(pid) - before[name]) / jobs * 1000 for name, pid in pool.pids().items() if name in before}
    return rate, {name: round(ms, 2) for name, ms in cost.items()}


def directly(jobs: int) -> float:
    """Measure the same programs per second, started by this process, as many at a time as there are GPUs."""
    begun = time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    for _ in range(jobs):
        if len(running) == GPUS:
            running.pop(0).wait()
        running.append(subprocess.Popen(("true",), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENV))
    for process in running:
        process.wait()
    return jobs / (time.perf_counter() - begun)


def measure(pool: Pool, submit: Submit, jobs: int, rounds: int) -> dict[str, Any]:
    """Run several rounds of one kind of submission."""
    found = [per_second(pool, submit, jobs) for _ in range(rounds)]
    rates = [rate for rate, _ in found]
    return {
        "jobs_per_s_median": round(percentile(rates, 50), 1),
        "jobs_per_s": [round(rate, 1) for rate in rates],
        "cpu_ms_per_job_last_round": found[-1][1],
    }


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    jobs, rounds = options.jobs, options.rounds
    result: dict[str, Any] = {"what": "throughput", **machine(), "jobs": jobs, "gpus": GPUS}
    direct = result["directly_per_s"] = round(percentile([directly(jobs) for _ in range(rounds)], 50), 1)
    shown: list[tuple[object, ...]] = [("started directly, 8 at a time", direct, "", "")]
    for kind, goal, pool in (
        ("real processes", GOAL_REAL, Pool(f"{GPUS}xT4")),
        ("null runner", GOAL_NULL, NullPool(f"{GPUS}xT4", ends=True)),
    ):
        with pool:
            per_second(pool, one_by_one, 20)
            for way, submit in (("submissions", one_by_one), ("one sweep", one_sweep)):
                found = result[f"{kind}, {way}"] = measure(pool, submit, jobs, rounds) | {"goal_per_s": goal}
                rate = found["jobs_per_s_median"]
                shown.append((f"{kind}, {jobs} as {way}", rate, f"{goal:g}", f"{rate / direct:.2f}"))
                print(f"{kind}, {way}: {found}", file=sys.stderr)
    print(table(("jobs running `true`", "jobs/s", "goal", "ratio to direct"), shown))
    write_result("throughput", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
