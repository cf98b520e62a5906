"""``logs``: the output of programs."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, Index, command
from gpupool.cli.endings import attempt_text, ending_lines, ending_of
from gpupool.cli.output import notify, show_json
from gpupool.cli.render.line_filter import LineSearch
from gpupool.cli.transport.member_logs import (
    LogFormat,
    all_chunks,
    follow_log,
    print_members,
    print_whole,
    select_members,
)
from gpupool.cli.transport.pool import PoolClient, open_pool, split_reference, workload_path
from gpupool.cli.transport.streaming import LogPrinter
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.log_records import ERROR_LINE
from gpupool.domain.units import parse_duration_s

RECORD_TIMEOUT_S = 1.0  # how long the pool may take to record an end whose output is complete

MAX_CONTEXT = 1000
ERROR_CONTEXT = 3
EXIT_NO_MATCH = 1  # as `grep`

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME[/N]",
        help="A workload's name or id, and a replica's index; or KIND/NAME.",
        autocompletion=completion.workloads,
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
        "gpupool logs train-1 --errors",
        "gpupool logs train-1 --grep 'loss|epoch' --timestamps",
        "gpupool logs job/pi",
        "gpupool logs -l app=train --tail 20",
    )(logs)


def logs(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Name = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the output until the program ends.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Print only the output of the last 10m, 2h.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("-t", "--tail", min=0, metavar="LINES", help="Print only the last lines.")
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the time before each line.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Print the output of this attempt.", metavar="N")
    ] = None,
    index: Index = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="Print the member with this rank.", metavar="N")
    ] = None,
    role: Annotated[str | None, typer.Option("--role", help="Print all members of this role.", metavar="ROLE")] = None,
    all_members: Annotated[bool, typer.Option("--all", help="Print all members, with names before lines.")] = False,
    selector: Annotated[
        str | None,
        typer.Option("-l", "--selector", metavar="KEY=VALUE,...", help="Print all your workloads with these labels."),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option("-g", "--grep", metavar="REGEX", help="Print only lines that match this regular expression."),
    ] = None,
    ignore_case: Annotated[bool, typer.Option("-i", "--ignore-case", help="Ignore case with --grep.")] = False,
    errors: Annotated[
        bool, typer.Option("--errors", help="Print only lines that report errors, with 3 lines around them.")
    ] = False,
    context: Annotated[
        int | None,
        typer.Option("-C", "--context", min=0, max=MAX_CONTEXT, metavar="LINES", help="Print lines around matches."),
    ] = None,
    previous: Annotated[bool, typer.Option("-p", "--previous", help="Print the attempt before the last.")] = False,
    json: AsJson = False,
) -> int:
    """Print the output of a program: stdout and stderr, byte for byte.

    NAME may also be KIND/NAME of an applied object: job/pi, pod/pi-1. With --grep or --errors the exit status is 1 if
    no line matches.
    """
    search = _search(grep, context, ignore_case=ignore_case, errors=errors)
    if search is not None and json:
        raise typer.BadParameter("--grep and --errors cannot be used with --json")
    style = LogFormat(follow, timestamps, _begin(since), json, search)
    if selector is not None:
        _logs_of_labelled(selector, style, tail)
        return _status(search)
    if name is None:
        raise typer.BadParameter("give a workload, or -l")
    pool = open_pool()
    one = index is None and rank is None and role is None and not all_members
    workload, number = _find_replica(pool, name, tell_which=one)
    if previous:
        attempt = _attempt_before(pool, workload, number or 0)
    begin = style.begin
    query = {"index": number if index is None else index, "attempt": attempt, "tail": tail, "since": begin}
    path = workload_path(workload, "logs")
    if rank is not None or role is not None or all_members:
        found = select_members(pool.get(workload_path(workload), {}), rank, role)
        if len(found) > 1:
            print_members(pool, path, query, found, style)
            return _status(search)
        query["index"] = found[0]["index"]
    printer = LogPrinter(timestamps=timestamps, since=begin, only=None if search is None else search.filter())
    if follow:
        follow_log(pool, path, query, printer, as_json=json)
    elif json:
        show_json(all_chunks(pool, path, query)._asdict())
    else:
        print_whole(pool, path, query, printer)
    if not json and (follow or sys.stdout.isatty()):
        _print_footer(pool, workload, int(query["index"] or 0))
    return _status(search)


def _search(grep: str | None, context: int | None, *, ignore_case: bool, errors: bool) -> LineSearch | None:
    """Return the search of the options. Raises ``typer.BadParameter`` for an invalid expression."""
    if grep is None and not errors:
        return None
    parts = [part for part in (grep, ERROR_LINE if errors else None) if part is not None]
    try:
        pattern = re.compile("|".join(f"(?:{part})" for part in parts).encode(), re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise typer.BadParameter(f"'{grep}' is not a regular expression: {error}") from error
    return LineSearch(pattern, ERROR_CONTEXT if context is None and errors else context or 0)


def _status(search: LineSearch | None) -> int:
    return EXIT_NO_MATCH if search is not None and not search.found else 0


def _print_footer(pool: PoolClient, workload: str, index: int) -> None:
    """Print how the program ended or when it is tried again, on stderr."""
    try:
        found = pool.get(workload_path(workload, "wait"), {"for": "finished", "timeout_s": RECORD_TIMEOUT_S})
    except GpupoolError:
        return  # the output is complete; the footer is an addition
    replica: dict[str, Any] = next((row for row in found["replicas"] if row["index"] == index), {})
    if replica.get("retrying"):
        notify(f"{replica['message']}; {attempt_text(replica['retrying'], time.time())}")
    elif ended := ending_of(found, index):
        for line in ending_lines(ended):
            notify(line)


def _begin(since: str | None) -> float | None:
    return time.time() - parse_duration_s(since) if since else None


def _find_replica(pool: PoolClient, name: str, *, tell_which: bool) -> tuple[str, int | None]:
    """Return the workload and the replica of a name or of KIND/NAME."""
    if "/" not in name:
        return split_reference(name)
    from gpupool.cli.kubernetes.names import detail, resolve_object

    found = resolve_object(pool, name)
    workload, number = split_reference(found)
    if found != name and number is None and tell_which:
        members = detail(pool, {"id": workload})["replicas"]
        if len(members) > 1:
            notify(f"found {len(members)} pods; this is pod/{members[0]['member']}")
    return workload, number


def _attempt_before(pool: PoolClient, workload: str, index: int) -> int:
    replicas = pool.get(workload_path(workload), {"replicas_from": index})["replicas"]
    last = next((row["attempt"] for row in replicas if row["index"] == index), 0)
    if last < 2:
        raise GpupoolError(ErrorCode.NOT_FOUND, f"{workload} has only one attempt.", "Omit -p.")
    return int(last) - 1


def _logs_of_labelled(selector: str, style: LogFormat, tail: int | None) -> None:
    from gpupool.cli.kubernetes.names import ObjectScope, detail

    pool = open_pool()
    scope = ObjectScope(labels=tuple(part for part in selector.split(",") if part))
    found = pool.workloads({**scope.query(pool), "label": list(scope.labels)})
    if style.follow and len(found) > 1:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"{len(found)} workloads have these labels; only one can be followed.",
            "Give its name.",
        )
    for workload in reversed(found):
        query = {"tail": tail, "since": style.begin}
        print_members(pool, workload_path(workload["id"], "logs"), query, detail(pool, workload)["replicas"], style)
