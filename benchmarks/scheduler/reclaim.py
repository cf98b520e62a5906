"""Measure reclaim for a large gang: `python benchmarks/scheduler/reclaim.py [--nodes 10 50 ... 1000] [--runs 5]`.

KAI-Scheduler's ReclaimLargeJobs: N nodes of eight GPUs, 8N running preemptible jobs of one GPU in a project with quota
0, and one gang of N/10 members of eight GPUs each in a project with a quota of all GPUs. As there, the time includes
all steps: loading nodes, projects and running jobs into an empty scheduler, and the one decision that makes room for
all members at once. Checked: a hold exists for every member, no job is evicted without need, and the gang starts when
the victims are gone. In process, one thread; no API server, no store and no network on either side. Their figures
(Intel Core Ultra 7 165H) are from docs/developer/designs/vectorizing-resources of KAI-Scheduler. `cpu ms` is the CPU
time, for a machine that others use as well.
"""

from __future__ import annotations

import argparse
import gc
import resource
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from decide import GPUS_PER_NODE, NOW, RESULTS, node, write_result

from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest, GpuShare, Node
from gpupool.domain.people.access import Project
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.workload import GpuLease
from gpupool.scheduling.scheduler import LeaseReleased, LeaseTaken, NodeChanged, PendingAdded, ProjectChanged, Scheduler
from gpupool.scheduling.values import PendingReplica, RunningReplica

KAI_MS = {10: 105.2, 50: 130.7, 100: 213.4, 200: 728.0, 500: 9_170.0, 1000: 76_300.0}


def running(number: int, on: Node) -> RunningReplica:
    """Return a one-GPU job, whose number determines its node and its GPU."""
    gpu = on.report.gpus[number % GPUS_PER_NODE]
    shares = (GpuShare(gpu.uuid, gpu.index, 1000, gpu.memory_mib),)
    lease = GpuLease(
        Epoch(1), WorkloadId(f"w{number}"), 0, 1, "queue-0", "ann", on.report.name, shares, 1.0, 1000, NOW - 5000
    )
    return RunningReplica(lease, NOW - 5000 + number / 1e6, preemptible=True)


def members(count: int) -> list[PendingReplica]:
    """Return the gang that reclaims the space."""
    gang = Gang(count, count) if count > 1 else None
    return [
        PendingReplica(
            WorkloadId("gang"), index, "queue-1", "bob", GpuRequest(GPUS_PER_NODE), NOW - 10, cpus=8.0, gang=gang
        )
        for index in range(count)
    ]


def once(nodes: int) -> dict[str, float]:
    """Build and decide once; return the milliseconds of both."""
    machines = [node(number) for number in range(nodes)]
    jobs = [running(number, machines[number // GPUS_PER_NODE]) for number in range(nodes * GPUS_PER_NODE)]
    gang = members(nodes // 10)
    gc.collect()
    began, worked = perf_counter(), process_time()
    scheduler = Scheduler()
    scheduler.apply_all(NodeChanged(n) for n in machines)
    scheduler.apply_all([ProjectChanged(Project("queue-0", 0)), ProjectChanged(Project("queue-1", nodes * 8000))])
    scheduler.apply_all(LeaseTaken(job) for job in jobs)
    scheduler.apply_all(PendingAdded(member, NOW) for member in gang)
    built = perf_counter()
    decisions = scheduler.decide(NOW)
    done, cpu = perf_counter(), process_time() - worked
    if len(decisions.evictions) != len(gang) * GPUS_PER_NODE or len(decisions.holds) != len(gang):
        raise SystemExit(
            f"{len(decisions.evictions)} evictions and {len(decisions.holds)} holds for {len(gang)} members"
        )
    for eviction in decisions.evictions:
        scheduler.apply(LeaseReleased(eviction.key))
    if len(scheduler.decide(NOW + 1).grants) != len(gang):
        raise SystemExit("the gang did not start")
    build, decide = (built - began) * 1000, (done - built) * 1000
    return {"build_ms": build, "decide_ms": decide, "total_ms": build + decide, "cpu_ms": cpu * 1000}


def main() -> None:
    """Run, print and store all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=sorted(KAI_MS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-reclaim.json")
    args = parser.parse_args()
    table: dict[str, dict[str, float | None]] = {}
    heads = ("nodes", "jobs", "members", "build ms", "decide ms", "total ms", "cpu ms", "worst ms", "KAI ms")
    print("".join(f"{head:>10}" for head in heads))
    for nodes in args.nodes:
        runs = [once(nodes) for _ in range(args.runs)]
        row: dict[str, float | None] = {key: round(median(run[key] for run in runs), 1) for key in runs[0]}
        row |= {"worst_ms": round(max(run["total_ms"] for run in runs), 1), "kai_ms": KAI_MS.get(nodes)}
        table[str(nodes)] = row
        cells = [nodes, nodes * GPUS_PER_NODE, nodes // 10, *row.values()]
        print("".join(f"{'-' if cell is None else cell:>10}" for cell in cells))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory {peak} MiB")
    write_result(args.out, {"runs": args.runs, "peak_mib": peak, "results": table})


if __name__ == "__main__":
    main()
