"""How long one decision takes: `python benchmarks/scheduler/decide.py [--gpus 10000] [--queued 100000]`.

In process, one thread, no store, no network. Measured: taking over 100,000 queued replicas, filling an empty cluster,
one cycle after one of the running replicas ended (the usual decision), a cycle in which nothing is free, one
submission to a full cluster, and a reclaim by a project that is owed GPUs. Prints a table and writes JSON with the
machine and versions into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from gpupool.domain.access import Project
from gpupool.domain.gpu import Gpu, GpuRequest, Node, NodeReport
from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.scheduler import (
    LeaseReleased,
    NodeChanged,
    PendingAdded,
    ProjectChanged,
    Scheduler,
)
from gpupool.scheduling.values import PendingReplica, ReplicaKey

RESULTS = Path(__file__).parent.parent / "results"
NOW = 1_000_000.0
GPUS_PER_NODE = 8
SHAPES = (
    GpuRequest(1),
    GpuRequest(1),
    GpuRequest(1),
    GpuRequest(2),
    GpuRequest(4),
    GpuRequest(8),
    GpuRequest(1, 500),
    GpuRequest(1, 250),
    GpuRequest(1, 100),
    GpuRequest(1, 1000, 20_000),
)


def node(number: int) -> Node:
    """One machine of eight GPUs."""
    gpus = tuple(Gpu(f"{number}-{i}", i, "A100", 80_000) for i in range(GPUS_PER_NODE))
    return Node(NodeReport(f"node{number:05}", 128.0, 1_000_000, gpus, emulated=True, boot_id="", agent_version=""))


def replica(number: int, request: GpuRequest, project: str, *, preemptible: bool = True) -> PendingReplica:
    """One replica that waits."""
    return PendingReplica(
        workload=WorkloadId(f"w{number}"),
        index=0,
        project=project,
        user=f"user{number % 50}",
        request=request,
        queued_at=NOW + number / 1e6,
        preemptible=preemptible,
        cpus=1.0,
        memory_mib=1000,
    )


def timed(action: Callable[[], object]) -> float:
    """Milliseconds that an action took."""
    began = perf_counter()
    action()
    return (perf_counter() - began) * 1000


def spread(samples: list[float]) -> dict[str, float]:
    """Median, 99th percentile and worst of some times in milliseconds."""
    p50, p99 = np.percentile(samples, [50, 99])
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3), "worst_ms": round(max(samples), 3)}


def empty_cluster(gpus: int, projects: int, quota_permille: int | None) -> Scheduler:
    """A scheduler that knows the nodes and projects."""
    scheduler = Scheduler()
    for number in range(gpus // GPUS_PER_NODE):
        scheduler.apply(NodeChanged(node(number)))
    for number in range(projects):
        scheduler.apply(ProjectChanged(Project(f"project{number}", quota_permille)))
    return scheduler


def settle(scheduler: Scheduler, now: float) -> int:
    """Cycles until nothing more is granted; returns how many grants."""
    granted = 0
    while True:
        decisions = scheduler.decide(now)
        granted += len(decisions.grants)
        if not decisions.more:
            return granted


def fill(gpus: int) -> dict[str, float]:
    """An empty cluster filled with as many jobs of one GPU."""
    scheduler = empty_cluster(gpus, 10, None)
    for number in range(gpus):
        scheduler.apply(PendingAdded(replica(number, GpuRequest(1), f"project{number % 10}"), NOW))
    counts: list[int] = []
    took = timed(lambda: counts.append(settle(scheduler, NOW + 1)))
    return {"total_ms": round(took, 1), "grants": counts[0], "grants_per_s": round(counts[0] / took * 1000)}


def churn(gpus: int, queued: int, projects: int, rounds: int) -> dict[str, dict[str, float]]:
    """A full cluster with a deep queue: somebody ends, somebody comes, nothing happens."""
    rng = random.Random(1)
    scheduler = empty_cluster(gpus, projects, gpus * 1000 // projects)
    waiting = [replica(n, rng.choice(SHAPES), f"project{rng.randrange(projects)}") for n in range(queued + gpus)]
    took = timed(lambda: scheduler.apply_all(PendingAdded(r, NOW) for r in waiting))
    table: dict[str, dict[str, float]] = {"queue everything": {"total_ms": round(took, 1), "replicas": len(waiting)}}
    counts: list[int] = []
    took = timed(lambda: counts.append(settle(scheduler, NOW + 1)))
    table["fill with the mix"] = {"total_ms": round(took, 1), "grants": counts[0]}
    took = timed(lambda: counts.append(_fair(scheduler, {r.key: r for r in waiting}, NOW + 1000)))
    table["until nobody is owed"] = {"total_ms": round(took, 1), "evictions": counts[1]}
    table["one ends, decide"] = spread([_one_ends(scheduler, rng, NOW + 2000 + n) for n in range(rounds)])
    table["nothing free, decide"] = spread([timed(lambda: scheduler.decide(NOW + 2500)) for _ in range(rounds)])
    table["one comes, decide"] = spread([_one_comes(scheduler, rng, projects, n) for n in range(rounds)])
    table["left waiting"] = {"replicas": len(scheduler.demand.pending)}
    return table


def _fair(scheduler: Scheduler, replicas: dict[ReplicaKey, PendingReplica], now: float) -> int:
    """Cycles with all evictions carried out at once, until there are no more; returns how many there were."""
    total = 0
    while True:
        decisions = scheduler.decide(now)
        for eviction in decisions.evictions:
            scheduler.apply(LeaseReleased(eviction.key))
            scheduler.apply(PendingAdded(replicas[eviction.key], now))
        total += len(decisions.evictions)
        if not decisions.evictions and not decisions.grants:
            return total


def _one_ends(scheduler: Scheduler, rng: random.Random, now: float) -> float:
    key = rng.choice(list(scheduler.demand.running))
    return timed(lambda: (scheduler.apply(LeaseReleased(key)), scheduler.decide(now)))


def _one_comes(scheduler: Scheduler, rng: random.Random, projects: int, number: int) -> float:
    new = replica(10_000_000 + number, rng.choice(SHAPES), f"project{rng.randrange(projects)}")
    return timed(lambda: (scheduler.apply(PendingAdded(new, NOW)), scheduler.decide(NOW + 2501)))


def reclaim(gpus: int, rounds: int) -> dict[str, float]:
    """A cluster full of single GPUs over quota; each round one replica of eight whole GPUs is owed its place."""
    scheduler = empty_cluster(gpus, 0, None)
    scheduler.apply_all([ProjectChanged(Project("greedy", 0)), ProjectChanged(Project("owed", gpus * 1000))])
    for number in range(gpus // GPUS_PER_NODE * GPUS_PER_NODE):
        scheduler.apply(PendingAdded(replica(number, GpuRequest(1), "greedy"), NOW))
    settle(scheduler, NOW + 1)
    samples: list[float] = []
    for number in range(rounds):
        owed = replica(20_000_000 + number, GpuRequest(8), "owed", preemptible=False)
        scheduler.apply(PendingAdded(owed, NOW + 1000))
        evictions = []
        samples.append(timed(lambda: evictions.extend(scheduler.decide(NOW + 1000).evictions)))  # noqa: B023 - at once
        if len(evictions) != GPUS_PER_NODE:
            raise SystemExit(f"expected {GPUS_PER_NODE} evictions, got {len(evictions)}")
        for eviction in evictions:
            scheduler.apply(LeaseReleased(eviction.key))
        if len(scheduler.decide(NOW + 1001).grants) != 1:
            raise SystemExit("the reclaimed place was not granted")
    return spread(samples)


def machine() -> dict[str, object]:
    """Where this ran."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
    }


def main() -> None:
    """Run everything, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--projects", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-decide.json")
    args = parser.parse_args()
    table: dict[str, dict[str, float]] = {"fill, one GPU each": fill(args.gpus)}
    table |= churn(args.gpus, args.queued, args.projects, args.rounds)
    table["reclaim eight GPUs"] = reclaim(args.gpus, min(args.rounds, 20))
    table["memory"] = {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
    for name, row in table.items():
        print(f"{name:24}" + "  ".join(f"{key} {value:>10,}" for key, value in row.items()))
    size = {"gpus": args.gpus, "queued": args.queued, "projects": args.projects, "rounds": args.rounds}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": machine(), "size": size, "results": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
