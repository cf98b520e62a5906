"""``pool describe``: disk use and retention of the pool."""

from __future__ import annotations

from typing import Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command
from gpupool.cli.output import out_style, show, show_json
from gpupool.cli.render.text import table
from gpupool.domain.units import format_mib

HEADERS = ("FILES", "SIZE", "KEPT", "PLACE")
USER_HEADERS = ("USER", "SIZE", "FILES")
TIMEOUT_S = 600.0  # all folders are read


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(app, "pool", "Show what the pool stores.", "gpupool pool describe")
    command(group, "gpupool pool describe", "gpupool pool describe --json")(describe)


def describe(json: AsJson = False) -> None:
    """Show the disk use of the pool by kind of file and by user, and how long it keeps each kind.

    The figures are those of the machine of the control plane, at most a minute old. For administrators.
    """
    from gpupool.cli.transport.pool import open_pool

    found = open_pool().get("storage", timeout_s=TIMEOUT_S)
    if json:
        show_json(found)
        return
    style = out_style()
    rows = [(one["what"], _size(one["bytes"], one["complete"]), one["kept"], one["path"]) for one in found["files"]]
    show(table(HEADERS, rows, style))
    if found["users"]:
        show(table(USER_HEADERS, [_user_row(row) for row in found["users"]], style))
    free, total = (format_mib(found[name] >> 20) for name in ("free_bytes", "total_bytes"))
    show([f"{free} of {total} are free on the disk"])


def _user_row(row: dict[str, Any]) -> tuple[str, str, str]:
    parts = ", ".join(f"{what} {_size(size)}" for what, size in row["files"].items())
    return row["user"] or "(deleted)", _size(row["bytes"]), parts


def _size(size: int | None, complete: bool = True) -> str:
    if size is None:
        return "not readable"
    text = format_mib(size >> 20) if size >> 20 else "below 1 MiB"
    return text if complete else f"over {text}"
