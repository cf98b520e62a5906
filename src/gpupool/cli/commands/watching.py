"""``top``: the pool, live."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import show, show_json
from gpupool.cli.pool import Pool, open_pool
from gpupool.cli.render.machines import node_lines
from gpupool.cli.render.screens import gpu_bars, top_lines
from gpupool.cli.render.text import Style
from gpupool.cli.render.workloads import workload_lines
from gpupool.cli.watching import INTERVAL_S, repeat


class Part(StrEnum):
    """What ``top`` can be narrowed to."""

    NODE = "node"
    JOB = "job"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool top", "gpupool top --once", "gpupool top node", "gpupool top job")(top)


def top(
    part: Annotated[Part | None, typer.Argument(help="Only nodes, or only jobs.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    details: Annotated[bool, typer.Option("-d", "--details", help="With 'node': a line for each GPU.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = INTERVAL_S,
    json: AsJson = False,
) -> None:
    """Watch nodes, GPUs with their slices, and workloads; Ctrl-C ends it."""
    pool = open_pool()
    if json:
        show_json({"pool": pool.get("pool"), **pool.get("nodes"), "workloads": pool.workloads({})})
        return

    def screen(style: Style) -> list[str]:
        return _screen(pool, part, style, details=details)

    if once:
        from gpupool.cli.output import out_style

        show(screen(out_style()))
        return
    repeat(screen, interval)


def _screen(pool: Pool, part: Part | None, style: Style, *, details: bool) -> list[str]:
    now = time.time()
    if part is Part.JOB:
        return workload_lines(pool.workloads({}), now, style)
    if part is Part.NODE:
        nodes = pool.get("nodes")["nodes"]
        bars = gpu_bars([gpu for node in nodes for gpu in node["gpus"]], style) if details else []
        return [*node_lines(nodes, style), *([""] if bars else []), *bars]
    return top_lines(pool.get("pool"), pool.get("gpus")["gpus"], pool.workloads({}), now, style)
