"""Measure packing: `python benchmarks/scheduler/packing.py DATA [--traces all] [--seeds 42 43] [--scheduler]`.

It follows the protocol of the FGD paper (USENIX ATC 2023): the 1,213 GPU nodes of the openb trace, and its pods,
shuffled and drawn again until they request 130 % of all GPUs, one after the other. No pod ends; a pod that does not fit
at once is rejected. Measured: GPU thousandths allocated when 100 % and when 130 % have arrived, and the part of the
free capacity that the trace's typical pods cannot use. Nodes are shuffled and renamed for each seed, so that nothing
depends on their names. For comparison: the figures published for FGD, the mean of their seeds (42 to 51; their draws
differ). Published traces that are missing in the folder are named and omitted. ``look:NAME`` makes a synthetic trace,
similar to a missing one, from one that exists (see ``LIKENESSES``); the published figure is for the real trace, so the
comparison says little.

FGD knows the histogram of all pods of the trace in advance. Here it is learnt online, from the pods as they arrive, as
in a pool. ``--known`` first adds the whole trace to the histogram, to measure the value of that knowledge.

By default only the placer is used (one placement, then the claim is charged), which measures the score; ``--scheduler``
runs whole cycles of the scheduler instead. The pool runs no work without GPUs. Such pods of the trace take CPUs by the
same score: where they make the fewest free GPUs useless.

The weights in ``scheduling/placement/scoring.py`` and the learning rule (``scheduling/placement/demand_profile.py``)
were chosen with seeds 1 to 4 on the traces default, cpu100, gpushare40, gpushare60, gpuspec25, multigpu20, multigpu30,
multigpu40 and on synthetic versions of gpushare100 and gpuspec33. Seeds 42 and up, and the traces cpu050, cpu200,
gpushare80 and gpuspec10, were not used for that. Prints a table and writes JSON into benchmarks/results.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import NamedTuple

from decide import RESULTS, command, machine

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.work.workload import GpuLease
from gpupool.scheduling.placement.replica import Placer
from gpupool.scheduling.scheduler import LeaseTaken, NodeChanged, PendingAdded, PendingRemoved, Scheduler
from gpupool.scheduling.state.cluster import ClusterState, Shapes
from gpupool.scheduling.values import PendingReplica, RunningReplica
from gpupool.simulate.clusters import permuted
from gpupool.simulate.engine import stranded_permille, usual_kinds
from gpupool.simulate.load import capacity_of, inflated, permille_of
from gpupool.simulate.traces import TraceFormat, parse_all, read_lines, read_nodes
from gpupool.simulate.values import TraceJob

LOADS = (100, 130)
NODES = "openb_node_list_gpu_node.csv"
PUBLISHED = "published_allocation.csv"
LOOK = "look:"


class Row(dict[str, float]):
    """The figures of one run, by name."""


class Measured(NamedTuple):
    """The means of a trace with the published figures, and every run."""

    ours: dict[str, float]
    published: dict[str, float]
    runs: dict[str, Row]


class Alone:
    """The placer without a scheduler; it places each of its jobs once, or rejects it."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.cluster, self._shapes = ClusterState(), Shapes()
        for node in nodes:
            self.cluster.set_node(node)
        self._placer = Placer(self.cluster)

    def learn(self, job: TraceJob) -> None:
        """Record the request of a job."""
        if job.request.count:
            self._placer.scorer.work.submitted(job.request, round(job.cpus * 1000))

    def place(self, job: TraceJob, number: int) -> int:  # noqa: ARG002 - the scheduler needs a name of the job
        """Place one job if it fits now; returns the thousandths that it got."""
        claim = self._placer.find(self._shapes.get(job.request, job.cpus, job.memory_mib))
        if claim is None:
            return 0
        self.cluster.charge(claim)
        self.cluster.log.commit()
        return claim.permille


class Whole:
    """The scheduler: each job is submitted, decided on, and withdrawn if it does not start."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._scheduler = Scheduler()
        self._scheduler.apply_all(NodeChanged(node) for node in nodes)
        self.cluster, self._shapes = self._scheduler.cluster, Shapes()

    def learn(self, job: TraceJob) -> None:
        """Do nothing: the scheduler learns itself."""

    def place(self, job: TraceJob, number: int) -> int:
        """Place one job if it fits now; returns the thousandths that it got."""
        if not job.request.count:
            self._place_without_gpu(job, number)
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
        self._scheduler.apply(PendingAdded(replica, job.submitted_s))
        grants = self._scheduler.decide(job.submitted_s).grants
        if not grants:
            self._scheduler.apply(PendingRemoved(replica.key))
        return sum(share.permille for grant in grants for share in grant.shares)

    def _place_without_gpu(self, job: TraceJob, number: int) -> None:
        claim = self._scheduler.placer.find(self._shapes.get(job.request, job.cpus, job.memory_mib))
        if claim is None:
            return
        lease = GpuLease(
            epoch=Epoch(0),
            workload=WorkloadId(str(number)),
            index=0,
            attempt=0,
            project=job.project,
            user=job.user,
            node=self.cluster.name_of(claim.row),
            shares=(),
            cpus=job.cpus,
            memory_mib=job.memory_mib,
            granted_at=job.submitted_s,
        )
        self._scheduler.apply(LeaseTaken(RunningReplica(lease, job.submitted_s)))


def pack(jobs: list[TraceJob], nodes: tuple[Node, ...], seed: int, how: type[Alone | Whole], *, known: bool) -> Row:
    """Do one run; return the allocation in percent at each of ``LOADS``, and the speed."""
    capacity, world = capacity_of(nodes), how(permuted(nodes, seed))
    kinds, arrived, allocated, row = usual_kinds(jobs), 0, 0, Row()
    for job in jobs if known else ():
        world.learn(job)
    took, sequence = 0.0, inflated(jobs, capacity, LOADS[-1] / 100, seed)
    for number, job in enumerate(sequence):
        began = perf_counter()
        if not known:
            world.learn(job)
        allocated += world.place(job, number)
        took += perf_counter() - began
        arrived += permille_of(job.request)
        for load in LOADS:
            if f"at_{load}" not in row and arrived * 100 >= load * capacity:
                row[f"at_{load}"] = round(100 * allocated / capacity, 2)
                row[f"stranded_at_{load}"] = round(100 * stranded_permille(world.cluster, kinds) / capacity, 2)
    row["seconds"], row["decisions_per_s"] = round(took, 1), round(len(sequence) / took)
    return row


def published(path: Path, trace: str) -> dict[str, float]:
    """Return the mean allocation in percent that the authors of FGD published for a trace."""
    if not path.exists():
        return {}
    name = f"openb_pod_list_{trace.removeprefix(LOOK)}"
    with path.open(encoding="utf-8", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["workload"] == name and "FGD" in row["sc_policy"]]
    return {f"at_{load}": round(mean(float(row[str(load)]) for row in found), 2) for load in LOADS} if found else {}


def jobs_of(folder: Path, trace: str) -> list[TraceJob]:
    """Return the jobs of a trace, or of a synthetic one like it; missing columns are left empty."""
    if trace.startswith(LOOK):
        return LIKENESSES[trace.removeprefix(LOOK)](folder)
    table = list(csv.DictReader(read_lines(folder / f"openb_pod_list_{trace}.csv")))
    names = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time")
    lines = [",".join(row.get(name) or ("0" if name.endswith("time") else "") for name in names) for row in table]
    return parse_all([f"{line}\n" for line in (",".join(names), *lines)], TraceFormat.OPENB)


def only_shared(folder: Path) -> list[TraceJob]:
    """Make gpushare100: every job for whole GPUs becomes a job for a slice, drawn at random."""
    rng, jobs = random.Random(5), jobs_of(folder, "gpushare80")
    parts = [job for job in jobs if job.request.count and not job.request.whole]
    return [rng.choice(parts) if job.request.count and job.request.whole else job for job in jobs]


def more_choosy(base: str, times: float) -> Callable[[Path], list[TraceJob]]:
    """Make gpuspecNN: some jobs for any model become jobs for a model, drawn at random."""

    def make(folder: Path) -> list[TraceJob]:
        rng, jobs = random.Random(7), jobs_of(folder, base)
        choosy = [job for job in jobs if job.request.models]
        others = [at for at, job in enumerate(jobs) if job.request.count and not job.request.models]
        for at in rng.sample(others, round((times - 1) * len(choosy))):
            jobs[at] = rng.choice(choosy)
        return jobs

    return make


def more_hosts(folder: Path) -> list[TraceJob]:
    """Make cpu250: a quarter more of the jobs without GPUs than cpu200."""
    rng, jobs = random.Random(8), jobs_of(folder, "cpu200")
    hosts = [job for job in jobs if not job.request.count]
    return jobs + rng.sample(hosts, len(hosts) // 4)


def more_several(folder: Path) -> list[TraceJob]:
    """Make multigpu50: a quarter more of the jobs for several GPUs than multigpu40."""
    rng, jobs = random.Random(6), jobs_of(folder, "multigpu40")
    several = [job for job in jobs if job.request.count > 1]
    return jobs + rng.sample(several, len(several) // 2)


LIKENESSES: dict[str, Callable[[Path], list[TraceJob]]] = {
    "gpushare100": only_shared,
    "gpuspec20": more_choosy("gpuspec10", 2.0),
    "gpuspec33": more_choosy("gpuspec25", 1.32),
    "cpu250": more_hosts,
    "multigpu50": more_several,
}


def main() -> None:
    """Run the requested traces, print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that has openb/")
    parser.add_argument("--traces", nargs="+", default=["default"], help="names, all, or look:NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--scheduler", action="store_true", help="whole cycles of the scheduler, not the placer alone")
    parser.add_argument("--known", action="store_true", help="the trace's histogram is known beforehand")
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-packing.json")
    args = parser.parse_args()
    folder = args.data / "openb"
    if not (folder / NODES).exists():
        raise SystemExit(f"{folder / NODES} is not there: name the folder of the data as the first argument.")
    try:
        nodes = read_nodes(folder / NODES)
        how = partial(pack, nodes=nodes, how=Whole if args.scheduler else Alone, known=args.known)
        table = {trace: measure(folder, trace, args.seeds, how) for trace in chosen(folder, args.traces)}
    except GpupoolError as error:
        raise SystemExit(str(error)) from error
    size = {"gpus": capacity_of(nodes) // 1000, "nodes": len(nodes), "seeds": args.seeds}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    how_known = "beforehand" if args.known else "online"
    kept = {
        "machine": machine(),
        "command": command(),
        "size": size,
        "typical_work_learnt": how_known,
        "results": {trace: found._asdict() for trace, found in table.items()},
    }
    args.out.write_text(json.dumps(kept, indent=2) + "\n")
    print(text_of(table))


def chosen(folder: Path, names: list[str]) -> list[str]:
    """Return the requested traces that exist; report the missing ones."""
    if names == ["all"]:
        with (folder / PUBLISHED).open(encoding="utf-8", newline="") as file:
            names = sorted({row["workload"].removeprefix("openb_pod_list_") for row in csv.DictReader(file)})
    there = [n for n in names if n.startswith(LOOK) or (folder / f"openb_pod_list_{n}.csv").exists()]
    if len(there) < len(names):
        print(f"not in {folder}, left out: {', '.join(name for name in names if name not in there)}")
    return there


def text_of(table: dict[str, Measured]) -> str:
    """Compare our results with published ones."""
    lines = [f"{'trace':18}{'ours @100':>10}{'FGD':>8}{'diff':>7}{'ours @130':>11}{'FGD':>8}{'diff':>7}"]
    for trace, found in table.items():
        cells = [f"{trace:18}"]
        for load, width in zip(LOADS, (10, 11), strict=True):
            ours, theirs = found.ours[f"at_{load}"], found.published.get(f"at_{load}")
            cells.append(f"{ours:>{width}.2f}" + ("" if theirs is None else f"{theirs:>8.2f}{ours - theirs:>+7.2f}"))
        lines.append("".join(cells))
    return "\n".join(lines)


def measure(folder: Path, trace: str, seeds: list[int], how: Callable[..., Row]) -> Measured:
    """Run all seeds of a trace and print each result."""
    jobs = jobs_of(folder, trace)
    runs = []
    for seed in seeds:
        runs.append(how(jobs, seed=seed))
        print(f"{trace:18} seed {seed}  " + "  ".join(f"{key} {value}" for key, value in runs[-1].items()), flush=True)
    ours = {f"at_{load}": round(mean(run[f"at_{load}"] for run in runs), 2) for load in LOADS}
    return Measured(ours, published(folder / PUBLISHED, trace), dict(zip(map(str, seeds), runs, strict=True)))


if __name__ == "__main__":
    main()
