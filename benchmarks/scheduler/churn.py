"""Measure a changing load with slices: `python benchmarks/scheduler/churn.py DATA [--trace NAME]`.

The pods of an openb trace are created and deleted at their recorded times (the first one in a hundred, which are much
older, are omitted). The openb nodes are drawn at random, until the pods offer the wanted load (0.9). It measures the
queue, the part of free capacity that a typical pod cannot use (the fragmentation of the FGD paper), and the number of
consolidations: without consolidation, with moves of pods of class BE only, as in the trace, and with moves of all pods.
A moved pod starts again from the beginning. Prints a table and writes JSON into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from decide import RESULTS, command, machine

from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.gpu import Node
from gpupool.scheduling.policy import Settings
from gpupool.simulate.engine import Simulation
from gpupool.simulate.load import capacity_of, offered_load
from gpupool.simulate.metrics import summary
from gpupool.simulate.traces import TraceFormat, read_nodes, read_trace
from gpupool.simulate.values import Rules, TraceJob

EARLY = 0.01
ROOMY = 8  # GPUs of the largest node; without one, some pods could never start


def bulk(jobs: Sequence[TraceJob], most: int | None) -> tuple[TraceJob, ...]:
    """Return the pods without the first few, which were created long before the others."""
    return tuple(jobs[int(EARLY * len(jobs)) :][:most])


def shrunk(nodes: Sequence[Node], jobs: Sequence[TraceJob], load: float, seed: int) -> tuple[Node, ...]:
    """Return nodes in random order, one with eight GPUs first, until they match the offered load."""
    found = list(nodes)
    random.Random(seed).shuffle(found)
    found.sort(key=lambda node: len(node.report.gpus) < ROOMY)
    chosen, rest = found[:1], found[1:]
    random.Random(seed).shuffle(rest)
    for node in rest:
        if offered_load(jobs, capacity_of([*chosen, node])) >= load:
            chosen.append(node)
    return tuple(chosen)


def churn(
    jobs: Sequence[TraceJob], nodes: Sequence[Node], *, consolidate: bool, all_restart: bool
) -> dict[str, object]:
    """Simulate one run."""
    settings = Settings() if consolidate else Settings(max_consolidations=0)
    work = tuple(replace(job, preemptible=True) for job in jobs) if all_restart else tuple(jobs)
    began = perf_counter()
    shown = summary(Simulation(work, nodes, (), Rules(samples=60), settings).run())
    names = ("gpus", "jobs", "finished", "left_waiting", "impossible", "allocated", "stranded", "evictions")
    kept = {name: shown[name] for name in (*names, "preemptions", "wasted_gpu_hours", "wait_s")}
    over_time = [{key: row[key] for key in ("at_s", "allocated", "stranded", "waiting")} for row in shown["over_time"]]
    moves = shown["evictions"].get("consolidate", 0)
    return {**kept, "moves": moves, "seconds": round(perf_counter() - began, 1), "over_time": over_time}


def line(name: str, row: dict[str, object]) -> str:
    """Return a line of the table."""
    wait = row["wait_s"]
    assert isinstance(wait, dict)
    hours = " ".join(f"{which} {wait[which] / 3600:.2f}" for which in ("mean", "p50", "p99", "max"))
    told = "  ".join(f"{key} {row[key]}" for key in ("allocated", "stranded", "moves", "preemptions", "seconds"))
    return f"{name:<34} wait_h {hours}  {told}"


def main() -> None:
    """Run the four cases, print and store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that has openb/")
    parser.add_argument("--trace", default="default", help="openb_pod_list_NAME.csv")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, help="only the first JOBS")
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-churn.json")
    args = parser.parse_args()
    folder = args.data / "openb"
    try:
        trace = read_trace(folder / f"openb_pod_list_{args.trace}.csv", TraceFormat.OPENB)
        jobs = bulk(trace.jobs, args.jobs)
        nodes = shrunk(read_nodes(folder / "openb_node_list_gpu_node.csv"), jobs, args.load, args.seed)
    except GpupoolError as error:
        raise SystemExit(str(error)) from error
    offered = round(offered_load(jobs, capacity_of(nodes)), 4)
    table: dict[str, object] = {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    print(
        f"{len(jobs):,} pods on {len(nodes)} nodes with {capacity_of(nodes) // 1000} GPUs, load {offered}", flush=True
    )
    for who, all_restart in (("BE may be moved", False), ("all may be moved", True)):
        for what, consolidate in (("no consolidation", False), ("consolidation", True)):
            name = f"{who}, {what}"
            table[name] = row = churn(jobs, nodes, consolidate=consolidate, all_restart=all_restart)
            print(line(name, row), flush=True)
            about = {"trace": args.trace, "nodes": len(nodes), "load": offered, "seed": args.seed}
            kept = {"machine": machine(), "command": command(), **about, "results": table}
            args.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
