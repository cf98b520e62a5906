"""Measure one whole cycle on small clusters: `python benchmarks/scheduler/cycles.py [--runs 7]`.

The cases are those of KAI-Scheduler's in-process benchmarks, on nodes of eight GPUs: allocate to an empty cluster, a
full cycle with half of the jobs running, many queues, gangs, preemption inside a project, and consolidation. Jobs take
one GPU unless the case says otherwise. As there, the time includes all steps: loading nodes, projects, running and
waiting jobs, and the decision of the scheduler. In process, one thread; no API server, no store and no network on
either side. Their figures (Intel Core Ultra 7 165H) are from docs/developer/designs/vectorizing-resources of
KAI-Scheduler; about 100 ms of each are the fixed cost of a session there. `cpu ms` is the CPU time, for a machine that
others use as well.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from decide import GPUS_PER_NODE, NOW, RESULTS, node, replica, write_result

from gpupool.domain.ids import Epoch
from gpupool.domain.nodes.gpu import GpuRequest, GpuShare
from gpupool.domain.people.access import Project
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.workload import GpuLease
from gpupool.scheduling.scheduler import LeaseTaken, NodeChanged, PendingAdded, ProjectChanged, Scheduler
from gpupool.scheduling.values import Decisions, PendingReplica, RunningReplica


@dataclass(frozen=True)
class World:
    """The initial state of a case: nodes, projects, running and waiting jobs."""

    nodes: int
    projects: list[Project]
    running: list[RunningReplica]
    waiting: list[PendingReplica]


@dataclass(frozen=True)
class Case:
    """One measurement, the published time of KAI, and the expected result."""

    name: str
    world: Callable[[], World]
    kai_ms: float
    right: Callable[[Decisions], bool]


def jobs(count: int, queues: int = 1, gpus: int = 1, first: int = 0) -> list[PendingReplica]:
    """Return waiting jobs, from each queue in turn."""
    return [replica(first + n, GpuRequest(gpus), f"queue{n % queues}") for n in range(count)]


def started(waiting: PendingReplica, at: int, slots: tuple[int, ...], age_s: float = 5000.0) -> RunningReplica:
    """Return the same job on some GPUs of a node."""
    shares = tuple(GpuShare(f"{at}-{slot}", slot, 1000, 80_000) for slot in slots)
    lease = GpuLease(
        epoch=Epoch(1),
        workload=waiting.workload,
        index=waiting.index,
        attempt=1,
        project=waiting.project,
        user=waiting.user,
        node=f"node{at:05}",
        shares=shares,
        cpus=waiting.cpus,
        memory_mib=waiting.memory_mib,
        granted_at=NOW - age_s,
    )
    request = GpuRequest(len(slots))
    return RunningReplica(lease, NOW - age_s, waiting.priority, waiting.preemptible, request=request)


def projects(count: int, nodes: int) -> list[Project]:
    """Return projects with equal shares of the cluster."""
    return [Project(f"queue{n}", nodes * GPUS_PER_NODE * 1000 // count) for n in range(count)]


def allocate(nodes: int, count: int, queues: int = 1) -> World:
    """Measure an empty cluster."""
    return World(nodes, projects(queues, nodes), [], jobs(count, queues))


def half_running(nodes: int, count: int) -> World:
    """Measure a cluster in which half of the jobs run and the others wait."""
    half = [started(job, n % nodes, ((n // nodes) % GPUS_PER_NODE,)) for n, job in enumerate(jobs(count // 2))]
    return World(nodes, projects(1, nodes), half, jobs(count - count // 2, first=count))


def gangs(nodes: int, count: int, members: int) -> World:
    """Measure gangs of one-GPU members in an empty cluster."""
    waiting = [replace(job, index=i, gang=Gang(members, members)) for job in jobs(count) for i in range(members)]
    return World(nodes, projects(1, nodes), [], waiting)


def preempt(nodes: int, count: int) -> World:
    """Measure a cluster full of low-priority jobs with some jobs of higher priority."""
    slots = [(at, slot) for at in range(nodes) for slot in range(GPUS_PER_NODE)]
    full = [started(job, at, (slot,)) for job, (at, slot) in zip(jobs(len(slots)), slots, strict=True)]
    important = [replace(job, priority=10) for job in jobs(count, first=len(slots))]
    return World(nodes, projects(1, nodes), full, important)


def pieces(nodes: int, count: int) -> World:
    """Measure nodes that are half full with one-GPU jobs; one job needs a whole node."""
    half = [
        started(job, n % nodes, ((n // nodes) % GPUS_PER_NODE,))
        for n, job in enumerate(jobs(min(count, nodes * GPUS_PER_NODE // 2)))
    ]
    large = replace(replica(10**6, GpuRequest(GPUS_PER_NODE), "queue0"), queued_at=NOW - 10_000)
    return World(nodes, projects(1, nodes), half, [large])


def grants(count: int) -> Callable[[Decisions], bool]:
    """Check that this number of jobs starts."""
    return lambda decisions: len(decisions.grants) == count


CASES = (
    Case("allocate 10 nodes, 50 jobs", lambda: allocate(10, 50), 108.8, grants(50)),
    Case("allocate 50 nodes, 200 jobs", lambda: allocate(50, 200), 130.2, grants(200)),
    Case("allocate 100 nodes, 500 jobs", lambda: allocate(100, 500), 189.1, grants(500)),
    Case("full cycle 10 nodes, 50 jobs", lambda: half_running(10, 50), 105.9, grants(25)),
    Case("full cycle 50 nodes, 200 jobs", lambda: half_running(50, 200), 119.9, grants(100)),
    Case("full cycle 100 nodes, 500 jobs", lambda: half_running(100, 500), 148.6, grants(250)),
    Case("many queues: 50 nodes, 200 jobs, 20", lambda: allocate(50, 200, 20), 135.0, grants(200)),
    Case("gangs: 50 nodes, 100 of 4", lambda: gangs(50, 100, 4), 143.4, grants(400)),
    Case("preempt 10 nodes, 50 jobs", lambda: preempt(10, 50), 103.9, lambda d: len(d.evictions) == 50),
    Case("preempt 50 nodes, 200 jobs", lambda: preempt(50, 200), 112.1, lambda d: len(d.evictions) == 200),
    Case("consolidate 10 nodes, 50 jobs", lambda: pieces(10, 50), 115.2, lambda d: len(d.evictions) == 4),
    Case("consolidate 50 nodes, 200 jobs", lambda: pieces(50, 200), 186.7, lambda d: len(d.evictions) == 4),
)


def once(case: Case) -> dict[str, float]:
    """Measure the milliseconds of construction and decision."""
    world = case.world()
    machines = [node(n) for n in range(world.nodes)]
    gc.collect()
    began, worked = perf_counter(), process_time()
    scheduler = Scheduler()
    scheduler.apply_all(NodeChanged(n) for n in machines)
    scheduler.apply_all(ProjectChanged(project) for project in world.projects)
    scheduler.apply_all(LeaseTaken(job) for job in world.running)
    scheduler.apply_all(PendingAdded(job, NOW) for job in world.waiting)
    built = perf_counter()
    decisions = scheduler.decide(NOW + 100)
    done, cpu = perf_counter(), process_time() - worked
    if not case.right(decisions):
        raise SystemExit(f"{case.name}: {len(decisions.grants)} grants, {len(decisions.evictions)} evictions")
    build, decide = (built - began) * 1000, (done - built) * 1000
    return {"build_ms": build, "decide_ms": decide, "total_ms": build + decide, "cpu_ms": cpu * 1000}


def main() -> None:
    """Run, print and store all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-cycles.json")
    args = parser.parse_args()
    once(CASES[0])  # values computed once per process are not part of a cycle
    table: dict[str, dict[str, float]] = {}
    print(f"{'':38}{'build ms':>10}{'decide ms':>11}{'total ms':>10}{'cpu ms':>9}{'KAI ms':>9}")
    for case in CASES:
        runs = [once(case) for _ in range(args.runs)]
        row = {key: round(median(run[key] for run in runs), 1) for key in runs[0]}
        row["worst_ms"] = round(max(run["total_ms"] for run in runs), 1)
        row["kai_ms"] = case.kai_ms
        table[case.name] = row
        print(
            f"{case.name:38}{row['build_ms']:>10}{row['decide_ms']:>11}{row['total_ms']:>10}{row['cpu_ms']:>9}"
            f"{case.kai_ms:>9}"
        )
    write_result(args.out, {"runs": args.runs, "results": table})


if __name__ == "__main__":
    main()
