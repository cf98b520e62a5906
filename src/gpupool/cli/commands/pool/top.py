"""``top``: a live view of the pool."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json
from gpupool.cli.render.top import TopOptions, TopSection, TopSort, screen
from gpupool.cli.transport.pool import open_pool

INTERVAL_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    examples = ("gpupool top", "gpupool top --once", "gpupool top gpu", "gpupool top job --sort idle")
    command(app, *examples)(top)


def top(
    part: Annotated[TopSection | None, typer.Argument(help="Show only nodes, GPUs, users or jobs.")] = None,
    sort: Annotated[TopSort, typer.Option("--sort", help="Sort jobs by this, largest first.")] = TopSort.GPUS,
    details: Annotated[bool, typer.Option("-d", "--details", help="With 'node': show a line for each GPU.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, help="Set the refresh interval in seconds.")
    ] = INTERVAL_S,
    json: AsJson = False,
) -> None:
    """Show GPUs with their slices, users and jobs, live. Press 'q' to quit, 'h' for help.

    Each GPU is drawn as a bar: full where a slice computes, shaded where it is only allocated, dotted where it is free.
    """
    pool = open_pool()

    def fetch() -> Any:
        return pool.get("top")

    part = TopSection.GPU if part is TopSection.NODE and details else part
    view = TopOptions(part, sort)
    if json:
        show_json(fetch())
    elif once or not sys.stdout.isatty():
        show(screen(fetch(), view, out_style()))
    else:
        from gpupool.cli.tui.top import run_live

        run_live(fetch, view, interval)
