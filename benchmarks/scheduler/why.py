"""Time to compute estimates and plans: `python benchmarks/scheduler/why.py [--gpus 10000] [--queued 100000]`.

In process, one thread. A full cluster with a deep queue of 100 projects with 50 users each, and past run times of every
user. Measured: wait reasons with estimates for replicas from all over the queue, and a plan for a new one. Prints the
milliseconds.
"""

from __future__ import annotations

import argparse
import random
from time import process_time

import numpy as np
from decide import NOW, SHAPES, node, replica

from gpupool.domain.people.access import Project
from gpupool.scheduling.explain.background import Background
from gpupool.scheduling.holds.runtime_model import RunTimes
from gpupool.scheduling.scheduler import NodeChanged, PendingAdded, ProjectChanged, Scheduler

GPUS_PER_NODE = 8


def full(gpus: int, queued: int, projects: int) -> Scheduler:
    """Return a cluster without free GPUs, and the workloads that wait for it."""
    rng = random.Random(1)
    scheduler = Scheduler()
    for number in range(gpus // GPUS_PER_NODE):
        scheduler.apply(NodeChanged(node(number)))
    for number in range(projects):
        scheduler.apply(ProjectChanged(Project(f"project{number}", gpus * 1000 // projects)))
    for number in range(queued + gpus):
        asked = replica(number, rng.choice(SHAPES), f"project{rng.randrange(projects)}")
        scheduler.apply(PendingAdded(asked, NOW))
    while scheduler.decide(NOW + 1).more:
        pass
    return scheduler


def report(name: str, samples: list[float]) -> None:
    """Return one line of the table."""
    p50, p99 = np.percentile(samples, [50, 99])
    print(f"{name:10} p50 {p50:7.1f} ms   p99 {p99:7.1f} ms   of processor time, {len(samples)} times")


def main() -> None:
    """Build the cluster, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--projects", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    scheduler = full(args.gpus, args.queued, args.projects)
    users = [(f"project{p}", f"user{u}") for p in range(args.projects) for u in range(50)]
    known = Background({who: RunTimes(20, 3600.0 + n % 997, 900.0, 7200.0) for n, who in enumerate(users)})
    rng = random.Random(2)
    keys = rng.sample(list(scheduler.demand.pending), args.rounds)
    why, plans, decisions = [], [], []
    for number, key in enumerate(keys):
        began = process_time()
        found = scheduler.explain(key, NOW + 2000, background=known)
        why.append((process_time() - began) * 1000)
        asked = replica(10_000_000 + number, rng.choice(SHAPES), "project1")
        began = process_time()
        scheduler.decide(NOW + 2000)
        decisions.append((process_time() - began) * 1000)
        began = process_time()
        scheduler.plan([asked], NOW + 2000, known)
        plans.append((process_time() - began) * 1000)
    if found is not None:
        print(f"for example: {found.sentence}; in {found.estimate_s} s, from {found.estimate_basis}")
    print(f"{len(scheduler.demand.running):,} run, {len(scheduler.demand.pending):,} wait")
    report("why", why)
    report("plan", plans)
    report("decide", decisions)


if __name__ == "__main__":
    main()
