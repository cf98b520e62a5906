"""``plan``: the expected start of a submission."""

from __future__ import annotations

from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import command, with_options
from gpupool.cli.output import out_style, show, show_json
from gpupool.cli.request.submit import build_requests
from gpupool.cli.request.submit_options import PLAN

EXIT_WOULD_WAIT = 75  # EX_TEMPFAIL of sysexits.h
NO_PROGRAM = ("true",)

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME] [-- COMMAND ARGS...]", help="A name and a command; both optional.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool plan -g 2 --gpu-model a100",
        "gpupool plan -g 0.5 --as interactive --project vision",
        "gpupool plan -g 4 --max-time 40m --json",
        "gpupool plan -f job.yml",
    )(plan)


@with_options(PLAN)
def plan(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Show where and when a submission would start. Nothing is stored or changed.

    It takes the options of submit. If the workload would wait, it shows the wait reason, the position in the queue, an
    estimate and suggestions; and how many replicas of which projects would be evicted.

    Exit status: 0 if all of it would start now, 75 if it would wait, 125 if it could never run here.
    """
    requests = build_requests(values, words or [], _program(context, values))
    from gpupool.cli.transport.pool import open_pool

    pool = open_pool(start=True)
    found = [pool.post("plan", request.to_body()) for request in requests]
    if values.get("json"):
        show_json(found[0] if len(found) == 1 else {"plans": found})
    else:
        show(_lines(found))
    return 0 if all(each["starts_now"] for each in found) else EXIT_WOULD_WAIT


def _program(context: typer.CommandContext, values: dict[str, Any]) -> list[str]:
    given = list((context.obj or {}).get("program", []))
    needless = given or values.get("file") or values.get("kind") == "lease"
    return given if needless else list(NO_PROGRAM)


def _lines(found: list[dict[str, Any]]) -> list[str]:
    from gpupool.cli.render.plans import plan_lines

    style = out_style()
    if len(found) == 1:
        return plan_lines(found[0], style)
    return [line for each in found for line in (style.bold(each["name"]), *plan_lines(each, style))]
