"""How long work waits: `python benchmarks/scheduler/queueing.py DATA [--loads 0.95] [--orders ...] [--jobs N]`.

The 68,510 jobs of at most 64 GPUs that the Philly subset has in October and November 2017, on one pool of nodes of
eight GPUs which is just so large that they offer it the load: 592, 496 and 448 GPUs at 0.80, 0.95 and 1.05. Work for
more than eight GPUs is a gang of replicas, one on each node. All of it is training and may be evicted. Every order is
one run of the scheduler itself:

  fifo      first come, first served, smaller work slipping past: one project, one user
  pool      what a pool does by itself: the virtual clusters are projects without quotas, by fair share
  shortest  the pool setting `order: shortest`: one project, its users the virtual clusters; by how long such work ran
  turns     the pool setting `turn: 2h` and else as `pool`: who has run for two hours makes way; evicted work has saved
            what it had done after every 30 minutes of running and needs 60 s to start again
  told      shortest job first by its true run time, which no scheduler knows: one project, one user

Given are the hours from submission to the first start (`wait_h`), and by how much later than alone jobs ended
(`delay_h`), which has in it what evictions cost. Beside it, for the whole trace: what a simulation of the same jobs
that only counts GPUs gave for first come, first served with up to 200 skipped, and for shortest job first. With
--jobs only the first so many are submitted; the figures beside it do not hold then. All loads and orders of the whole
trace take more than an hour on two cores: the default is one load. Prints a table and writes JSON into
benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from decide import RESULTS, machine

from gpupool.domain.errors import GpupoolError
from gpupool.scheduling.order import Order
from gpupool.scheduling.values import Settings
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.files import read_trace
from gpupool.simulate.metrics import summary
from gpupool.simulate.traces import TraceFormat
from gpupool.simulate.values import Job, Rules

FIRST, END = (datetime(2017, month, 1, tzinfo=UTC).timestamp() for month in (10, 12))
MOST_GPUS = 64
GPUS_PER_NODE = 8
GPUS_AT = {0.80: 592, 0.95: 496, 1.05: 448}
MEAN_WAIT_H = {  # load: first come first served with skipping, shortest job first with skipping
    0.80: (1.78, 0.61),
    0.95: (10.74, 1.96),
    1.05: (41.34, 3.11),
}
TOLD_EVERY_S = 20.0
PLAIN = Settings()
SAVES = Rules(checkpoint_s=1800.0, restart_s=60.0)


def _as_it_is(job: Job) -> Job:
    return job


def _alike(job: Job) -> Job:
    return replace(job, project="all", user="all")


def _one_project(job: Job) -> Job:
    return replace(job, project="all")


@dataclass(frozen=True, slots=True)
class Policy:
    """What a run is: whose the jobs are, and the settings."""

    owners: Callable[[Job], Job] = _as_it_is
    settings: Settings = PLAIN
    rules: Rules = SAVES


POLICIES = {
    "fifo": Policy(_alike),
    "pool": Policy(),
    "shortest": Policy(_one_project, Settings(order=Order.SHORTEST)),
    "turns": Policy(settings=Settings(turn_s=7200.0)),
    "told": Policy(_alike, rules=replace(SAVES, told=True)),
}


def chosen(path: Path, most: int | None) -> tuple[Job, ...]:
    """The jobs of the protocol, at most the first ``most``."""
    jobs = read_trace(path, TraceFormat.PHILLY).jobs
    return tuple(job for job in jobs if FIRST <= job.submitted_s < END and job.request.count <= MOST_GPUS)[:most]


def queue(jobs: tuple[Job, ...], load: float, policy: Policy) -> dict[str, object]:
    """One run at a load: times in hours."""
    nodes = parse_cluster(f"{GPUS_AT[load] // GPUS_PER_NODE}x{GPUS_PER_NODE}xP100")
    simulation = Simulation(tuple(map(policy.owners, jobs)), nodes, (), policy.rules, policy.settings)
    began = perf_counter()
    shown = summary(simulation.run(Teller(began).tell))
    took = perf_counter() - began
    names = ("jobs", "finished", "left_waiting", "allocated", "stranded", "preemptions", "wasted_gpu_hours")
    kept = {name: shown[name] for name in names}
    most = max(fate.preemptions for fate in simulation.fates)
    hours = {
        what: {name: round(seconds / 3600, 3) for name, seconds in shown[f"{what}_s"].items()}
        for what in ("wait", "delay")
    }
    pace = {"seconds": round(took, 1), "starts_per_s": round(shown["starts"] / took), "decisions": shown["decisions"]}
    return {"wait_h": hours["wait"], "delay_h": hours["delay"], **kept, "most_preemptions_of_a_job": most, **pace}


class Teller:
    """Says on stdout how far a run has come."""

    def __init__(self, began: float) -> None:
        self.began, self.next = began, began + TOLD_EVERY_S

    def tell(self, submitted: int, jobs: int) -> None:
        """A line now and then."""
        if perf_counter() >= self.next:
            self.next = perf_counter() + TOLD_EVERY_S
            print(f"  {submitted:,} of {jobs:,} jobs after {perf_counter() - self.began:.0f} s", flush=True)


def told(load: float, name: str, row: dict[str, object]) -> str:
    """A line of the table."""
    parts = [f"load {load:.2f}  {name:<8}"]
    for what in ("wait_h", "delay_h"):
        hours = row[what]
        assert isinstance(hours, dict)
        parts.append(f"{what} " + " ".join(f"{which} {hours[which]:.2f}" for which in ("mean", "p50", "p99", "max")))
    parts += [f"{which} {row[which]}" for which in ("allocated", "preemptions", "wasted_gpu_hours", "seconds")]
    return "  ".join(parts)


def main() -> None:
    """Run the loads and orders that were asked for, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that has philly/")
    parser.add_argument("--loads", nargs="+", type=float, choices=list(GPUS_AT), default=[0.95])
    parser.add_argument("--orders", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--jobs", type=int, help="only the first so many")
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-queueing.json")
    args = parser.parse_args()
    path = args.data / "philly" / "philly_jobs.csv"
    if not path.exists():
        raise SystemExit(f"{path} is not there: name the folder of the data as the first argument.")
    try:
        jobs = chosen(path, args.jobs)
    except GpupoolError as error:
        raise SystemExit(str(error)) from error
    command = " ".join(["python", f"benchmarks/scheduler/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    table: dict[str, dict[str, object]] = {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for load in args.loads:
        beside = dict(zip(("fifo_skip", "shortest_first"), MEAN_WAIT_H[load], strict=True)) if not args.jobs else {}
        orders: dict[str, object] = {}
        table[f"{load:.2f}"] = {"gpus": GPUS_AT[load], "mean_wait_h_beside": beside, "orders": orders}
        for name in args.orders:
            orders[name] = row = queue(jobs, load, POLICIES[name])
            print(told(load, name, row), flush=True)
            size = {"jobs": len(jobs), "first_jobs_only": args.jobs}
            kept = {"machine": machine(), "command": command, "size": size, "results": table}
            args.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
