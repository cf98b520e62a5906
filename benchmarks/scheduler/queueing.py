"""How long work waits: `python benchmarks/scheduler/queueing.py [DATA] [--loads 0.80 0.95 1.05] [--jobs N]`.

The 68,510 jobs of at most 64 GPUs that the Philly subset has in October and November 2017, on one pool of nodes of
eight GPUs which is just so large that they offer it the load: 592, 496 and 448 GPUs. The scheduler is not told how
long a job will run. The virtual clusters are projects without quotas; work for more than eight GPUs is split into
replicas, one for each node, and has waited until the last has started. Beside it, for the whole trace: the mean waiting
time of first come, first served with skipping, and of shortest job first, which is told the durations (a simulation of
the same jobs that counts GPUs). With --jobs only the first so many are submitted; the figures beside it do not hold
then. Prints a table and writes JSON into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from decide import RESULTS, machine

from gpupool.domain.errors import GpupoolError
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


def chosen(path: Path, most: int | None) -> tuple[Job, ...]:
    """The jobs of the protocol, at most the first ``most``."""
    jobs = read_trace(path, TraceFormat.PHILLY).jobs
    return tuple(job for job in jobs if FIRST <= job.submitted_s < END and job.request.count <= MOST_GPUS)[:most]


def queue(jobs: tuple[Job, ...], load: float, *, whole: bool) -> dict[str, object]:
    """One run at a load: waiting times in hours."""
    simulation = Simulation(jobs, parse_cluster(f"{GPUS_AT[load] // GPUS_PER_NODE}x{GPUS_PER_NODE}xP100"), (), Rules())
    began = perf_counter()
    shown = summary(simulation.run(Teller(began).tell))
    took = perf_counter() - began
    kept = {name: shown[name] for name in ("jobs", "finished", "left_waiting", "allocated", "stranded", "preemptions")}
    hours = {name: round(seconds / 3600, 3) for name, seconds in shown["wait_s"].items()}
    beside = dict(zip(("fifo_skip", "shortest_first"), MEAN_WAIT_H[load], strict=True)) if whole else {}
    pace = {"seconds": round(took, 1), "starts_per_s": round(shown["starts"] / took), "decisions": shown["decisions"]}
    return {"gpus": GPUS_AT[load], "wait_h": hours, "mean_wait_h_beside": beside, **kept, **pace}


class Teller:
    """Says on stdout how far a run has come."""

    def __init__(self, began: float) -> None:
        self.began, self.next = began, began + TOLD_EVERY_S

    def tell(self, submitted: int, jobs: int) -> None:
        """A line now and then."""
        if perf_counter() >= self.next:
            self.next = perf_counter() + TOLD_EVERY_S
            print(f"  {submitted:,} of {jobs:,} jobs after {perf_counter() - self.began:.0f} s", flush=True)


def main() -> None:
    """Run the loads that were asked for, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data"), help="folder that has philly/")
    parser.add_argument("--loads", nargs="+", type=float, choices=list(GPUS_AT), default=list(GPUS_AT))
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
    size = {"jobs": len(jobs), "first_jobs_only": args.jobs}
    table: dict[str, dict[str, object]] = {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for load in args.loads:
        table[f"{load:.2f}"] = row = queue(jobs, load, whole=args.jobs is None)
        print(f"load {load:.2f}  " + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        kept = {"machine": machine(), "command": command, "size": size, "results": table}
        args.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
