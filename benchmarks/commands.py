"""Wall and CPU time of everyday commands, `run` next to `srun`, and `ps` with many queued jobs.

`python benchmarks/commands.py [--rounds 15] [--queued 10000] [--before SRC]`: all commands in turn, so that other load
affects all of them equally. `--before` is the `src` folder of another version: each of its commands runs directly
before that of this version, on the same pool, and the table has ratios. With Slurm installed (`slurm-wlm`, as root), a
Slurm of one node runs `srun` and `squeue` in turn. Prints a table and writes results/commands.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import GPUPOOL, Pool, machine, percentile, table, write_result
from _slurm import Slurm, installed

GOAL_WALL_MS, GOAL_CPU_MS, GOAL_QUEUED_MS = 100.0, 80.0, 500.0
TRUE = shutil.which("true") or "/bin/true"
RUN = "run -g 1 -- true"
EVERYDAY = (
    "ps",
    "status",
    "why waits",
    "list-gpus",
    "nodes",
    "describe waits",
    "logs done",
    "wait done",
    "submit -n 4 --model V100 -- true",
    "stop done",
    "usage",
    "whoami",
    "fairshare",
    "list jobs",
    "events",
    "version",
)
SLURM = {"srun": ("srun", "-Q", "--gres=gpu:1", TRUE), "squeue": ("squeue",)}


class Times:
    """Wall and CPU times of one command, in milliseconds."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def add(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        """Run a command once. Raises ``RuntimeError`` when it fails."""
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        self.wall.append((time.perf_counter() - begun) * 1000)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stderr.close()
        self.cpu.append((used.ru_utime + used.ru_stime) * 1000)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: {said.decode('utf-8', 'replace')}")

    def summary(self) -> dict[str, float]:
        """Return medians and the fastest run."""
        return {
            "wall_p50": round(percentile(self.wall, 50), 1),
            "wall_min": round(min(self.wall), 1),
            "cpu_p50": round(percentile(self.cpu, 50), 1),
            "n": len(self.wall),
        }


def prepare(pool: Pool) -> None:
    """Leave one finished and one waiting workload, and free GPUs."""
    for arguments in (
        ("run", "-d", "--name", "done", "-p", "0.1", "--", "true"),
        ("wait", "done"),
        ("submit", "waits", "-n", "4", "--model", "V100", "--", "true"),
    ):
        done = pool.cli(*arguments)
        if done.returncode:
            raise RuntimeError(f"gpupool {' '.join(arguments)}: {done.stderr}")


def measure(rounds: int, queued: int, before: str | None) -> dict[str, Any]:
    """Run all commands in turn and return their times by name and version."""
    found: dict[str, dict[str, Times]] = {}
    with ExitStack() as stack:
        slurm = stack.enter_context(Slurm()) if installed() else None
        pool = stack.enter_context(Pool("4xT4,4xV100"))
        taken = pool.cli("request-gpus", "-n", "1", "--model", "V100")
        if taken.returncode:
            raise RuntimeError(taken.stderr)
        prepare(pool)
        versions = {"before": pool.env | {"PYTHONPATH": before}} if before else {}
        versions["now"] = dict(pool.env)

        def one_round(commands: Mapping[str, str], record: dict[str, dict[str, Times]]) -> None:
            for name, line in commands.items():
                for version, env in versions.items():
                    times = record.setdefault(name, {}).setdefault(version, Times())
                    times.add((GPUPOOL, *line.split()), env)

        for number in range(rounds + 1):
            record: dict[str, dict[str, Times]] = found if number else {}  # the first round only warms up
            one_round({line: line for line in (RUN, *EVERYDAY)}, record)
            for name, command in SLURM.items() if slurm else ():
                record.setdefault(name, {}).setdefault("now", Times()).add(command, slurm.env if slurm else {})
        if queued:
            queue(pool, queued)
            for _ in range(5):
                one_round({f"ps, {queued} queued": "ps"}, found)
    return {name: {v: times.summary() for v, times in versions.items()} for name, versions in found.items()}


def queue(pool: Pool, count: int) -> None:
    """Queue jobs that do not fit. Raises ``RuntimeError`` when the pool refuses one, or does not have all of them."""
    api = pool.api()
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home())}
    for number in range(count):
        body = {"name": f"q{number}", "command": ["train"], "workdir": "/", "env": env}
        api.ask("POST", "/v1/workloads", body | {"gpus": {"count": 4, "models": ["V100"]}})
    if (waiting := api.ask("GET", "/v1/pool")["queued"]) < count:
        raise RuntimeError(f"{waiting} of {count} jobs wait")


def show(times: dict[str, Any]) -> None:
    """Print the table."""
    rows = []
    for name, versions in times.items():
        now, before = versions["now"], versions.get("before")
        ratio = (
            (f"{before['wall_p50'] / now['wall_p50']:.1f}", f"{before['cpu_p50'] / max(now['cpu_p50'], 0.1):.1f}")
            if before
            else ("", "")
        )
        old = (before["wall_p50"], before["cpu_p50"]) if before else ("", "")
        rows.append((name, old[0], now["wall_p50"], ratio[0], old[1], now["cpu_p50"], ratio[1], now["wall_min"]))
    print(table(("ms", "WALL BEFORE", "WALL", "RATIO", "CPU BEFORE", "CPU", "RATIO", "WALL MIN"), rows))


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--before", metavar="SRC")
    options = parser.parse_args()
    goals = {"wall": GOAL_WALL_MS, "cpu": GOAL_CPU_MS, "queued": GOAL_QUEUED_MS}
    result = {"what": "commands", **machine(), "goals_ms": goals}
    result["times_ms"] = measure(options.rounds, options.queued, options.before)
    show(result["times_ms"])
    write_result("commands", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
