"""``top``: the pool, live."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json
from gpupool.cli.pool import open_pool
from gpupool.cli.render.top import Part, Sort, View, screen

INTERVAL_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    examples = ("gpupool top", "gpupool top --once", "gpupool top gpu", "gpupool top job --sort idle")
    command(app, *examples)(top)


def top(
    part: Annotated[Part | None, typer.Argument(help="Only nodes, GPUs, users or jobs.")] = None,
    sort: Annotated[Sort, typer.Option("--sort", help="Jobs by this, the most first.")] = Sort.GPUS,
    details: Annotated[bool, typer.Option("-d", "--details", help="With 'node': a line for each GPU.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = INTERVAL_S,
    json: AsJson = False,
) -> None:
    """Watch GPUs with their slices, users and jobs, live: 'q' ends it, 'h' shows the other keys.

    A GPU is drawn as wide as it is: full where a slice computes, shaded where it is held only, dotted where it is free.
    """
    pool = open_pool()

    def look() -> Any:
        return pool.get("top")

    part = Part.GPU if part is Part.NODE and details else part
    view = View(part, sort)
    if json:
        show_json(look())
    elif once or not sys.stdout.isatty():
        show(screen(look(), view, out_style()))
    else:
        from gpupool.cli.livetop import live

        live(look, view, interval)
