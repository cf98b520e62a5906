"""``simulate``: the scheduler over a trace of work, without a pool or over a pool's own past."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypeVar

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.commands.projects import gpu_permille
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool
from gpupool.cli.pool_history import history
from gpupool.cli.render.simulation import comparison_lines, simulation_lines
from gpupool.domain.access import Project
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Node
from gpupool.domain.units import parse_duration_s
from gpupool.scheduling.order import Order
from gpupool.scheduling.policy import Policy
from gpupool.scheduling.values import Settings
from gpupool.simulate import engine
from gpupool.simulate.clusters import parse_cluster, permuted
from gpupool.simulate.figures import page
from gpupool.simulate.files import read_nodes, read_trace
from gpupool.simulate.listing import job_table
from gpupool.simulate.load import at_load, capacity_of
from gpupool.simulate.metrics import summary
from gpupool.simulate.traces import TraceFormat
from gpupool.simulate.values import Job, Record, Rules, Trace
from gpupool.simulate.whatif import Change

PROGRESS_EVERY_S = 5.0
MOST_WEIGHT = 1e6
NOW, CHANGED = "as it is", "changed"
USUAL = Policy()
T = TypeVar("T")

TraceFile = Annotated[Path | None, typer.Argument(metavar="[TRACE]", help="A CSV file of jobs.")]
NodesFile = Annotated[Path | None, typer.Option("--nodes", metavar="FILE", help="The nodes, as a CSV file.")]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NODES", help="The nodes, in words: 4x8xA100,16x2xT4.")
]
FromPool = Annotated[bool, typer.Option("--from-pool", help="What ran in the pool, on its nodes, for its projects.")]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="With --from-pool: how far back.")]
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
    typer.Option("--quota", metavar="PROJECT=GPUS", help="GPUs a project can count on; repeatable."),
]
Weights = Annotated[
    list[str] | None,
    typer.Option("--weight", metavar="PROJECT=NUMBER", help="Its part of what is beyond quotas; repeatable."),
]
AddNodes = Annotated[str | None, typer.Option("--add-nodes", metavar="NODES", help="With these as well: 2x8xA100.")]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="NODE", help="Without it; repeatable.")]
Compare = Annotated[
    bool, typer.Option("--compare", help="Beside a run without --quota, --weight, --add-nodes and --without.")
]
OrderOption = Annotated[
    Order | None, typer.Option("--order", help="Among equals of a project: fair, or shortest expected first.")
]
Turn = Annotated[
    str | None, typer.Option("--turn", metavar="TIME", help="Training that ran so long makes way; else it does not.")
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="TIME", help="Training saves its work so often; else it begins anew."),
]
Grace = Annotated[str, typer.Option("--grace", metavar="TIME", help="How long evicted work holds its GPUs.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write figures to a page.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a row for each job.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool simulate jobs.csv --cluster 4x8xA100",
        "gpupool simulate jobs.csv --cluster 4x8xA100 --quota team-a=16 --turn 2h --checkpoint 30m",
        "gpupool simulate --from-pool --since 30d --add-nodes 2x8xA100",
        "gpupool simulate --from-pool --quota red=6 --quota blue=2 --html what-if.html",
        "gpupool simulate philly_jobs.csv --cluster 62x8xP100 --load 0.95 --jobs 5000 --csv waits.csv",
        "gpupool simulate openb_pod_list_default.csv --nodes openb_node_list_gpu_node.csv --json",
    )(simulate)


def simulate(  # noqa: PLR0913, PLR0917 - one parameter per option
    trace: TraceFile = None,
    nodes: NodesFile = None,
    cluster: Cluster = None,
    from_pool: FromPool = False,
    since: Since = "30d",
    kind: Format = None,
    load: Load = None,
    jobs: Jobs = None,
    seed: Seed = None,
    quota: Quotas = None,
    weight: Weights = None,
    add_nodes: AddNodes = None,
    without: Without = None,
    compare: Compare = False,
    order: OrderOption = None,
    turn: Turn = None,
    checkpoint: Checkpoint = None,
    grace: Grace = "10s",
    html: Html = None,
    csv: Csv = None,
    json: AsJson = False,
) -> None:
    """Run the scheduler over a trace of work in fast time: how full the GPUs get, and who waits how long.

    A trace is a CSV table with a row for each job. Its first line names the columns: submitted_s, duration_s and gpus,
    and where wanted gpu_permille (a part of each GPU, of 1000) or gpu_memory_mib, cpus, memory_mib, model, project,
    user and kind (training, interactive, run or lease; only training is evicted). Lists of the openb and Philly traces
    are known too. No pool is needed, and none is touched.

    With --from-pool the trace is what ran in the pool, under its policy. What would be different with other nodes,
    quotas or weights is shown beside a run without them: always with --add-nodes, --without and --from-pool, else with
    --compare.
    """
    if from_pool and (trace or nodes or cluster or kind):
        raise typer.BadParameter("--from-pool brings its own jobs and nodes")
    change = _change(quota or [], weight or [], add_nodes, without or [])
    world = _from_pool(since) if from_pool else _from_files(trace, nodes, cluster, kind)
    bench = _Bench(
        world if seed is None else replace(world, nodes=permuted(world.nodes, seed)),
        load,
        jobs,
        Rules(grace_s=parse_duration_s(grace), checkpoint_s=parse_duration_s(checkpoint) if checkpoint else None),
        _settings(world.policy, order, turn),
    )
    beside = bool(change) and (compare or from_pool or bool(change.added or change.without))
    runs = {NOW: bench.run(Change())} if beside else {}
    runs[CHANGED if beside else NOW] = bench.run(change)
    if html is not None:
        _write(html, page("Simulation", {name: shown for name, (shown, _) in runs.items()}))
    if csv is not None:
        _write(csv, job_table(runs[CHANGED if beside else NOW][1]))
    _print([shown for shown, _ in runs.values()], json=json)


@dataclass(frozen=True, slots=True)
class _World:
    """Work, and where it runs for whom."""

    trace: Trace
    nodes: tuple[Node, ...]
    projects: tuple[Project, ...] = ()
    policy: Policy = USUAL


@dataclass(frozen=True, slots=True)
class _Bench:
    """The same work again and again; the load is set by the nodes as they are."""

    world: _World
    load: float | None
    most: int | None
    rules: Rules
    settings: Settings

    def run(self, change: Change) -> tuple[dict[str, Any], Record]:
        """What a run shows, with its pace."""
        nodes, projects = change.nodes(self.world.nodes), change.projects(self.world.projects)
        run = engine.Simulation(self._jobs(), nodes, projects, self.rules, self.settings)
        began = perf_counter()
        record = run.run(_Progress().tell)
        took = max(perf_counter() - began, 1e-9)
        pace = {"skipped": self.world.trace.skipped, "wall_s": round(took, 3)}
        return summary(record) | pace | {"starts_per_s": round(record.starts / took, 1)}, record

    def _jobs(self) -> Sequence[Job]:
        found = self.world.trace.jobs[: self.most]
        return found if self.load is None else at_load(found, capacity_of(self.world.nodes), self.load)


class _Progress:
    """A line on stderr every few seconds."""

    def __init__(self) -> None:
        self._next = perf_counter() + PROGRESS_EVERY_S

    def tell(self, submitted: int, jobs: int) -> None:
        """Say how many jobs have been submitted, if it is time to."""
        if perf_counter() >= self._next:
            self._next = perf_counter() + PROGRESS_EVERY_S
            tell(f"{submitted:,} of {jobs:,} jobs are submitted")


def _from_files(trace: Path | None, nodes: Path | None, cluster: str | None, kind: TraceFormat | None) -> _World:
    if trace is None:
        raise typer.BadParameter("name a trace, or --from-pool for what ran in the pool")
    if (nodes is None) == (cluster is None):
        raise typer.BadParameter("name the nodes by --nodes FILE or by --cluster 4x8xA100")
    machines = read_nodes(nodes) if nodes is not None else parse_cluster(cluster or "")
    return _World(read_trace(trace, kind), machines)


def _settings(policy: Policy, order: Order | None, turn: str | None) -> Settings:
    changes: dict[str, Any] = {} if order is None else {"order": order}
    if turn is not None:
        changes["turn_s"] = parse_duration_s(turn)
    return replace(policy, **changes).settings(Settings())


def _from_pool(since: str) -> _World:
    now = time.time()
    pool = open_pool()
    found = history(pool, now - parse_duration_s(since), now)
    return _World(*found, Policy.from_dict(pool.get("policy")))


def _change(quotas: list[str], weights: list[str], add_nodes: str | None, without: list[str]) -> Change:
    return Change(
        parse_cluster(add_nodes) if add_nodes else (),
        tuple(without),
        _named(quotas, gpu_permille, "quota", "--quota team-a=16"),
        _named(weights, _weight, "weight", "--weight team-a=2"),
    )


def _named(texts: list[str], read: Callable[[str], T], what: str, hint: str) -> dict[str, T]:
    found: dict[str, T] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a {what}.", f"Write {hint}.")
        found[name] = read(value)
    return found


def _weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_WEIGHT:
        sentence = f"'{text[:40]}' is not a weight."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Write a number, 0 or more: --weight team-a=2.")
    return value


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        sentence = f"{path} cannot be written: {error.strerror}."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Name a file that you may write.") from error


def _print(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        show_json(found[0] if len(found) == 1 else {"base": found[0], "changed": found[1]})
    elif len(found) == 1:
        show(simulation_lines(found[0], out_style()))
    else:
        show(comparison_lines(found[0], found[1], out_style()))
