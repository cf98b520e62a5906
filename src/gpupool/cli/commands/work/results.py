"""``results``: the parameters and metrics of a sweep or array as a table."""

from __future__ import annotations

from typing import Annotated

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, Ref, command
from gpupool.cli.output import out_style, show, show_json, write_out
from gpupool.cli.render.results import result_lines
from gpupool.cli.transport.pool import open_pool, workload_path


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app, "gpupool results sweep", "gpupool results sweep --sort -accuracy", "gpupool results sweep --csv > out.csv"
    )(results)


def results(
    name: Ref,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="NAME", help="Sort by a column, parameter or metric; -NAME: largest first."),
    ] = None,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="Show at most this number.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values with exact numbers.")] = False,
    json: AsJson = False,
) -> None:
    """Show the parameters and last reported metrics of each replica of a sweep or array.

    Programs report metrics with gpupool.progress(step, loss=0.3).
    """
    path, query = workload_path(name, "results"), {"sort": sort, "limit": limit}
    pool = open_pool()
    if csv:
        write_out(pool.get_bytes(path, {**query, "format": "csv"}))
        return
    found = pool.get(path, query)
    if json:
        show_json(found)
    else:
        show(result_lines(found, out_style()))
