"""Time of `gpupool run -g 1 -- true` in a warm pool, compared with a direct start of the same program.

`python benchmarks/launch.py [--pairs 150]`: pairs of both, alternating so that other load affects both
equally; `srun` in turn where Slurm is installed (as root); and the time of `gpupool --help`. Prints a table and
writes results/launch.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import GPUPOOL, Pool, machine, percentile, spread, table, write_result
from _slurm import Slurm, installed

GOAL_P50_MS = 45.0
GOAL_P99_MS = 120.0
GOAL_HELP_MS = 300.0
WARM_UP = 10
TRUE = shutil.which("true") or "/bin/true"


def timed(command: tuple[str, ...], env: dict[str, str]) -> float:
    """Seconds from the start of a program until it was waited for. Raises ``RuntimeError`` when it fails."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, said = process.communicate()
    taken = time.perf_counter() - begun
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {said.decode('utf-8', 'replace')}")
    return taken


def stages(pool: Pool, runs: int) -> dict[str, list[float]]:
    """Return the parts of the pool's own time, by its records, in seconds since the submission."""
    api = pool.api()
    found: dict[str, list[float]] = {"granted": [], "program runs": [], "program over": [], "end written": []}
    for listed in api.ask("GET", f"/v1/workloads?all=true&limit={min(runs, 200)}")["workloads"]:
        events = api.ask("GET", f"/v1/events?workload={listed['id']}&limit=50")["events"]
        at = {event["reason"]: event["at"] for event in events}
        record = pool.state / "node" / "ended" / f"{listed['id']}.0.1" / "exit.json"
        over = json.loads(record.read_bytes())["finished_at"]
        marks = zip(found, (at["GRANTED"], at.get("STARTED", over), over, at["EXITED"]), strict=True)
        for name, when in marks:
            found[name].append(when - listed["created_at"])
    return found


def measure(pairs: int) -> dict[str, Any]:
    """Measure both alternately, and compute the differences."""
    whole = (GPUPOOL, "run", "-q", "-g", "1", "--", "true")
    with ExitStack() as stack:
        pool = stack.enter_context(Pool("4xT4"))
        slurm = stack.enter_context(Slurm()) if installed() else None
        for _ in range(WARM_UP):
            timed(whole, pool.env)
        direct, through, bare, by_slurm = [], [], [], []
        for _ in range(pairs):
            direct.append(timed((TRUE,), pool.env))
            through.append(timed(whole, pool.env))
            if slurm is not None:
                by_slurm.append(timed(("srun", "-Q", "--gres=gpu:1", TRUE), slurm.env))
            bare.append(timed((sys.executable, "-I", "-S", "-c", "pass"), pool.env))
        steps = stages(pool, pairs)
    helping = [timed((GPUPOOL, "--help"), dict(os.environ)) for _ in range(20)]
    over = [a - b for a, b in zip(through, direct, strict=True)]
    return {
        "over_direct_ms": spread(over, 1000),
        "goals_ms": {"p50": GOAL_P50_MS, "p99": GOAL_P99_MS, "help": GOAL_HELP_MS},
        "gpupool_run_true_ms": spread(through, 1000),
        "srun_true_ms": spread(by_slurm, 1000) if by_slurm else None,
        "run_to_srun": ratios(through, by_slurm) if by_slurm else None,
        "true_directly_ms": spread(direct, 1000),
        "python_that_does_nothing_ms": spread(bare, 1000),
        "since_submission_ms": {name: spread(times, 1000) for name, times in steps.items()},
        "help_ms": spread(helping, 1000),
    }


def ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Return the time of `gpupool run` divided by that of `srun`: of the medians, and of the fastest runs."""
    return {
        "p50": round(percentile(ours, 50) / percentile(theirs, 50), 2),
        "min": round(min(ours) / min(theirs), 2),
    }


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    rows = [
        ("gpupool run -- true, over direct", result["over_direct_ms"], f"{GOAL_P50_MS:g} / {GOAL_P99_MS:g}"),
        ("gpupool run -- true", result["gpupool_run_true_ms"], ""),
        *([("srun true", result["srun_true_ms"], "")] if result["srun_true_ms"] else []),
        ("true, directly", result["true_directly_ms"], ""),
        ("python -I -S -c pass", result["python_that_does_nothing_ms"], ""),
        *((f"since submission: {name}", times, "") for name, times in result["since_submission_ms"].items()),
        ("gpupool --help", result["help_ms"], f"{GOAL_HELP_MS:g} (p50)"),
    ]
    print(
        table(
            ("ms", "p50", "p99", "min", "max", "goal"),
            [(n, t["p50"], t["p99"], t["min"], t["max"], g) for n, t, g in rows],
        )
    )
    if result["run_to_srun"]:
        print("gpupool run / srun:", ", ".join(f"{name} {ratio}" for name, ratio in result["run_to_srun"].items()))


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150)
    options = parser.parse_args()
    result = {"what": "launch", **machine(), **measure(options.pairs)}
    show(result)
    write_result("launch", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
