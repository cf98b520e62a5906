"""Measure waiting times: `python benchmarks/scheduler/queueing.py DATA [--loads 0.95] [--orders ...] [--thin 8]`.

The 68,510 jobs of at most 64 GPUs that the Philly subset has in October and November 2017, on one pool of nodes of
eight GPUs whose size gives the load: 592, 496 and 448 GPUs at 0.80, 0.95 and 1.05. Work for
more than eight GPUs is a gang of replicas, one on each node. All of it is training and may be evicted. Every order is
one run of the scheduler itself:

  fifo      first come, first served; smaller jobs may overtake: one project, one user, nothing is evicted
  pool      the default of a pool: the virtual clusters are projects without quotas, by fair share
  shortest  the pool setting `order: shortest`: one project, its users are the virtual clusters; by past run times
  turns     the pool setting `turn: 2h` and else as `pool`: work that has run for two hours can be preempted;
            it needs 60 s to start again
  told      shortest job first by the true run time, which no scheduler can know: one project, one user, nothing is
            evicted
  protected as `pool`, but nothing may be evicted

`--checkpoint` says how often work saves its state: `30m`, `none` (what is evicted starts from zero) or `half`: every
second job saves every 30 minutes and says so, the others save nothing.

Given are the hours from submission to the first start (`wait_h`), and by how much later than alone jobs ended
(`delay_h`), which has in it what evictions cost. A project with most of the jobs decides their mean, so `delay_h` also
has the mean of the projects' means (`by_project`) and the mean over GPU hours (`by_gpu_hour`). With several samples
(`--thin`, `--offsets`, `--from-day`) and the order `protected`, the result has the means over the samples, and their
ratios to those of `protected` with 90 % intervals: samples differ much. Beside it, for the whole trace: what a
simulation of the same jobs that only counts GPUs gave for first come, first served with up to 200 skipped, and for
shortest job first. With --jobs only the first jobs are submitted; the figures for comparison do not apply then. All
loads and orders of the whole trace take more than an hour on two cores: the default is one load. Prints a table and
writes JSON into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean, mean
from time import perf_counter
from typing import Any

import numpy as np
from decide import RESULTS, command, machine

from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.units import parse_duration_s
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.state.user_order import Order
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.load import at_load, capacity_of
from gpupool.simulate.metrics import summary
from gpupool.simulate.traces import TraceFormat, read_trace
from gpupool.simulate.values import Fate, Rules, TraceJob

FIRST, END = (datetime(2017, month, 1, tzinfo=UTC).timestamp() for month in (10, 12))
MOST_GPUS = 64
GPUS_PER_NODE = 8
GPUS_AT = {0.80: 592, 0.95: 496, 1.05: 448}
MEAN_WAIT_H = {  # load: first come first served with skipping, shortest job first with skipping
    0.80: (1.78, 0.61),
    0.95: (10.74, 1.96),
    1.05: (41.34, 3.11),
}
THIN_CLUSTER, THIN_MOST_GPUS, DAY_S = "8x8xP100", 16, 86_400.0
TOLD_EVERY_S = 20.0
HALF, NEVER = "half", "protected"
SHOWN = ("mean", "p50", "p99", "max", "by_project", "by_gpu_hour")
COMPARED = tuple(kind for kind in SHOWN if kind != "p50")  # it is 0 in many samples
PLAIN = Settings()
SAVES = Rules(checkpoint_s=1800.0, restart_s=60.0)


def _as_it_is(job: TraceJob) -> TraceJob:
    return job


def _alike(job: TraceJob) -> TraceJob:
    return replace(job, project="all", user="all", preemptible=False)


def _one_project(job: TraceJob) -> TraceJob:
    return replace(job, project="all")


def _protected(job: TraceJob) -> TraceJob:
    return replace(job, preemptible=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a run, and the owners of its jobs."""

    owners: Callable[[TraceJob], TraceJob] = _as_it_is
    settings: Settings = PLAIN
    rules: Rules = SAVES


POLICIES = {
    "fifo": Policy(_alike),
    "pool": Policy(),
    "shortest": Policy(_one_project, Settings(order=Order.SHORTEST)),
    "turns": Policy(settings=Settings(turn_s=7200.0)),
    "told": Policy(_alike, rules=replace(SAVES, told=True)),
    "protected": Policy(_protected),
}


def chosen(path: Path, most: int | None) -> tuple[TraceJob, ...]:
    """Return the jobs of the protocol, at most the first ``most``."""
    jobs = read_trace(path, TraceFormat.PHILLY).jobs
    return tuple(job for job in jobs if FIRST <= job.submitted_s < END and job.request.count <= MOST_GPUS)[:most]


def thinned(jobs: tuple[TraceJob, ...], every: int, offset: int, days: float, day: float = 0) -> tuple[TraceJob, ...]:
    """Every so many-th of the smaller jobs of some days, from ``day`` on."""
    first, end = FIRST + day * DAY_S, FIRST + (day + days) * DAY_S
    some = [j for j in jobs if first <= j.submitted_s < end and j.request.count <= THIN_MOST_GPUS]
    return tuple(some[offset::every])


def compared(rows: Sequence[dict[str, Any]], order: str) -> dict[str, dict[str, float]]:
    """Return the mean over samples of each kind of delay, and its ratio to that without evictions.

    ``rows`` has the results by order for each sample. ``low`` and ``high`` enclose 90 % of the ratios of samples that
    are drawn from these samples again (bootstrap).
    """
    found: dict[str, dict[str, float]] = {}
    drawn = np.random.default_rng(1).integers(0, len(rows), (2000, len(rows)))
    for kind in COMPARED:
        ours, never = (np.array([row[each]["delay_h"][kind] for row in rows]) for each in (order, NEVER))
        low, high = np.percentile(ours[drawn].sum(axis=1) / never[drawn].sum(axis=1), [5, 95])
        values = {"hours": ours.mean(), "ratio": ours.sum() / never.sum(), "low": low, "high": high}
        found[kind] = {name: round(float(value), 3) for name, value in values.items()}
    return found


def queue(jobs: tuple[TraceJob, ...], nodes: Sequence[Node], policy: Policy) -> dict[str, object]:
    """Run the jobs once; times in hours."""
    simulation = Simulation(tuple(map(policy.owners, jobs)), nodes, (), policy.rules, policy.settings)
    began = perf_counter()
    shown = summary(simulation.run(Teller(began).tell))
    took = perf_counter() - began
    names = ("jobs", "finished", "left_waiting", "allocated", "stranded", "preemptions", "wasted_gpu_hours")
    kept = {name: shown[name] for name in names}
    most = max(fate.preemptions for fate in simulation.fates)
    used = sum(fate.used_permille_s for fate in simulation.fates)
    lost = sum(fate.wasted_permille_s for fate in simulation.fates)
    hours = {
        what: {name: round(seconds / 3600, 3) for name, seconds in shown[f"{what}_s"].items()}
        for what in ("wait", "delay")
    }
    hours["delay"] |= {
        "by_project": _mean_of_projects(simulation.fates),
        "by_gpu_hour": _mean_by_size(simulation.fates),
    }
    pace = {"seconds": round(took, 1), "starts_per_s": round(shown["starts"] / took), "decisions": shown["decisions"]}
    shares = {"wasted_part_of_used": round(lost / used, 4), "most_preemptions_of_a_job": most}
    return {"wait_h": hours["wait"], "delay_h": hours["delay"], **kept, **shares, **pace}


def _mean_of_projects(fates: Sequence[Fate]) -> float:
    """Return the mean of the projects' mean delays in hours."""
    delays: dict[str, list[float]] = defaultdict(list)
    for fate in fates:
        if fate.delay_s is not None:
            delays[fate.job.project].append(fate.delay_s / 3600)
    return round(mean(map(mean, delays.values())), 3)


def _mean_by_size(fates: Sequence[Fate]) -> float:
    """Return the mean delay in hours, weighted by the GPU time of the jobs."""
    ended = [(fate.delay_s / 3600, fate.job) for fate in fates if fate.delay_s is not None]
    weights = [job.duration_s * job.members * job.request.count * job.request.permille for _, job in ended]
    return round(fmean((hours for hours, _ in ended), weights), 3)


class Teller:
    """Prints the progress of a run."""

    def __init__(self, began: float) -> None:
        self.began, self.next = began, began + TOLD_EVERY_S

    def tell(self, submitted: int, jobs: int) -> None:
        """Print a progress line from time to time."""
        if perf_counter() >= self.next:
            self.next = perf_counter() + TOLD_EVERY_S
            print(f"  {submitted:,} of {jobs:,} jobs after {perf_counter() - self.began:.0f} s", flush=True)


def told(label: str, name: str, row: dict[str, object]) -> str:
    """Return a line of the table."""
    parts = [f"{label}  {name:<9}"]
    for what in ("wait_h", "delay_h"):
        hours = row[what]
        assert isinstance(hours, dict)
        parts.append(f"{what} " + " ".join(f"{which} {value:.2f}" for which, value in hours.items() if which in SHOWN))
    parts += [
        f"{which} {row[which]}"
        for which in ("allocated", "preemptions", "wasted_gpu_hours", "wasted_part_of_used", "seconds")
    ]
    return "  ".join(parts)


def main() -> None:
    """Run the loads and orders that were asked for, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that has philly/")
    parser.add_argument("--loads", nargs="+", type=float, choices=list(GPUS_AT), default=[0.95])
    parser.add_argument("--orders", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--checkpoint", nargs="+", default=["30m"], help="how often work saves: 30m, none, or half")
    parser.add_argument("--jobs", type=int, help="only the first so many")
    parser.add_argument("--thin", type=int, help="only every so many-th job, on 64 GPUs")
    parser.add_argument("--offsets", nargs="+", type=int, default=[0], help="with which job --thin begins")
    parser.add_argument("--days", type=float, default=10.0, help="of the thinned trace")
    parser.add_argument("--from-day", nargs="+", type=float, default=[0], help="with which day --thin begins")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-queueing.json")
    args = parser.parse_args()
    path = args.data / "philly" / "philly_jobs.csv"
    if not path.exists():
        raise SystemExit(f"{path} is not there: name the folder of the data as the first argument.")
    try:
        jobs = chosen(path, args.jobs)
    except GpupoolError as error:
        raise SystemExit(str(error)) from error
    tasks = list(tasks_of(args, jobs))
    table: dict[str, dict[str, Any]] = {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {"command": command(), "size": {"jobs": len(jobs), "first_jobs_only": args.jobs}}
    with ProcessPoolExecutor(args.workers) as workers:
        for task, row in zip(tasks, workers.map(Task.run, tasks), strict=True):
            size = {"gpus": capacity_of(task.nodes) // 1000, "jobs": len(task.jobs), "mean_wait_h_beside": task.beside}
            table.setdefault(task.title, {**size, "orders": {}})["orders"][task.order] = row
            print(told(task.title, task.order, row), flush=True)
            args.out.write_text(json.dumps({"machine": machine(), **kept, "results": table}, indent=2) + "\n")
    if args.thin and NEVER in args.orders:
        kept["samples"] = found = over_samples(tasks, table)
        args.out.write_text(json.dumps({"machine": machine(), **kept, "results": table}, indent=2) + "\n")
        for title, kinds in found.items():
            values = (f"{kind} {v['hours']} {v['ratio']} [{v['low']}, {v['high']}]" for kind, v in kinds.items())
            print(f"{title}  delay_h, ratio to {NEVER} [90 %]:  {'  '.join(values)}")


def over_samples(tasks: Sequence[Task], table: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the comparison of each order with ``protected`` over all samples of a load and a kind of checkpoints."""
    titles: dict[tuple[float, str], dict[str, None]] = defaultdict(dict)
    for task in tasks:
        titles[task.load, task.checkpoint][task.title] = None
    orders = dict.fromkeys(task.order for task in tasks)
    return {
        f"{load:.2f}, checkpoint {checkpoint}, {len(of_load)} samples, {order}": compared(
            [table[title]["orders"] for title in of_load], order
        )
        for (load, checkpoint), of_load in titles.items()
        for order in orders
    }


@dataclass(frozen=True, slots=True)
class Task:
    """One run: ``beside`` are results of other simulations."""

    load: float
    checkpoint: str
    title: str
    order: str
    jobs: tuple[TraceJob, ...]
    nodes: Sequence[Node]
    beside: dict[str, float]

    def run(self) -> dict[str, object]:
        """Run the jobs once."""
        return queue(self.jobs, self.nodes, saving(POLICIES[self.order], self.checkpoint))


def tasks_of(args: argparse.Namespace, jobs: tuple[TraceJob, ...]) -> Iterator[Task]:
    """Yield the requested runs."""
    for (load, label, some, nodes, beside), checkpoint in product(cases(args, jobs), args.checkpoint):
        title = label if checkpoint == "30m" else f"{label}, checkpoint {checkpoint}"
        saved = half_saving(some) if checkpoint == HALF else some
        for order in args.orders:
            yield Task(load, checkpoint, title, order, saved, nodes, beside)


Case = tuple[float, str, tuple[TraceJob, ...], Sequence[Node], dict[str, float]]


def cases(args: argparse.Namespace, jobs: tuple[TraceJob, ...]) -> Iterator[Case]:
    """Yield load, name, jobs, nodes, and results of other simulations."""
    for load in args.loads:
        if args.thin:
            nodes = parse_cluster(THIN_CLUSTER)
            for day, offset in product(args.from_day, args.offsets):
                some = thinned(jobs, args.thin, offset, args.days, day)
                label = f"{load:.2f}, every {args.thin}th from {offset}" + (f", day {day:g}" if day else "")
                yield load, label, at_load(some, capacity_of(nodes), load), nodes, {}
        else:
            beside = dict(zip(("fifo_skip", "shortest_first"), MEAN_WAIT_H[load], strict=True))
            nodes = parse_cluster(f"{GPUS_AT[load] // GPUS_PER_NODE}x{GPUS_PER_NODE}xP100")
            yield load, f"{load:.2f}", jobs, nodes, {} if args.jobs else beside


def saving(policy: Policy, checkpoint: str) -> Policy:
    """Return the policy with work that saves at this interval."""
    every = None if checkpoint in {"none", HALF} else parse_duration_s(checkpoint)
    return replace(policy, rules=replace(policy.rules, checkpoint_s=every))


def half_saving(jobs: tuple[TraceJob, ...]) -> tuple[TraceJob, ...]:
    """Return the jobs with every second one saving its state."""
    return tuple(replace(job, checkpoint_s=None if at % 2 else SAVES.checkpoint_s) for at, job in enumerate(jobs))


if __name__ == "__main__":
    main()
