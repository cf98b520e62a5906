"""``verify``: check GPUs by a workload on each node, and cordon those that fail."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.commands.nodes.verify_network import verify_network
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.machines import moment_text
from gpupool.cli.render.text import table as text_table
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment, workload_path
from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s
from gpupool.verify.results import CheckOutcome, Subject, VerifyReport, compare_with_peers
from gpupool.verify.table import table
from gpupool.verify.workload import (
    LABEL,
    PROJECT,
    SLICE_LABEL,
    cordon_reason,
    findings,
    read_report,
    request_body,
    time_limit_s,
)

MAX_RUNS = 64  # of which the history shows the results
HISTORY_HEADERS = ("TIME", "NODE", "GPU", "MODEL", "RESULT", "FINDINGS")
Json = dict[str, Any]

Node = Annotated[
    str | None, typer.Argument(metavar="[NODE]", help="A node; default: all.", autocompletion=completion.nodes)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool verify",
        "gpupool verify gpu1 --gpu 2",
        "gpupool verify gpu1 --level 3 --burn 10m",
        "gpupool verify --network",
        "gpupool verify gpu1 --history",
    )(verify)


def verify(  # noqa: C901, PLR0913, PLR0917 - one parameter per option
    node: Node = None,
    gpu: Annotated[
        list[int] | None, typer.Option("--gpu", metavar="N", help="Check only this GPU, by its index; repeatable.")
    ] = None,
    level: Annotated[
        int, typer.Option("--level", min=1, max=3, help="1: quick; 2: most memory, copies between GPUs; 3: under load.")
    ] = 1,
    burn: Annotated[
        str, typer.Option("--burn", metavar="TIME", help="Set the length of the load of level 3 for each GPU.")
    ] = "1m",
    fraction: Annotated[
        float | None,
        typer.Option("--slice", metavar="PART", help="Check a slice of one GPU of each node, and its memory limit."),
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="TIME", help="Fail if the GPUs are not free after this time.")
    ] = None,
    cordon: Annotated[bool, typer.Option("--cordon/--no-cordon", help="Cordon GPUs that fail (default).")] = True,
    network: Annotated[bool, typer.Option("--network", help="Measure the network between all nodes instead.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Show earlier results; check nothing.")] = False,
    json: AsJson = False,
) -> int:
    """Check GPUs by doing work on them, and cordon those that fail. For administrators.

    A workload of the project gpupool-maintenance gets all GPUs of each node that accept work; it waits until they are
    free. The exit status is 0 for ok, 1 for suspect, and 2 for fail.
    """
    pool = open_pool()
    if history:
        return _show_history(pool, node, frozenset(gpu or ()), as_json=json)
    if fraction is not None and (gpu or level > 1):
        raise typer.BadParameter("--slice excludes --gpu and --level")
    if network and (node or gpu or level > 1 or fraction is not None):
        raise typer.BadParameter("--network excludes a node, --gpu, --level and --slice")
    if network:
        _make_project(pool)
        return verify_network(pool, PROJECT, wait, as_json=json)
    nodes = _nodes(pool, node)
    _check_indexes(nodes, gpu or ())
    _make_project(pool)
    chosen = [word for index in gpu or () for word in ("--gpu", str(index))]
    burn_s = parse_duration_s(burn)
    words = [*chosen, *(["--slice"] if fraction is not None else []), "--level", str(level), "--burn", f"{burn_s:g}"]
    limit_s = time_limit_s(level, burn_s)
    workloads = [(each, pool.post("workloads", _request(each, words, limit_s, wait, fraction))) for each in nodes]
    for each, workload in workloads:
        notify(f"{workload['name']} checks the GPUs of {each['name']}")
    try:
        results = [(each, _result(pool, workload)) for each, workload in workloads]
    except KeyboardInterrupt:
        for _, workload in workloads:
            pool.post(workload_path(workload["id"], "stop"), {})
        raise
    checked = [each for each, report in results if report is not None]
    found = [report for _, report in results if report is not None]
    reports = found if fraction is not None else _compare(found, [run.report for run in _runs(pool, None)])
    if json:
        show_json({"reports": [report.to_dict() for report in reports]})
    else:
        for report in reports:
            show(table(report))
    if cordon and fraction is None:
        for each, report in zip(checked, reports, strict=True):
            _cordon_failed(pool, each, report)
    worst = max((report.exit_status for report in reports), default=0)
    return worst if len(checked) == len(nodes) else max(worst, EXIT_POOL_ERROR)


def _nodes(pool: PoolClient, name: str | None) -> list[Json]:
    """Return the nodes to check. Raises ``GpupoolError`` if there is none."""
    if name is not None:
        found = [pool.get(f"nodes/{quote_segment(name)}")]
    else:
        found = [node for node in pool.get("nodes")["nodes"] if node["state"] == "up" and _count(node)]
    if not found or not _count(found[0]):
        raise GpupoolError(
            ErrorCode.NO_CAPACITY,
            f"{name or 'No node that is up'} has {'no' if name else 'a'} GPU that accepts work.",
            "See 'gpupool nodes' and 'gpupool list-gpus'; MIG instances cannot be checked yet.",
        )
    return found


def _check_indexes(nodes: Iterable[Json], wanted: Iterable[int]) -> None:
    """Raise ``GpupoolError`` if a node lacks a GPU that is to be checked."""
    for node in nodes:
        there = {gpu["index"] for gpu in node["gpus"]}
        if missing := [index for index in wanted if index not in there]:
            raise GpupoolError(
                ErrorCode.NOT_FOUND,
                f"{node['name']} has no GPU {missing[0]}.",
                f"It has: {', '.join(map(str, sorted(there)))}.",
            )


def _count(node: Json) -> int:
    """Return the number of GPUs that a workload can get on the node, when nothing runs there."""
    return sum(gpu["available"] and not gpu["mig_profile"] for gpu in node["gpus"])


def _make_project(pool: PoolClient) -> None:
    if all(project["name"] != PROJECT for project in pool.get("projects")["projects"]):
        members = [pool.get("whoami")["user"]]  # administrators need not be members; nobody else shall use it
        pool.post("projects", {"name": PROJECT, "members": members})


def _request(node: Json, words: list[str], limit_s: float, wait: str | None, fraction: float | None) -> Json:
    amount = {"count": _count(node)} if fraction is None else {"count": 1, "fraction": fraction}
    labels = {LABEL if fraction is None else SLICE_LABEL: node["name"]}
    body = request_body(node["name"], amount, labels, words, limit_s)
    return body if wait is None else {**body, "wait": wait}


def _result(pool: PoolClient, workload: Json) -> VerifyReport | None:
    """Wait for the end of a workload and return its report; print a message and return None if it has none."""
    from gpupool.cli.commands.work.control import await_end

    ended = await_end(pool, workload["id"], float("inf"))
    report = _read_report(pool, workload)
    if report is None:
        see = f"see 'gpupool describe {workload['id']}' and 'gpupool logs {workload['id']}'"
        notify(f"{workload['name']} is {ended['state']} and has no report; {see}")
    return report


def _read_report(pool: PoolClient, workload: Json) -> VerifyReport | None:
    """Return the report in the output of a workload; None if there is none."""
    from gpupool.cli.transport.member_logs import all_chunks

    chunks = all_chunks(pool, workload_path(workload["id"], "logs"), {}).chunks
    output = b"".join(base64.b64decode(chunk["data"]) for chunk in chunks if chunk["stream"] == "out")
    return read_report(output)


@dataclass(frozen=True, slots=True)
class Run:
    """An earlier run of the checks: its workload, when it ended, and its report."""

    workload: str
    finished_at: float
    report: VerifyReport


def _runs(pool: PoolClient, node: str | None) -> list[Run]:
    """Return the latest runs whose workloads still exist, newest first."""
    query = {"all": True, "project": PROJECT, "label": None if node is None else [f"{LABEL}={node}"]}
    found = []
    for workload in pool.workloads(query, MAX_RUNS):
        report = _read_report(pool, workload) if LABEL in workload["labels"] and workload["finished_at"] else None
        if report is not None:
            found.append(Run(workload["id"], workload["finished_at"], report))
    return found


def _show_history(pool: PoolClient, node: str | None, gpus: frozenset[int], *, as_json: bool) -> int:
    """Print one line for each GPU of each run, newest first."""
    runs = _runs(pool, node)
    if as_json:
        show_json(
            {
                "runs": [
                    {"workload": run.workload, "finished_at": run.finished_at, "report": run.report.to_dict()}
                    for run in runs
                ]
            }
        )
        return 0
    zone = pool.get("pool")["time_zone"]
    rows = [
        (moment_text(run.finished_at, zone), run.report.node, gpu.index, gpu.model, gpu.outcome, findings(gpu) or "-")
        for run in runs
        for gpu in run.report.gpus
        if not gpus or gpu.index in gpus
    ]
    show(text_table(HISTORY_HEADERS, rows, out_style()))
    return 0


def _compare(reports: list[VerifyReport], earlier: list[VerifyReport]) -> list[VerifyReport]:
    """Return the reports with rates compared among all GPUs of a model; ``earlier`` reports have the others."""
    others: dict[str, Subject] = {}
    for gpu in (gpu for report in earlier for gpu in report.gpus):
        others.setdefault(gpu.uuid, gpu)
    compared = iter(compare_with_peers(tuple(gpu for report in reports for gpu in report.gpus), others.values()))
    return [replace(report, gpus=tuple(next(compared) for _ in report.gpus)) for report in reports]


def _cordon_failed(pool: PoolClient, node: Json, report: VerifyReport) -> None:
    """Cordon each GPU that failed, and only it."""
    index_of = {gpu["uuid"]: gpu["index"] for gpu in node["gpus"]}
    for gpu in report.gpus:
        if gpu.outcome is CheckOutcome.FAIL and gpu.uuid in index_of:
            body = {"gpu": index_of[gpu.uuid], "reason": cordon_reason(gpu)}
            pool.post(f"nodes/{quote_segment(node['name'])}/cordon", body)
            notify(f"GPU {index_of[gpu.uuid]} of {node['name']} is cordoned: {body['reason']}")
