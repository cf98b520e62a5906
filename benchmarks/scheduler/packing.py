"""How full the GPUs get: `python benchmarks/scheduler/packing.py [DATA] [--traces default] [--seeds 42 43]`.

The protocol of the FGD paper (USENIX ATC 2023): the 1,213 GPU nodes of the openb trace, its pods shuffled and drawn
again until they ask for 130 % of all GPUs, one after the other, and nobody leaves; who does not fit at once is sent
away. Measured: GPU thousandths allocated when 100 % and when 130 % have arrived. Nodes are shuffled and renamed for
each seed, so that nothing hangs on their names. Beside it: what the authors published for FGD with the same seeds'
numbers (their draws are other ones). The pool runs no work without GPUs; such pods are put on the node with the fewest
free GPUs that has room, the tightest in CPUs first. Prints a table and writes JSON into benchmarks/results.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from statistics import mean
from time import perf_counter

import numpy as np
from decide import RESULTS, machine

from gpupool.domain.errors import GpupoolError
from gpupool.domain.gpu import Node
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.workload import Lease
from gpupool.scheduling.scheduler import LeaseTaken, NodeChanged, PendingAdded, PendingRemoved, Scheduler
from gpupool.scheduling.values import PendingReplica, RunningReplica
from gpupool.simulate.clusters import permuted
from gpupool.simulate.files import read_lines, read_nodes
from gpupool.simulate.load import capacity_of, inflated, permille_of
from gpupool.simulate.stranded import stranded_permille, usual_kinds
from gpupool.simulate.traces import TraceFormat, parse_all
from gpupool.simulate.values import Job

LOADS = (100, 130)
NODES = "openb_node_list_gpu_node.csv"
PUBLISHED = "published_allocation.csv"


def pack(jobs: list[Job], nodes: tuple[Node, ...], seed: int) -> dict[str, float]:
    """One run: allocation in percent at each of ``LOADS``, and how long it took."""
    capacity, scheduler = capacity_of(nodes), Scheduler()
    scheduler.apply_all(NodeChanged(node) for node in permuted(nodes, seed))
    kinds, arrived, allocated, row = usual_kinds(jobs), 0, 0, dict[str, float]()
    began, placed = perf_counter(), 0
    for number, job in enumerate(inflated(jobs, capacity, LOADS[-1] / 100, seed)):
        granted = place(scheduler, job, number)
        allocated, placed = allocated + granted, placed + bool(granted)
        arrived += permille_of(job.request)
        for load in LOADS:
            if f"at_{load}" not in row and arrived * 100 >= load * capacity:
                row[f"at_{load}"] = round(100 * allocated / capacity, 2)
                row[f"stranded_at_{load}"] = round(100 * stranded_permille(scheduler.cluster, kinds) / capacity, 2)
    took = perf_counter() - began
    return row | {"seconds": round(took, 1), "placed_per_s": round(placed / took)}


def place(scheduler: Scheduler, job: Job, number: int) -> int:
    """Place one job if it fits now; returns the thousandths that it got."""
    if not job.request.count:
        place_without_gpu(scheduler, job, number)
        return 0
    replica = PendingReplica(
        workload=WorkloadId(str(number)),
        index=0,
        project=job.project,
        user=job.user,
        request=job.request,
        queued_at=job.submitted_s,
        preemptible=True,
        cpus=job.cpus,
        memory_mib=job.memory_mib,
    )
    scheduler.apply(PendingAdded(replica, job.submitted_s))
    grants = scheduler.decide(job.submitted_s).grants
    if not grants:
        scheduler.apply(PendingRemoved(replica.key))
    return sum(share.permille for grant in grants for share in grant.shares)


def place_without_gpu(scheduler: Scheduler, job: Job, number: int) -> None:
    """Take a job's CPUs and memory of the node with the fewest free GPUs, the tightest in CPUs, if one has room."""
    cluster, cpu_milli = scheduler.cluster, round(job.cpus * 1000)
    rows = np.flatnonzero(cluster.present & (cluster.cpu_free >= cpu_milli) & (cluster.mem_free >= job.memory_mib))
    if not len(rows):
        return
    best = rows[np.lexsort((rows, cluster.cpu_free[rows], cluster.gpu_free[rows].sum(axis=1)))[0]]
    lease = Lease(
        epoch=Epoch(0),
        workload=WorkloadId(str(number)),
        index=0,
        attempt=0,
        project=job.project,
        user=job.user,
        node=cluster.name_of(int(best)),
        shares=(),
        cpus=job.cpus,
        memory_mib=job.memory_mib,
        granted_at=job.submitted_s,
    )
    scheduler.apply(LeaseTaken(RunningReplica(lease, job.submitted_s)))


def published(path: Path, trace: str, seeds: list[int]) -> dict[str, float]:
    """The mean allocation in percent that the authors of FGD published for a trace and these seeds."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        found = [
            row
            for row in csv.DictReader(file)
            if row["workload"] == f"openb_pod_list_{trace}" and "FGD" in row["sc_policy"] and int(row["seed"]) in seeds
        ]
    return {f"at_{load}": round(mean(float(row[str(load)]) for row in found), 2) for load in LOADS} if found else {}


def main() -> None:
    """Run the traces that were asked for, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data"), help="folder that has openb/")
    parser.add_argument("--traces", nargs="+", default=["default"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-packing.json")
    args = parser.parse_args()
    folder = args.data / "openb"
    if not (folder / NODES).exists():
        raise SystemExit(f"{folder / NODES} is not there: name the folder of the data as the first argument.")
    try:
        nodes = read_nodes(folder / NODES)
        table = {trace: measure(folder, trace, nodes, args.seeds) for trace in args.traces}
    except GpupoolError as error:
        raise SystemExit(str(error)) from error
    size = {"gpus": capacity_of(nodes) // 1000, "nodes": len(nodes), "seeds": args.seeds}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", f"benchmarks/scheduler/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    kept = {"machine": machine(), "command": command, "size": size, "results": table}
    args.out.write_text(json.dumps(kept, indent=2) + "\n")


def measure(folder: Path, trace: str, nodes: tuple[Node, ...], seeds: list[int]) -> dict[str, object]:
    """All seeds of a trace, with the published figures; printed as they come."""
    jobs = parse_all(read_lines(folder / f"openb_pod_list_{trace}.csv"), TraceFormat.OPENB)
    runs = []
    for seed in seeds:
        runs.append(pack(jobs, nodes, seed))
        print(f"{trace:14} seed {seed}  " + "  ".join(f"{key} {value}" for key, value in runs[-1].items()), flush=True)
    ours = {f"at_{load}": round(mean(run[f"at_{load}"] for run in runs), 2) for load in LOADS}
    beside = published(folder / PUBLISHED, trace, seeds)
    print(f"{trace:14} mean {ours}  published FGD {beside or '-'}", flush=True)
    return {
        "mean_percent": ours,
        "published_fgd_percent": beside,
        "runs": dict(zip(map(str, seeds), runs, strict=True)),
    }


if __name__ == "__main__":
    main()
