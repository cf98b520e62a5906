"""``pool describe``: disk use and retention of the pool on this machine."""

from __future__ import annotations

from dataclasses import asdict

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command
from gpupool.cli.output import out_style, show, show_json
from gpupool.cli.render.text import table
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import format_mib

HEADERS = ("FILES", "SIZE", "KEPT", "PLACE")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(app, "pool", "Show what the pool stores.", "gpupool pool describe")
    command(group, "gpupool pool describe", "gpupool pool describe --json")(describe)


def describe(json: AsJson = False) -> None:
    """Show the disk use of the pool on this machine, and how long it keeps each kind of file."""
    from gpupool.client.discovery import Location, find_pool
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.storage import read_storage

    place = find_pool()
    if not isinstance(place, Location):
        raise GpupoolError(
            ErrorCode.WRONG_STATE, "The pool is on another machine.", "Run 'gpupool pool describe' on that machine."
        )
    try:
        storage = read_storage(PoolConfig.for_location(place))
    except OSError as error:
        raise GpupoolError(
            ErrorCode.NOT_FOUND,
            f"{place.state_dir} cannot be read: {error.strerror}.",
            "Start a pool: 'gpupool up -b'.",
        ) from error
    if json:
        show_json(asdict(storage))
        return
    rows = [(one.what, _size(one.bytes, complete=one.complete), one.kept, one.path) for one in storage.files]
    show(table(HEADERS, rows, out_style()))
    show([f"{format_mib(storage.free_bytes >> 20)} of {format_mib(storage.total_bytes >> 20)} are free on the disk"])


def _size(size: int | None, *, complete: bool) -> str:
    if size is None:
        return "not readable"
    text = format_mib(size >> 20) if size >> 20 else "below 1 MiB"
    return text if complete else f"over {text}"
