"""``simulate``: the scheduler over a trace of work, without a pool."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.commands.projects import gpu_permille
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.render.simulation import simulation_lines
from gpupool.domain.access import Project
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Node
from gpupool.domain.units import parse_duration_s
from gpupool.simulate import engine
from gpupool.simulate.clusters import parse_cluster, permuted
from gpupool.simulate.files import read_nodes, read_trace
from gpupool.simulate.load import at_load, capacity_of
from gpupool.simulate.metrics import summary
from gpupool.simulate.traces import TraceFormat
from gpupool.simulate.values import Rules

PROGRESS_EVERY_S = 5.0

TraceFile = Annotated[Path, typer.Argument(metavar="TRACE", help="A CSV file of jobs.")]
NodesFile = Annotated[Path | None, typer.Option("--nodes", metavar="FILE", help="The nodes, as a CSV file.")]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NODES", help="The nodes, in words: 4x8xA100,16x2xT4.")
]
Format = Annotated[
    TraceFormat | None, typer.Option("--format", help="How the trace is written; else its first line tells.")
]
Load = Annotated[
    float | None,
    typer.Option("--load", metavar="LOAD", help="Submit faster or slower, to offer this much of the GPUs: 0.95."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Only the first N jobs.")]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, help="Shuffle and rename the nodes, the same for a number.")
]
Quotas = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="PROJECT=GPUS", help="GPUs a project can count on; repeatable; else no bound."),
]
Grace = Annotated[str, typer.Option("--grace", metavar="TIME", help="How long evicted work holds its GPUs.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool simulate jobs.csv --cluster 4x8xA100",
        "gpupool simulate jobs.csv --cluster 4x8xA100,2x8xH100 --quota team-a=16 --quota team-b=32",
        "gpupool simulate philly_jobs.csv --cluster 62x8xP100 --load 0.95 --jobs 5000",
        "gpupool simulate openb_pod_list_default.csv --nodes openb_node_list_gpu_node.csv --json",
    )(simulate)


def simulate(  # noqa: PLR0913, PLR0917 - one parameter per option
    trace: TraceFile,
    nodes: NodesFile = None,
    cluster: Cluster = None,
    kind: Format = None,
    load: Load = None,
    jobs: Jobs = None,
    seed: Seed = None,
    quota: Quotas = None,
    grace: Grace = "10s",
    json: AsJson = False,
) -> None:
    """Run the scheduler over a trace of work in fast time: how full the GPUs get, and who waits how long.

    A trace is a CSV table with a row for each job. Its first line names the columns: submitted_s, duration_s and gpus,
    and where wanted gpu_permille (a part of each GPU, of 1000) or gpu_memory_mib, cpus, memory_mib, model, project,
    user and kind (training, interactive, run or lease; only training is evicted, and begins anew). Lists of the
    openb and Philly traces are known too. No pool is needed, and none is touched.
    """
    machines = _nodes(nodes, cluster)
    found = read_trace(trace, kind, jobs)
    machines = machines if seed is None else permuted(machines, seed)
    work = found.jobs if load is None else at_load(found.jobs, capacity_of(machines), load)
    run = engine.Simulation(work, machines, _projects(quota or []), Rules(grace_s=parse_duration_s(grace)))
    began = perf_counter()
    shown = summary(run.run(_Progress().tell))
    took = max(perf_counter() - began, 1e-9)
    pace = {"skipped": found.skipped, "wall_s": round(took, 3), "starts_per_s": round(shown["starts"] / took, 1)}
    _print(shown | pace, json=json)


class _Progress:
    """A line on stderr every few seconds."""

    def __init__(self) -> None:
        self._next = perf_counter() + PROGRESS_EVERY_S

    def tell(self, submitted: int, jobs: int) -> None:
        """Say how many jobs have been submitted, if it is time to."""
        if perf_counter() >= self._next:
            self._next = perf_counter() + PROGRESS_EVERY_S
            tell(f"{submitted:,} of {jobs:,} jobs are submitted")


def _nodes(nodes: Path | None, cluster: str | None) -> tuple[Node, ...]:
    if (nodes is None) == (cluster is None):
        raise typer.BadParameter("name the nodes by --nodes FILE or by --cluster 4x8xA100")
    return read_nodes(nodes) if nodes is not None else parse_cluster(cluster or "")


def _projects(quotas: list[str]) -> list[Project]:
    return [Project(name, gpu_permille(gpus)) for name, gpus in map(_quota, quotas)]


def _quota(text: str) -> tuple[str, str]:
    name, equals, gpus = text.rpartition("=")
    if not equals or not name:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a quota.", "Write --quota team-a=16.")
    return name, gpus


def _print(shown: dict[str, Any], *, json: bool) -> None:
    if json:
        show_json(shown)
    else:
        show(simulation_lines(shown, out_style()))
