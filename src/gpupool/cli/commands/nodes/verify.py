"""``verify``: check GPUs by a workload on each node, and cordon those that fail."""

from __future__ import annotations

import base64
import json as json_lib
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import typer

from gpupool.cli import completion
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import notify, show, show_json
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.supervision import NODE_PROGRAM
from gpupool.verify.results import Outcome, Report, Subject, compare_with_peers
from gpupool.verify.table import table

PROJECT = "gpupool-maintenance"
PROGRAM = "verify/__main__.py"
LABEL = "gpupool.io/verify"  # of the workloads; its value is the node
MAX_TIME = "30m"
KEEP = "30d"
MAX_REASON = 200
Json = dict[str, Any]

Node = Annotated[
    str | None, typer.Argument(metavar="[NODE]", help="A node; default: all.", autocompletion=completion.nodes)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool verify", "gpupool verify gpu1 --gpu 2", "gpupool verify gpu1 --json")(verify)


def verify(
    node: Node = None,
    gpu: Annotated[
        list[int] | None, typer.Option("--gpu", metavar="N", help="Check only this GPU, by its index; repeatable.")
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="TIME", help="Fail if the GPUs are not free after this time.")
    ] = None,
    cordon: Annotated[bool, typer.Option("--cordon/--no-cordon", help="Cordon GPUs that fail (default).")] = True,
    json: AsJson = False,
) -> int:
    """Check GPUs by doing work on them, and cordon those that fail. For administrators.

    A workload of the project gpupool-maintenance gets all GPUs of each node that accept work; it waits until they are
    free. The exit status is 0 for ok, 1 for suspect, and 2 for fail.
    """
    pool = open_pool()
    nodes = _nodes(pool, node)
    _make_project(pool)
    workloads = [(each, pool.post("workloads", _request(each, gpu or [], wait))) for each in nodes]
    for each, workload in workloads:
        notify(f"{workload['name']} checks the GPUs of {each['name']}")
    try:
        reports = _compare([_result(pool, workload) for _, workload in workloads])
    except KeyboardInterrupt:
        for _, workload in workloads:
            pool.post(workload_path(workload["id"], "stop"), {})
        raise
    if json:
        show_json({"reports": [report.to_dict() for report in reports]})
    else:
        for report in reports:
            show(table(report))
    if cordon:
        for each, report in zip(nodes, reports, strict=True):
            _cordon_failed(pool, each, report)
    return max(report.exit_status for report in reports)


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


def _count(node: Json) -> int:
    """Return the number of GPUs that a workload can get on the node, when nothing runs there."""
    return sum(gpu["available"] and not gpu["mig_profile"] for gpu in node["gpus"])


def _make_project(pool: PoolClient) -> None:
    if all(project["name"] != PROJECT for project in pool.get("projects")["projects"]):
        pool.post("projects", {"name": PROJECT})


def _request(node: Json, gpus: Iterable[int], wait: str | None) -> Json:
    chosen = [word for index in gpus for word in ("--gpu", str(index))]
    return {
        "name": f"verify-{node['name']}"[:63].rstrip("-._"),
        "project": PROJECT,
        "command": [NODE_PROGRAM, PROGRAM, "--json", "--node", node["name"], *chosen],
        "gpus": {"count": _count(node), "labels": {"node": node["name"]}},
        "labels": {LABEL: node["name"]},
        "priority": "low",
        "restart": "never",
        "max_time": MAX_TIME,
        "ttl": KEEP,
        **({} if wait is None else {"wait": wait}),
    }


def _result(pool: PoolClient, workload: Json) -> Report:
    """Wait for the end of a workload and return its report. Raises ``GpupoolError`` if it has none."""
    from gpupool.cli.commands.work.control import await_end
    from gpupool.cli.transport.member_logs import all_chunks

    ended = await_end(pool, workload["id"], float("inf"))
    chunks = all_chunks(pool, workload_path(workload["id"], "logs"), {})
    output = b"".join(base64.b64decode(chunk["data"]) for chunk in chunks if chunk["stream"] == "out")
    for line in reversed(output.decode(errors="replace").splitlines()):
        if line.startswith("{"):
            return Report.from_dict(json_lib.loads(line))
    raise GpupoolError(
        ErrorCode.NOT_FOUND,
        f"{workload['name']} is {ended['state']} and has no report.",
        f"See 'gpupool describe {workload['id']}' and 'gpupool logs {workload['id']}'.",
    )


def _compare(reports: list[Report]) -> list[Report]:
    """Return the reports with rates compared among all GPUs of a model, on all nodes."""
    compared = iter(compare_with_peers(tuple(gpu for report in reports for gpu in report.gpus)))
    return [replace(report, gpus=tuple(next(compared) for _ in report.gpus)) for report in reports]


def _cordon_failed(pool: PoolClient, node: Json, report: Report) -> None:
    """Cordon each GPU that failed, and only it."""
    index_of = {gpu["uuid"]: gpu["index"] for gpu in node["gpus"]}
    for gpu in report.gpus:
        if gpu.outcome is Outcome.FAIL and gpu.uuid in index_of:
            body = {"gpu": index_of[gpu.uuid], "reason": _reason(gpu)}
            pool.post(f"nodes/{quote_segment(node['name'])}/cordon", body)
            notify(f"GPU {index_of[gpu.uuid]} of {node['name']} is cordoned: {body['reason']}")


def _reason(gpu: Subject) -> str:
    failed = next(check for check in gpu.checks if check.outcome is Outcome.FAIL)
    return f"verify: {failed.name}: {failed.note}"[:MAX_REASON]
