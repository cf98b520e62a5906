"""``usage``."""

from __future__ import annotations

import time
from typing import Annotated

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json
from gpupool.cli.render.people import usage_lines
from gpupool.cli.transport.pool import open_pool
from gpupool.domain.units import parse_duration_s

DEFAULT_SPAN = "7d"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    command(app, "gpupool usage", "gpupool usage --since 30d --json")(usage)


def usage(
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Show the last 7d, 30d.")] = DEFAULT_SPAN,
    json: AsJson = False,
) -> None:
    """Show the GPU hours of each project and user."""
    now = time.time()
    found = open_pool().get("usage", {"since": now - parse_duration_s(since), "until": now})
    if json:
        show_json(found)
    else:
        show(usage_lines(found, out_style()))
