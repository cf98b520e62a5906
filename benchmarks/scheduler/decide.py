"""Measure the time of one decision: `python benchmarks/scheduler/decide.py [DATA] [--queued 100000] [--projects 1000]`.

In process, one thread, no store, no network, no API server. DATA is a folder with `nodes/alibaba2026_10412_gpus.csv`
(4,278 nodes, 10,412 GPUs) and `openb/openb_pod_list_default.csv`, from whose requests the queue is drawn; without it,
nodes of eight GPUs and a synthetic mix. All work is training, of users of many projects with one quota each. Measured:

- loading the queue, and filling an empty cluster with jobs of one GPU;
- on a full cluster, one decision after the end of one running replica (the usual case), and the cycles that this one
  requests (eviction follows the allocation of free GPUs); one replica ends per second, and victims end after 30;
- a decision without a change, after one submission, and (with DATA) after the submission of a gang of 80 GPUs, if it
  has no possible place;
- reclaim of eight GPUs;
- the usual decision before and after one user has queued thousands of jobs that all differ (`--flood`), and after all
  projects together have queued as many jobs that differ in CPUs and memory.

Times are wall-clock times; `cpu_p50_ms` and `cpu_p99_ms` are CPU times, for a machine that others use as well. Prints a
table and writes JSON with the machine and versions into benchmarks/results.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import resource
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from gpupool.daemon.control_plane import pause_full_collections
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node, NodeReport
from gpupool.domain.people.access import Project
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.scheduler import (
    Event,
    LeaseReleased,
    NodeChanged,
    PendingAdded,
    PendingRemoved,
    ProjectChanged,
    Scheduler,
)
from gpupool.scheduling.values import Decisions, PendingReplica, ReplicaKey

RESULTS = Path(__file__).parent.parent / "results"
NOW = 1_000_000.0
GPUS_PER_NODE = 8
GRACE_S = 30.0  # from an eviction to the end of its victim
MAX_CYCLES = 2000  # until no project is below its share: each evicts some tens of replicas
NODES = "nodes/alibaba2026_10412_gpus.csv"
PODS = "openb/openb_pod_list_default.csv"
Times = tuple[float, float]  # wall-clock milliseconds and CPU milliseconds
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
    """Return a machine with eight GPUs."""
    gpus = tuple(Gpu(f"{number}-{i}", i, "A100", 80_000) for i in range(GPUS_PER_NODE))
    return Node(NodeReport(f"node{number:05}", 128.0, 1_000_000, gpus, emulated=True, boot_id="", agent_version=""))


@dataclass(frozen=True)
class Size:
    """Inputs of a measurement: nodes, requests that the queue draws from (with CPUs), and counts."""

    nodes: list[Node]
    requests: list[tuple[GpuRequest, float]]
    queued: int
    projects: int
    rounds: int

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all nodes."""
        return sum(len(node.report.gpus) for node in self.nodes)


def read_cluster(data: Path) -> list[Node]:
    """Return the nodes of the file: model, GPUs, CPUs, name."""
    nodes = []
    with (data / NODES).open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            count, model = int(row["gpu_capacity_num"]), row["gpu_model"]
            gpus = tuple(Gpu(f"{number}-{i}", i, model, 80_000) for i in range(count))
            cpus = float(row["cpu_num"])
            report = NodeReport(f"node{number:05}", cpus, 1_000_000, gpus, emulated=True, boot_id="", agent_version="")
            nodes.append(Node(report))
    return nodes


def read_requests(data: Path) -> list[tuple[GpuRequest, float]]:
    """Return the GPU requests of the trace; GPU models are left out, because the nodes have others."""
    with (data / PODS).open() as file:
        pods = [row for row in csv.DictReader(file) if int(row["num_gpu"]) > 0]
    return [(GpuRequest(int(p["num_gpu"]), int(p["gpu_milli"]) or 1000), int(p["cpu_milli"]) / 1000) for p in pods]


def replica(  # noqa: PLR0913 - the fields that differ
    number: int,
    request: GpuRequest,
    project: str,
    *,
    preemptible: bool = True,
    cpus: float = 1.0,
    gang: Gang | None = None,
    index: int = 0,
) -> PendingReplica:
    """Return a waiting replica."""
    return PendingReplica(
        workload=WorkloadId(f"w{number}"),
        index=index,
        project=project,
        user=f"user{number % 50}",
        request=request,
        queued_at=NOW + number / 1e6,
        preemptible=preemptible,
        cpus=cpus,
        memory_mib=1000,
        gang=gang,
    )


def timed(action: Callable[[], object]) -> Times:
    """Measure wall and CPU milliseconds of an action."""
    began, worked = perf_counter(), process_time()
    action()
    return (perf_counter() - began) * 1000, (process_time() - worked) * 1000


def spread(samples: list[Times]) -> dict[str, float]:
    """Return median, 99th percentile and maximum of times in milliseconds."""
    wall, cpu = zip(*samples, strict=True)
    (p50, p99), (cpu50, cpu99) = np.percentile(wall, [50, 99]), np.percentile(cpu, [50, 99])
    found = {"p50_ms": p50, "p99_ms": p99, "worst_ms": max(wall), "cpu_p50_ms": cpu50, "cpu_p99_ms": cpu99}
    return {name: round(float(value), 3) for name, value in found.items()}


def empty_cluster(size: Size, quota_permille: int | None) -> Scheduler:
    """Return a scheduler with the nodes and projects."""
    scheduler = Scheduler()
    scheduler.apply_all(NodeChanged(node) for node in size.nodes)
    scheduler.apply_all(ProjectChanged(Project(f"project{n}", quota_permille)) for n in range(size.projects))
    return scheduler


def settle(scheduler: Scheduler, now: float) -> int:
    """Run cycles until nothing more is granted; return the number of grants."""
    granted = 0
    while True:
        decisions = scheduler.decide(now)
        granted += len(decisions.grants)
        if not decisions.more:
            return granted


def fill(size: Size) -> dict[str, float]:
    """Fill an empty cluster with 10,000 one-GPU jobs, or as many as it has GPUs."""
    scheduler = empty_cluster(replace(size, projects=10), None)
    jobs = min(10_000, size.gpus)
    for number in range(jobs):
        scheduler.apply(PendingAdded(replica(number, GpuRequest(1), f"project{number % 10}"), NOW))
    counts: list[int] = []
    took, cpu = timed(lambda: counts.append(settle(scheduler, NOW + 1)))
    rate = round(counts[0] / took * 1000)
    return {"total_ms": round(took, 1), "cpu_ms": round(cpu, 1), "grants": counts[0], "grants_per_s": rate}


def churn(size: Size) -> dict[str, dict[str, float]]:
    """Measure a full cluster with a long queue: a job ends, a job is submitted, nothing happens."""
    rng = random.Random(1)
    scheduler = empty_cluster(size, size.gpus * 1000 // size.projects)
    waiting = [_drawn(size, rng, number) for number in range(size.queued + size.gpus)]
    took = timed(lambda: scheduler.apply_all(PendingAdded(r, NOW) for r in waiting))
    table: dict[str, dict[str, float]] = {"queue everything": {"total_ms": round(took[0], 1), "replicas": len(waiting)}}
    counts: list[int] = []
    took = timed(lambda: counts.append(settle(scheduler, NOW + 1)))
    table["fill with the mix"] = {"total_ms": round(took[0], 1), "grants": counts[0]}
    took = timed(lambda: counts.extend(_fair(scheduler, {r.key: r for r in waiting}, NOW + 1000)))
    table["until nobody is owed"] = {"total_ms": round(took[0], 1), "evictions": counts[1], "cycles": counts[2]}
    pause_full_collections()  # as the control plane does
    victims = Victims(scheduler, {r.key: r for r in waiting})
    ends = [_one_ends(scheduler, victims, rng, NOW + 2000 + n) for n in range(size.rounds)]
    table["one ends, decide"] = spread([times[0] for times in ends])
    table["one ends, what follows"] = spread([_sum(times[1:]) for times in ends])
    later = NOW + 2001 + size.rounds
    table["nothing free, decide"] = spread([timed(lambda: scheduler.decide(later)) for _ in range(size.rounds)])
    comes = [_one_comes(scheduler, victims, size, rng, later + n) for n in range(size.rounds)]
    table["one comes, decide"] = spread([times[0] for times in comes])
    table["one comes, what follows"] = spread([_sum(times[1:]) for times in comes])
    if len({len(node.report.gpus) for node in size.nodes}) > 1:  # among equal nodes it has a place
        gangs = [took for n in range(20) if (took := _unschedulable(scheduler, later + 1000 + n)) is not None]
        if gangs:
            table["80-GPU gang, no place"] = spread(gangs)
    table["left waiting"] = {"replicas": len(scheduler.demand.pending), "running": len(scheduler.demand.running)}
    return table


def _drawn(size: Size, rng: random.Random, number: int) -> PendingReplica:
    request, cpus = rng.choice(size.requests)
    return replica(number, request, f"project{rng.randrange(size.projects)}", cpus=cpus)


def _fair(scheduler: Scheduler, replicas: dict[ReplicaKey, PendingReplica], now: float) -> tuple[int, int]:
    """Run cycles with immediate evictions until there are no more; return the numbers of evictions and cycles."""
    total = 0
    for cycle in range(MAX_CYCLES):
        decisions = scheduler.decide(now + cycle)
        for eviction in decisions.evictions:
            scheduler.apply(LeaseReleased(eviction.key))
            scheduler.apply(PendingAdded(replicas[eviction.key], now + cycle))
        total += len(decisions.evictions)
        if not decisions.evictions and not decisions.grants and not decisions.exhausted:
            return total, cycle + 1
    raise SystemExit("the cluster does not come to rest")


class Victims:
    """The evicted replicas: each ends ``GRACE_S`` after its eviction, and then waits again."""

    def __init__(self, scheduler: Scheduler, replicas: dict[ReplicaKey, PendingReplica]) -> None:
        self._scheduler, self._replicas = scheduler, replicas
        self._ending: deque[tuple[float, ReplicaKey]] = deque()

    def note(self, decisions: Decisions, now: float) -> None:
        """Remember the evicted replicas."""
        self._ending += [(now + GRACE_S, eviction.key) for eviction in decisions.evictions]

    def end(self, now: float) -> None:
        """End those whose time has come."""
        while self._ending and self._ending[0][0] <= now:
            _, key = self._ending.popleft()
            if key in self._scheduler.demand.running:  # it has not ended by itself
                self._scheduler.apply(LeaseReleased(key))
                if (evicted := self._replicas.get(key)) is not None:  # else it was submitted during the rounds
                    self._scheduler.apply(PendingAdded(evicted, now))


def _one_ends(scheduler: Scheduler, victims: Victims, rng: random.Random, now: float) -> list[Times]:
    key = rng.choice(list(scheduler.demand.running))
    return _cycles(scheduler, victims, LeaseReleased(key), now)


def _one_comes(scheduler: Scheduler, victims: Victims, size: Size, rng: random.Random, now: float) -> list[Times]:
    return _cycles(scheduler, victims, PendingAdded(_drawn(size, rng, round(now * 10)), now), now)


def _cycles(scheduler: Scheduler, victims: Victims, event: Event, now: float) -> list[Times]:
    """Measure an event and the ends of victims with the cycle, then each cycle that this one requested."""
    decided: list[Decisions] = []

    def first() -> None:
        victims.end(now)
        scheduler.apply(event)
        decided.append(scheduler.decide(now))

    took = [timed(first)]
    while decided[-1].more:
        took.append(timed(lambda: decided.append(scheduler.decide(now))))
    for decisions in decided:
        victims.note(decisions, now)
    return took


def _sum(times: list[Times]) -> Times:
    return sum(wall for wall, _ in times), sum(cpu for _, cpu in times)


def _unschedulable(scheduler: Scheduler, now: float) -> Times | None:
    """Measure ten members of eight GPUs in a project with enough quota; None if ten nodes can be cleared for them."""
    scheduler.apply(ProjectChanged(Project("large", 80_000)))
    gang = Gang(10, 10)
    members = [replica(round(now * 10), GpuRequest(8), "large", cpus=60.0, gang=gang, index=n) for n in range(10)]
    scheduler.apply_all(PendingAdded(member, now) for member in members)
    found = []
    took = timed(lambda: found.append(scheduler.decide(now)))
    placed = any(hold.workload == members[0].workload for hold in found[0].holds)
    scheduler.apply_all(PendingRemoved(member.key) for member in members)
    return None if placed else took


def reclaim(size: Size) -> dict[str, float]:
    """Measure a cluster full of one-GPU jobs over quota; each round a replica of eight GPUs reclaims its quota."""
    scheduler = empty_cluster(replace(size, projects=0), None)
    scheduler.apply_all([ProjectChanged(Project("greedy", 0)), ProjectChanged(Project("owed", size.gpus * 1000))])
    for number in range(size.gpus):
        scheduler.apply(PendingAdded(replica(number, GpuRequest(1), "greedy"), NOW))
    settle(scheduler, NOW + 1)
    samples: list[Times] = []
    for number in range(min(size.rounds, 20)):
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


def flood(size: Size, count: int) -> dict[str, dict[str, float]]:
    """Measure a full cluster before and after one user has queued jobs of which no two have the same CPUs."""
    rng, few = random.Random(1), replace(size, projects=100)
    scheduler = empty_cluster(few, size.gpus * 10)
    waiting = [_drawn(few, rng, number) for number in range(size.gpus + 2000)]
    scheduler.apply_all(PendingAdded(r, NOW) for r in waiting)
    settle(scheduler, NOW + 1)
    pause_full_collections()
    rounds, victims = min(size.rounds, 20), Victims(scheduler, {r.key: r for r in waiting})
    before = [_one_ends(scheduler, victims, rng, NOW + 2000 + n)[0] for n in range(rounds)]
    jobs = (
        replace(replica(10**7 + n, GpuRequest(1), "project0", cpus=1 + n / 1000), user="flood") for n in range(count)
    )
    scheduler.apply_all(PendingAdded(job, NOW + 3000) for job in jobs)
    settle(scheduler, NOW + 3001)
    after = [_one_ends(scheduler, victims, rng, NOW + 4000 + n)[0] for n in range(rounds)]
    return {
        "one ends, no flood": spread(before),
        "one ends, flood": spread(after) | {"requests": count},
    }


def variety(size: Size, count: int) -> dict[str, dict[str, float]]:
    """Measure a full cluster whose queue has jobs of all projects of which no two have the same CPUs and memory."""
    rng, scheduler = random.Random(1), empty_cluster(size, size.gpus * 1000 // size.projects)
    waiting = [_drawn(size, rng, number) for number in range(size.gpus + 2000)]
    scheduler.apply_all(PendingAdded(r, NOW) for r in waiting)
    settle(scheduler, NOW + 1)
    drawn = (_drawn(size, rng, 10**7 + number) for number in range(count))
    jobs = [
        replace(job, cpus=rng.randrange(100, 12_000) * max(job.request.count, 1) / 1000, memory_mib=100 + number)
        for number, job in enumerate(drawn)
    ]
    scheduler.apply_all(PendingAdded(job, NOW + 2) for job in jobs)
    settle(scheduler, NOW + 3)
    pause_full_collections()
    victims = Victims(scheduler, {r.key: r for r in [*waiting, *jobs]})
    ends = [_one_ends(scheduler, victims, rng, NOW + 1000 + n) for n in range(size.rounds)]
    return {
        "one ends, all differ": spread([times[0] for times in ends]) | {"requests": count},
        "all differ, what follows": spread([_sum(times[1:]) for times in ends]),
    }


def command() -> str:
    """Return the command of this run; the folder of the data is written as DATA."""
    words = ("DATA" if Path(word).is_dir() else word for word in sys.argv[1:])
    return " ".join(["python", f"benchmarks/scheduler/{Path(sys.argv[0]).name}", *words])


def machine() -> dict[str, object]:
    """Return the environment of this run."""
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


def write_result(path: Path, result: dict[str, object]) -> None:
    """Store a result, with its place and method of measurement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"machine": machine(), "command": command(), **result}
    path.write_text(json.dumps(kept, indent=2) + "\n")


def main() -> None:
    """Run, print and store all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder with the node list and the trace")
    parser.add_argument("--gpus", type=int, default=10_000, help="GPUs of the made-up cluster")
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--projects", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--flood", type=int, default=30_000, help="different requests of one user, and then of all")
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-decide.json")
    args = parser.parse_args()
    nodes = read_cluster(args.data) if args.data else [node(n) for n in range(args.gpus // GPUS_PER_NODE)]
    requests = read_requests(args.data) if args.data else [(request, 1.0) for request in SHAPES]
    size = Size(nodes, requests, args.queued, args.projects, args.rounds)
    table = churn(size)
    table["memory"] = {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
    table |= {"fill, one GPU each": fill(size), "reclaim eight GPUs": reclaim(size)}
    table |= flood(size, args.flood) | variety(size, args.flood)
    for name, row in table.items():
        print(f"{name:25}" + "  ".join(f"{key} {value:>10,}" for key, value in row.items()))
    shown = {
        "nodes": len(nodes),
        "gpus": size.gpus,
        "shapes": len(set(requests)),
        "queued": args.queued,
        "projects": args.projects,
        "rounds": args.rounds,
    }
    write_result(args.out, {"size": shown, "results": table})


if __name__ == "__main__":
    main()
