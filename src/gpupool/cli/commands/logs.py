"""``logs``: what a program wrote, so far or as it comes."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpupool.cli import completing
from gpupool.cli.commands.common import AsJson, Index, command
from gpupool.cli.following import LogPrinter
from gpupool.cli.member_logs import Style, all_chunks, chosen, follow_log, print_members, print_whole
from gpupool.cli.output import show_json, tell
from gpupool.cli.pool import Pool, open_pool, reference, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME[/N]",
        help="A workload's name or id, and a replica's number; or KIND/NAME.",
        autocompletion=completing.workloads,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool logs train-1",
        "gpupool logs -f --tail 20 train-1",
        "gpupool logs sweep/3 --since 10m --timestamps",
        "gpupool logs ddp --rank 3",
        "gpupool logs -f ps --role worker",
        "gpupool logs job/pi",
        "gpupool logs -l app=train --tail 20",
    )(logs)


def logs(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Name = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the program ends.")] = False,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only the last 10m, 2h.")] = None,
    tail: Annotated[int | None, typer.Option("-t", "--tail", min=0, metavar="LINES", help="The last lines.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="The time before each line.")] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="An earlier try.", metavar="N")] = None,
    index: Index = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="The member with this rank.", metavar="N")] = None,
    role: Annotated[str | None, typer.Option("--role", help="All members of a role.", metavar="ROLE")] = None,
    all_members: Annotated[bool, typer.Option("--all", help="All members, each line with its name.")] = False,
    selector: Annotated[
        str | None, typer.Option("-l", "--selector", metavar="KEY=VALUE,...", help="All of yours with these labels.")
    ] = None,
    previous: Annotated[bool, typer.Option("-p", "--previous", help="The try before the last.")] = False,
    json: AsJson = False,
) -> None:
    """Print what a program wrote: its output to stdout, its errors to stderr, byte for byte.

    NAME may also be KIND/NAME of an object that was applied: job/pi, pod/pi-1.
    """
    if selector is not None:
        _logs_of_labelled(selector, Style(follow, timestamps, _begin(since), json), tail)
        return
    if name is None:
        raise typer.BadParameter("name a workload, or give -l")
    pool = open_pool()
    one = index is None and rank is None and role is None and not all_members
    workload, number = _looked_up(pool, name, tell_which=one)
    if previous:
        attempt = _attempt_before(pool, workload, number or 0)
    begin = _begin(since)
    query = {"index": number if index is None else index, "attempt": attempt, "tail": tail, "since": begin}
    path = workload_path(workload, "logs")
    if rank is not None or role is not None or all_members:
        found = chosen(pool.get(workload_path(workload), {}), rank, role)
        if len(found) > 1:
            print_members(pool, path, query, found, Style(follow, timestamps, begin, json))
            return
        query["index"] = found[0]["index"]
    printer = LogPrinter(timestamps=timestamps, since=begin)
    if follow:
        follow_log(pool, path, query, printer, as_json=json)
        return
    if json:
        show_json({"chunks": all_chunks(pool, path, query)})
    else:
        print_whole(pool, path, query, printer)


def _begin(since: str | None) -> float | None:
    return time.time() - parse_duration_s(since) if since else None


def _looked_up(pool: Pool, name: str, *, tell_which: bool) -> tuple[str, int | None]:
    """The workload and the replica that a name, or KIND/NAME, means."""
    if "/" not in name:
        return reference(name)
    from gpupool.cli.kubernetes import detail, resolve

    found = resolve(pool, name)
    workload, number = reference(found)
    if found != name and number is None and tell_which:
        members = detail(pool, {"id": workload})["replicas"]
        if len(members) > 1:
            tell(f"found {len(members)} pods; this is pod/{members[0]['member']}")
    return workload, number


def _attempt_before(pool: Pool, workload: str, index: int) -> int:
    replicas = pool.get(workload_path(workload), {"replicas_from": index})["replicas"]
    last = next((row["attempt"] for row in replicas if row["index"] == index), 0)
    if last < 2:
        raise GpupoolError(ErrorCode.NOT_FOUND, f"{workload} has had no try before its last.", "Leave -p out.")
    return int(last) - 1


def _logs_of_labelled(selector: str, style: Style, tail: int | None) -> None:
    from gpupool.cli.kubernetes import Scope, detail

    pool = open_pool()
    scope = Scope(labels=tuple(part for part in selector.split(",") if part))
    found = pool.workloads({**scope.query(pool), "label": list(scope.labels)})
    if style.follow and len(found) > 1:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"{len(found)} workloads have these labels; one can be followed.", "Name it."
        )
    for workload in reversed(found):
        query = {"tail": tail, "since": style.begin}
        print_members(pool, workload_path(workload["id"], "logs"), query, detail(pool, workload)["replicas"], style)
