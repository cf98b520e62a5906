"""Fairness under changing demand: `python benchmarks/scheduler/fairness.py [--hours 8] [--seed 1]`.

Three projects share 64 GPUs on nodes of eight: red is entitled to a half, blue and green to a quarter each, once by
quotas and once only by weights. Each submits training of one to eight GPUs with a mean run time of half an hour
(exponential): enough for 1.2 times the pool while the project is busy, and nearly nothing while it is not. Red is busy
for four hours of eight, blue for three of six, green for two of four. Evicted training begins anew.

  share_error   the part of the pool that projects hold above their fair shares (half of the sum of the differences),
                with held GPUs and fair shares averaged over time with a half-life of an hour
  finish_ratio  mean time from submission to the end over that of the same jobs on the project's part of the nodes
                alone; the worst project is named (1 or less: no project loses by sharing)
  evictions, and GPU hours of lost work, per hour

The cases: past use counts in fair shares (as in the pool), does not count, and turns of two hours. Prints a table and
writes JSON into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from decide import RESULTS, command, machine

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Project
from gpupool.scheduling.policy import Settings
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.metrics import fair_levels
from gpupool.simulate.values import Record, Rules, TraceJob

HOUR = 3600.0
NODES, GPUS = 8, 64
DUE_NODES = {"red": 4, "blue": 2, "green": 2}
BUSY_OF_H = {"red": (4.0, 8.0), "blue": (3.0, 6.0), "green": (2.0, 4.0)}
SIZES, ODDS = (1, 2, 4, 8), (8, 4, 2, 1)
MEAN_RUN_S = 1800.0
BUSY, QUIET = 1.2, 0.05  # of the pool's GPUs
EVERY_S = 60.0
HALF_LIFE_S = HOUR


@dataclass(frozen=True, slots=True)
class Case:
    """Projects and settings of a run."""

    name: str
    projects: tuple[Project, ...]
    settings: Settings


QUOTAS = tuple(Project(name, nodes * 8000) for name, nodes in DUE_NODES.items())
WEIGHTS = tuple(Project(name, 0, weight=float(nodes)) for name, nodes in DUE_NODES.items())
CASES = (
    Case("quotas, use lately counts", QUOTAS, Settings()),
    Case("quotas, it does not", QUOTAS, Settings(usage_weight=0.0)),
    Case("weights, use lately counts", WEIGHTS, Settings()),
    Case("weights, it does not", WEIGHTS, Settings(usage_weight=0.0)),
    Case("weights, turns of two hours", WEIGHTS, Settings(turn_s=2 * HOUR)),
)


def demand(hours: float, seed: int) -> tuple[TraceJob, ...]:
    """Return the jobs of all projects, in the order of their submission."""
    rng = random.Random(seed)
    mean_gpus = sum(size * odds for size, odds in zip(SIZES, ODDS, strict=True)) / sum(ODDS)
    jobs: list[TraceJob] = []
    for project, (busy_h, of_h) in BUSY_OF_H.items():
        at = 0.0
        while at < hours * HOUR:
            load = BUSY if (at / HOUR) % of_h < busy_h else QUIET
            at += rng.expovariate(load * GPUS / (mean_gpus * MEAN_RUN_S))
            size = rng.choices(SIZES, ODDS)[0]
            jobs.append(TraceJob(at, rng.expovariate(1 / MEAN_RUN_S), GpuRequest(size), project, f"{project}-user"))
    return tuple(sorted((job for job in jobs if job.submitted_s < hours * HOUR), key=lambda job: job.submitted_s))


def share_error(record: Record) -> float:
    """Return the metrics of the module docstring; the mean over time."""
    names = [project.name for project in record.projects]
    step_s = record.window_s / len(record.samples)
    keep = 0.5 ** (step_s / HALF_LIFE_S)
    held, due, errors = np.zeros(len(names)), np.zeros(len(names)), []
    for sample in record.samples:
        levels = fair_levels(record.capacity_permille, sample.asked, record.projects)
        held = held * keep + np.array([sample.held.get(name, 0) for name in names]) * (1 - keep)
        due = due * keep + np.array([levels[name] for name in names]) * (1 - keep)
        errors.append(float(np.abs(held - due).sum()) / 2 / record.capacity_permille)
    return float(np.mean(errors))


def took_s(record: Record, project: str) -> float:
    """Return the mean time from submission to the end."""
    ends = [(f.ended_s, f.job.submitted_s) for f in record.fates if f.job.project == project]
    return float(np.mean([end - start for end, start in ends if end is not None]))


def alone_s(jobs: Sequence[TraceJob]) -> dict[str, float]:
    """Return the same for each project alone on its part of the nodes."""
    found = {}
    for name, nodes in DUE_NODES.items():
        own = [job for job in jobs if job.project == name]
        found[name] = took_s(Simulation(own, parse_cluster(f"{nodes}x8xA100")).run(), name)
    return found


def fairness(jobs: Sequence[TraceJob], case: Case, alone: dict[str, float]) -> dict[str, object]:
    """Simulate one run."""
    began = perf_counter()
    rules = Rules(samples=round((jobs[-1].submitted_s - jobs[0].submitted_s) / EVERY_S))
    record = Simulation(jobs, parse_cluster(f"{NODES}x8xA100"), case.projects, rules, case.settings).run()
    ratios = {name: round(took_s(record, name) / alone[name], 3) for name in DUE_NODES}
    worst = max(ratios, key=lambda name: ratios[name])
    hours = record.ended_s / HOUR
    wasted = sum(fate.wasted_permille_s for fate in record.fates) / 1000 / HOUR
    return {
        "share_error": round(share_error(record), 4),
        "finish_ratios": ratios,
        "worst_finish_ratio": [worst, ratios[worst]],
        "evictions_per_hour": round(sum(record.evictions.values()) / hours, 2),
        "evictions": dict(record.evictions),
        "wasted_gpu_hours_per_hour": round(wasted / hours, 3),
        "allocated": round(record.busy_permille_s / record.window_s / record.capacity_permille, 4),
        "finished": sum(fate.finished == fate.replicas for fate in record.fates),
        "seconds": round(perf_counter() - began, 1),
    }


def main() -> None:
    """Run the cases, print and store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-fairness.json")
    args = parser.parse_args()
    jobs = demand(args.hours, args.seed)
    alone = alone_s(jobs)
    table: dict[str, object] = {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{len(jobs):,} jobs in {args.hours:g} hours", flush=True)
    shown = ("share_error", "worst_finish_ratio", "evictions_per_hour", "wasted_gpu_hours_per_hour", "allocated")
    for case in CASES:
        table[case.name] = row = fairness(jobs, case, alone)
        print(f"{case.name:<28} " + "  ".join(f"{key} {row[key]}" for key in (*shown, "seconds")), flush=True)
        about = {"hours": args.hours, "seed": args.seed, "jobs": len(jobs)}
        alone_h = {name: round(seconds / HOUR, 3) for name, seconds in alone.items()}
        kept = {"machine": machine(), "command": command(), **about, "alone_h": alone_h, "results": table}
        args.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
