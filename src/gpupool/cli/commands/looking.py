"""``ps``, ``list``, ``describe``, ``why`` and ``events``."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from gpupool.cli import completing
from gpupool.cli.commands.common import AsJson, Ref, command
from gpupool.cli.output import out_style, show, show_json, tell_emulated
from gpupool.cli.pool import Pool, meant, open_pool, segment, workload_path
from gpupool.cli.render import machines, people
from gpupool.cli.render.workloads import detail_lines, event_lines, why_lines, workload_lines
from gpupool.domain.workload import WorkloadState

EVENTS_SHOWN = 10


class Listed(StrEnum):
    """What ``list`` can list."""

    JOBS = "jobs"
    NODES = "nodes"
    PROJECTS = "projects"


class Described(StrEnum):
    """What ``describe`` can describe."""

    JOB = "job"
    NODE = "node"
    PROJECT = "project"


All = Annotated[bool, typer.Option("-a", "--all", "-A", "--all-projects", help="Finished ones too.")]
States = Annotated[list[WorkloadState] | None, typer.Option("-s", "--state", help="Only this state; repeatable.")]
OfProject = Annotated[
    str | None, typer.Option("-p", "--project", help="Only this project.", autocompletion=completing.projects)
]
OfUser = Annotated[str | None, typer.Option("-u", "--user", help="Only this user's.", autocompletion=completing.users)]
Named = Annotated[str | None, typer.Option("--name", help="Only this name.")]
Labelled = Annotated[list[str] | None, typer.Option("-l", "--label", metavar="KEY=VALUE", help="Only with this label.")]
Limit = Annotated[int | None, typer.Option("-n", "--limit", min=1, help="At most so many, newest first.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool ps", "gpupool ps -a --user ann", "gpupool ps -w", "gpupool ps --state queued --json")(ps)
    command(app, "gpupool list", "gpupool list jobs -A", "gpupool list nodes", name="list")(list_)
    command(
        app,
        "gpupool describe train-1",
        "gpupool describe job train-1",
        "gpupool describe node gpu1",
        "gpupool describe pod/eval",
    )(describe)
    command(app, "gpupool why train-1", "gpupool why sweep/3")(why)
    command(app, "gpupool events", "gpupool events train-1 -f", "gpupool events --limit 500 --json")(events)


def ps(  # noqa: PLR0913, PLR0917 - one parameter per option
    every: All = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show it again every two seconds.")] = False,
    state: States = None,
    project: OfProject = None,
    user: OfUser = None,
    name: Named = None,
    label: Labelled = None,
    limit: Limit = None,
    json: AsJson = False,
) -> None:
    """List the workloads: live ones, or with -a all.

    ABOUT says why one waits, how it ended, or what it runs.
    """
    query = {"all": every or bool(state), "state": [str(s) for s in state or ()], "project": project, "user": user}
    query |= {"name": name, "label": label}
    pool = open_pool()
    if watch and not json:
        from gpupool.cli.watching import repeat

        repeat(lambda style: workload_lines(pool.workloads(query, limit), time.time(), style))
        return
    found = pool.workloads(query, limit)
    if json:
        show_json({"workloads": found})
        return
    tell_emulated(pool)
    show(workload_lines(found, time.time(), out_style()))


def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")] = Listed.JOBS,
    every: All = False,
    json: AsJson = False,
) -> None:
    """List jobs, nodes or projects."""
    pool = open_pool()
    if what is Listed.JOBS:
        found = {"workloads": pool.workloads({"all": every})}
        lines = workload_lines(found["workloads"], time.time(), out_style())
    elif what is Listed.NODES:
        found = pool.get("nodes")
        lines = machines.node_lines(found["nodes"], out_style())
    else:
        from gpupool.cli.settings import default_project

        found = pool.get("projects")
        lines = people.project_lines(found["projects"], default_project(), out_style())
    if json:
        show_json(found)
        return
    tell_emulated(pool)
    show(lines)


def describe(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[job|node|project|KIND] NAME",
            help="What to describe; KIND NAME and KIND/NAME as 'gpupool get' has them.",
            autocompletion=completing.workloads,
        ),
    ],
    json: AsJson = False,
) -> None:
    """Show everything known of a job, a node or a project."""
    pool = open_pool()
    kind, name = _kind_and_name(pool, words)
    path = {Described.JOB: workload_path(name), Described.NODE: f"nodes/{segment(name)}"}.get(kind)
    found = pool.get(path) if path else _project(pool, name)
    if json:
        show_json(found)
        return
    tell_emulated(pool)
    show(_described(pool, kind, found))


def _kind_and_name(pool: Pool, words: list[str]) -> tuple[Described, str]:
    from gpupool.cli.kubernetes import NODES, described

    if len(words) <= 2 and (found := described(pool, words)):
        return Described.JOB, found
    if len(words) == 1:
        first, slash, name = words[0].partition("/")
        return (Described.NODE, name) if slash and first in NODES else (Described.JOB, words[0])
    if len(words) > 2 or words[0] not in [str(kind) for kind in Described]:
        raise typer.BadParameter("give a name, or one of job, node and project and a name")
    return Described(words[0]), words[1]


def _described(pool: Pool, kind: Described, found: Any) -> list[str]:
    style, now = out_style(), time.time()
    if kind is Described.NODE:
        return machines.node_detail_lines(found, now, style)
    if kind is Described.PROJECT:
        return people.project_detail_lines(found, style)
    events = pool.get("events", {"workload": found["id"], "newest": True, "limit": EVENTS_SHOWN})["events"]
    waits = found["state"] == WorkloadState.QUEUED
    reasons = pool.get(workload_path(found["id"], "why")) if waits else None
    return detail_lines(found, events, reasons, now, style)


def _project(pool: Pool, name: str) -> Any:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    projects = pool.get("projects")["projects"]
    found = next((project for project in projects if project["name"] == name), None)
    if found is None:
        known = ", ".join(project["name"] for project in projects)
        raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name}'.", f"There are: {known}.")
    return found


def why(name: Ref, json: AsJson = False) -> None:
    """Say why a workload waits, or one replica of it (NAME/INDEX): position, when it should start, what would help."""
    workload, index = meant(name)
    found = open_pool().get(workload_path(workload, "why"), {"index": index})
    if json:
        show_json(found)
    else:
        show(why_lines(found, out_style()))


def events(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Of this workload only.", autocompletion=completing.workloads)
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what happens from now.")] = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="The newest so many.")] = 50,
    json: AsJson = False,
) -> None:
    """Show what happened: who did what to which workload, and why."""
    pool = open_pool()
    workload = pool.get(workload_path(name))["id"] if name else None
    found = pool.get("events", {"workload": workload, "newest": True, "limit": limit})
    if follow:
        from gpupool.cli.following import follow_events

        follow_events(pool, found["events"], workload, as_json=json)
    elif json:
        show_json(found)
    else:
        show(event_lines(found["events"], out_style()))
