"""``ps``, ``list``, ``describe``, ``why`` and ``events``."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, Ref, command, notify_if_emulated
from gpupool.cli.kubernetes.names import resolve_reference
from gpupool.cli.output import out_style, show, show_json
from gpupool.cli.render import machines, people
from gpupool.cli.render.workloads import detail_lines, event_lines, why_lines, workload_lines
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.states import WorkloadState

EVENTS_SHOWN = 10


class Listed(StrEnum):
    """Objects that ``list`` can list."""

    JOBS = "jobs"
    NODES = "nodes"
    PROJECTS = "projects"
    TEMPLATES = "templates"


class Described(StrEnum):
    """Objects that ``describe`` can describe."""

    JOB = "job"
    NODE = "node"
    PROJECT = "project"


All = Annotated[bool, typer.Option("-a", "--all", "-A", "--all-projects", help="Include finished workloads.")]
States = Annotated[list[WorkloadState] | None, typer.Option("-s", "--state", help="List only this state; repeatable.")]
OfProject = Annotated[
    str | None, typer.Option("-p", "--project", help="List only this project.", autocompletion=completion.projects)
]
OfUser = Annotated[
    str | None, typer.Option("-u", "--user", help="List only this user.", autocompletion=completion.users)
]
Named = Annotated[str | None, typer.Option("--name", help="List only this name.")]
Labelled = Annotated[
    list[str] | None, typer.Option("-l", "--label", metavar="KEY=VALUE", help="List only workloads with this label.")
]
Search = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="WORDS",
        help="Search name, id, state, kind, project, user and label for these words; user:ann searches one.",
    ),
]
SortBy = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="KEY",
        help="Sort by created, name, state, project, user, gpus, ran or ended; -KEY reverses. Default: -created.",
    ),
]
Limit = Annotated[int | None, typer.Option("-n", "--limit", min=1, help="List at most this number, newest first.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool ps", "gpupool ps -a --user ann", "gpupool ps -w", "gpupool ps -a --search resnet")(ps)
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
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Refresh every two seconds.")] = False,
    state: States = None,
    project: OfProject = None,
    user: OfUser = None,
    name: Named = None,
    label: Labelled = None,
    search: Search = None,
    sort: SortBy = None,
    limit: Limit = None,
    json: AsJson = False,
) -> None:
    """List live workloads, or with -a all of them.

    ABOUT shows why a workload waits, how it ended, or its command.
    """
    query = {"all": every or bool(state), "state": [str(s) for s in state or ()], "project": project, "user": user}
    query |= {"name": name, "label": label, "search": search, "sort": sort, **_fields(json)}
    pool = open_pool()
    if watch and not json:
        from gpupool.cli.tui.watch import watch_screen

        watch_screen(lambda style: workload_lines(pool.workloads(query, limit), time.time(), style))
        return
    found = pool.workloads(query, limit)
    if json:
        show_json({"workloads": found})
        return
    notify_if_emulated(pool)
    show(workload_lines(found, time.time(), out_style()))


def _fields(json: bool) -> dict[str, bool | None]:
    """Return the part of a query that decides about the fields of workloads."""
    return {"summary": None if json else True, "reasons": True}


def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")] = Listed.JOBS,
    every: All = False,
    json: AsJson = False,
) -> None:
    """List jobs, nodes, projects or templates."""
    if what is Listed.TEMPLATES:
        from gpupool.cli.request.templates import all_templates

        names = dict(all_templates())
        if json:
            show_json({"templates": names})
        else:
            show(names)
        return
    pool = open_pool()
    if what is Listed.JOBS:
        found = {"workloads": pool.workloads({"all": every, **_fields(json)})}
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
    notify_if_emulated(pool)
    show(lines)


def describe(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[job|node|project|KIND] NAME",
            help="The object; KIND NAME and KIND/NAME as for 'gpupool get'.",
            autocompletion=completion.workloads,
        ),
    ],
    json: AsJson = False,
) -> None:
    """Show the details of a job, a node or a project."""
    if (service := _deployment(words)) is not None:
        from gpupool.cli.commands.work.service import describe as describe_service

        describe_service(service, json=json)
        return
    pool = open_pool()
    kind, name = _kind_and_name(pool, words)
    path = {Described.JOB: workload_path(name), Described.NODE: f"nodes/{quote_segment(name)}"}.get(kind)
    found = pool.get(path) if path else _project(pool, name)
    if json:
        show_json(found)
        return
    notify_if_emulated(pool)
    show(_described(pool, kind, found))


def _deployment(words: list[str]) -> str | None:
    """Return NAME of ``deployment/NAME`` and ``deployment NAME``; None for other words."""
    from gpupool.specs.kubernetes.kinds import DEPLOYMENT

    kind, _, name = "/".join(words).partition("/")
    return name if len(words) <= 2 and name and kind.lower() in DEPLOYMENT.words else None


def _kind_and_name(pool: PoolClient, words: list[str]) -> tuple[Described, str]:
    from gpupool.cli.kubernetes.names import NODES, workload_to_describe

    if len(words) <= 2 and (found := workload_to_describe(pool, words)):
        return Described.JOB, found
    if len(words) == 1:
        first, slash, name = words[0].partition("/")
        return (Described.NODE, name) if slash and first in NODES else (Described.JOB, words[0])
    if len(words) > 2 or words[0] not in [str(kind) for kind in Described]:
        raise typer.BadParameter("give a name, or job, node or project and a name")
    return Described(words[0]), words[1]


def _described(pool: PoolClient, kind: Described, found: Any) -> list[str]:
    style, now = out_style(), time.time()
    if kind is Described.NODE:
        return machines.node_detail_lines(found, now, style)
    if kind is Described.PROJECT:
        return people.project_detail_lines(found, style)
    events = pool.get("events", {"workload": found["id"], "newest": True, "limit": EVENTS_SHOWN})["events"]
    waits = found["state"] == WorkloadState.QUEUED or found.get("lazy") == "waiting"
    reasons = pool.get(workload_path(found["id"], "why")) if waits else None
    used = _efficiency(pool, found) if found["started_at"] else None
    return detail_lines(found, events, reasons, now, style, used)


def _efficiency(pool: PoolClient, found: Any) -> Any:
    try:
        return pool.get(workload_path(found["id"], "efficiency"))
    except GpupoolError as error:
        if error.code in {ErrorCode.NOT_FOUND, ErrorCode.DATABASE_UNREACHABLE}:  # an older control plane, or an outage
            return None
        raise


def _project(pool: PoolClient, name: str) -> Any:
    projects = pool.get("projects")["projects"]
    found = next((project for project in projects if project["name"] == name), None)
    if found is None:
        known = ", ".join(project["name"] for project in projects)
        raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name}'.", f"Projects: {known}.")
    return found


def why(name: Ref, json: AsJson = False) -> None:
    """Show why a workload or a replica (NAME/INDEX) waits: position, estimate and suggestions."""
    workload, index = resolve_reference(name)
    found = open_pool().get(workload_path(workload, "why"), {"index": index})
    if json:
        show_json(found)
    else:
        show(why_lines(found, out_style()))


def events(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show events of this workload only.", autocompletion=completion.workloads),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new events.")] = False,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=1000, help="Show at most this number, the newest ones.")
    ] = 50,
    json: AsJson = False,
) -> None:
    """Show events: who did what to which workload, and why."""
    pool = open_pool()
    workload = pool.get(workload_path(name))["id"] if name else None
    found = pool.get("events", {"workload": workload, "newest": True, "limit": limit})
    if follow:
        from gpupool.cli.transport.streaming import follow_events

        follow_events(pool, found["events"], workload, as_json=json)
    elif json:
        show_json(found)
    else:
        show(event_lines(found["events"], out_style()))
