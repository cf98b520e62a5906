"""``simulate``: run the scheduler over a trace of jobs, from a file or from a pool's history."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypeVar

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.simulation import comparison_lines, simulation_lines
from gpupool.cli.request.project_options import gpu_permille
from gpupool.cli.transport.pool import open_pool
from gpupool.cli.transport.pool_history import load_history
from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.people.access import Project
from gpupool.domain.units import parse_duration_s
from gpupool.domain.work.time_windows import read_zone
from gpupool.scheduling.policy import Policy, Settings
from gpupool.scheduling.state.user_order import Order
from gpupool.simulate import engine
from gpupool.simulate.clusters import parse_cluster, permuted
from gpupool.simulate.html_report import page
from gpupool.simulate.load import Change, at_load, capacity_of
from gpupool.simulate.metrics import job_table, summary
from gpupool.simulate.traces import TraceFormat, read_nodes, read_trace
from gpupool.simulate.values import Record, Rules, Trace, TraceJob

PROGRESS_EVERY_S = 5.0
MAX_WEIGHT = 1e6
NOW, CHANGED = "current", "changed"
FROM_ZERO = ("wait_s", "delay_s", "preemptions", "wasted_gpu_hours", "wasted_part")
DEFAULT_POLICY = Policy()
T = TypeVar("T")

TraceFile = Annotated[Path | None, typer.Argument(metavar="[TRACE]", help="A CSV file of jobs.")]
NodesFile = Annotated[Path | None, typer.Option("--nodes", metavar="FILE", help="Read the nodes from a CSV file.")]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="NODES", help="Set the nodes: 4x8xA100,16x2xT4.")]
FromPool = Annotated[bool, typer.Option("--from-pool", help="Use the jobs, nodes and projects of the pool.")]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="With --from-pool: use jobs of this last time.")]
Format = Annotated[
    TraceFormat | None, typer.Option("--format", help="Set the trace format; default: from its first line.")
]
Load = Annotated[
    float | None,
    typer.Option("--load", metavar="LOAD", help="Scale submission times to this load of the GPUs: 0.95."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Use only the first N jobs.")]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, help="Shuffle and rename the nodes with this seed.")
]
Quotas = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="PROJECT=GPUS", help="Set a project's quota; repeatable."),
]
Weights = Annotated[
    list[str] | None,
    typer.Option("--weight", metavar="PROJECT=NUMBER", help="Set a project's weight for over-quota GPUs; repeatable."),
]
AddNodes = Annotated[str | None, typer.Option("--add-nodes", metavar="NODES", help="Add nodes: 2x8xA100.")]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="NODE", help="Remove this node; repeatable.")]
Compare = Annotated[
    bool, typer.Option("--compare", help="Compare with a run without --quota, --weight, --add-nodes, --without.")
]
OrderOption = Annotated[
    Order | None, typer.Option("--order", help="Order equal claims of a project: fair, or shortest first.")
]
Turn = Annotated[
    str | None, typer.Option("--turn", metavar="TIME", help="Let training take turns of this length; default: never.")
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="TIME", help="Set the checkpoint interval of training; default: none."),
]
Grace = Annotated[str, typer.Option("--grace", metavar="TIME", help="Set how long evicted jobs keep their GPUs.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the figures to an HTML page.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a CSV row for each job.")]


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
    """Run the scheduler over a trace of jobs in fast time, and show GPU use and waiting times.

    A trace is a CSV table with one row for each job. Its first line has the column names: submitted_s, duration_s and
    gpus; optional are gpu_permille (a part of each GPU, of 1000) or gpu_memory_mib, cpus, memory_mib, model, project,
    user, department, priority, checkpoint_s (0: it saves when it is evicted), windows (nights; weekends, in UTC) and
    kind (training, interactive, run or lease; only training is evicted). A row of the kind reservation reserves the
    nodes of its column nodes (a|b) from submitted_s for duration_s, for its project or user. The formats of the openb
    and Philly traces are known too. No pool is needed or changed.

    With --checkpoint the run is repeated with jobs that save nothing (from zero).

    With --from-pool the trace is the pool's history, under its policy. Runs with other nodes, quotas or weights are
    compared with a run without them: always with --add-nodes, --without and --from-pool, else with --compare.
    """
    if from_pool and (trace or nodes or cluster or kind):
        raise typer.BadParameter("--from-pool excludes a trace, --nodes, --cluster and --format")
    change = _change(quota or [], weight or [], add_nodes, without or [])
    scenario = _from_pool(since) if from_pool else _from_files(trace, nodes, cluster, kind)
    if load is not None and scenario.trace.timed:
        raise typer.BadParameter("--load moves submission times, and the trace has time windows or reservations")
    runner = _Runner(
        scenario if seed is None else replace(scenario, nodes=permuted(scenario.nodes, seed)),
        load,
        jobs,
        Rules(
            grace_s=parse_duration_s(grace),
            checkpoint_s=parse_duration_s(checkpoint) if checkpoint else None,
            departments=scenario.trace.departments,
            reservations=scenario.trace.reservations,
            zone=read_zone(scenario.zone),
        ),
        _settings(scenario.policy, order, turn),
    )
    compared = bool(change) and (compare or from_pool or bool(change.added or change.without))
    runs = {NOW: runner.run(Change())} if compared else {}
    runs[CHANGED if compared else NOW] = runner.run(change)
    if html is not None:
        _write(html, page("Simulation", {name: shown for name, (shown, _) in runs.items()}))
    if csv is not None:
        _write(csv, job_table(runs[CHANGED if compared else NOW][1]))
    _print([shown for shown, _ in runs.values()], json=json)


@dataclass(frozen=True, slots=True)
class _Scenario:
    """Jobs, and the nodes, projects and policy under which they run."""

    trace: Trace
    nodes: tuple[Node, ...]
    projects: tuple[Project, ...] = ()
    policy: Policy = DEFAULT_POLICY
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs the same jobs several times. The load is relative to the unchanged nodes."""

    scenario: _Scenario
    load: float | None
    most: int | None
    rules: Rules
    settings: Settings

    def run(self, change: Change) -> tuple[dict[str, Any], Record]:
        """Run once and return the figures, with the simulation speed."""
        started = perf_counter()
        record = self._simulate(change, self.rules)
        took = max(perf_counter() - started, 1e-9)
        pace = {"skipped": self.scenario.trace.skipped, "wall_s": round(took, 3)}
        shown = summary(record) | pace | {"starts_per_s": round(record.starts / took, 1)}
        if self.rules.checkpoint_s is not None:
            from_zero = summary(self._simulate(change, replace(self.rules, checkpoint_s=None)))
            shown["from_zero"] = {name: from_zero[name] for name in FROM_ZERO}
        return shown, record

    def _simulate(self, change: Change, rules: Rules) -> Record:
        trace, projects = self.scenario.trace, list(self.scenario.projects)
        named = {project.name for project in projects}
        projects += [project for project in trace.projects if project.name not in named]
        nodes, changed = change.nodes(self.scenario.nodes), change.projects(projects)
        return engine.Simulation(self._jobs(), nodes, changed, rules, self.settings).run(_SimulationBar().tell)

    def _jobs(self) -> Sequence[TraceJob]:
        found = self.scenario.trace.jobs[: self.most]
        return found if self.load is None else at_load(found, capacity_of(self.scenario.nodes), self.load)


class _SimulationBar:
    """Prints a line on stderr every few seconds."""

    def __init__(self) -> None:
        self._next = perf_counter() + PROGRESS_EVERY_S

    def tell(self, submitted: int, jobs: int) -> None:
        """Print how many jobs have been submitted, if the interval has passed."""
        if perf_counter() >= self._next:
            self._next = perf_counter() + PROGRESS_EVERY_S
            notify(f"{submitted:,} of {jobs:,} jobs submitted")


def _from_files(trace: Path | None, nodes: Path | None, cluster: str | None, kind: TraceFormat | None) -> _Scenario:
    if trace is None:
        raise typer.BadParameter("give a trace, or --from-pool for the jobs of the pool")
    if (nodes is None) == (cluster is None):
        raise typer.BadParameter("give the nodes with --nodes FILE or --cluster 4x8xA100")
    machines = read_nodes(nodes) if nodes is not None else parse_cluster(cluster or "")
    found = read_trace(trace, kind)
    names = {node.name for node in machines}
    for node in (node for made in found.reservations for node in made.nodes):
        if node not in names:
            hint = f"There are: {', '.join(sorted(names)[:5])} ..."
            raise GpupoolError(ErrorCode.UNKNOWN_NODE, f"There is no node {node} to reserve.", hint)
    return _Scenario(found, machines)


def _settings(policy: Policy, order: Order | None, turn: str | None) -> Settings:
    changes: dict[str, Any] = {} if order is None else {"order": order}
    if turn is not None:
        changes["turn_s"] = parse_duration_s(turn)
    return replace(policy, **changes).settings(Settings())


def _from_pool(since: str) -> _Scenario:
    now = time.time()
    pool = open_pool()
    found = load_history(pool, now - parse_duration_s(since), now)
    return _Scenario(*found, decode(Policy, pool.get("policy")), pool.get("pool")["time_zone"])


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
    if not 0 <= value <= MAX_WEIGHT:
        sentence = f"'{text[:40]}' is not a weight."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Write a number, 0 or more: --weight team-a=2.")
    return value


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        sentence = f"{path} cannot be written: {error.strerror}."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Give a writable file.") from error


def _print(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        show_json(found[0] if len(found) == 1 else {"base": found[0], "changed": found[1]})
    elif len(found) == 1:
        show(simulation_lines(found[0], out_style()))
    else:
        show(comparison_lines(found[0], found[1], out_style()))
