"""``reserve``."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import Pool, open_pool, segment
from gpupool.cli.render.bookings import booking_lines, moment_text
from gpupool.domain.units import parse_duration_s
from gpupool.domain.windows import parse_moment, read_zone

Words = Annotated[list[str], typer.Argument(metavar="NAME | list | cancel ID", help="What it is for; or what to do.")]
Many = list[str] | None


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool reserve 'CS101 Monday' --gpus 8 --model t4 --from '2026-11-23 09:00' --for 2h --project cs101",
        "gpupool reserve 'new driver' --nodes gpu1,gpu2 --from now --for 1h --maintenance",
        "gpupool reserve list",
        "gpupool reserve cancel b00c0ffee42",
    )(reserve)


def reserve(  # noqa: PLR0913, PLR0917 - one parameter per option
    words: Words,
    nodes: Annotated[str | None, typer.Option("--nodes", metavar="LIST", help="These nodes: gpu1,gpu2.")] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", help="So many GPUs, on whole nodes that the pool picks.")
    ] = None,
    model: Annotated[Many, typer.Option("--model", metavar="NAME", help="Of this model; repeatable.")] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="When: '2026-11-23 09:00' in the pool's time zone, now, +2h.")
    ] = "now",
    length: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 2h, 1d.")] = "",
    project: Annotated[Many, typer.Option("--project", metavar="NAME", help="For its work; repeatable.")] = None,
    user: Annotated[Many, typer.Option("--user", metavar="NAME", help="For this user; repeatable.")] = None,
    maintenance: Annotated[bool, typer.Option("--maintenance", help="For nobody.")] = False,
    lead: Annotated[
        str | None,
        typer.Option("--lead", metavar="TIME", help="Protected work without a time limit is kept off so long before."),
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="A remark.")] = "",
    json: AsJson = False,
) -> None:
    """Keep nodes for a class or for maintenance; list such reservations, or cancel one.

    Training that runs there is evicted in time and goes on elsewhere or afterwards; protected work is not ended.
    """
    pool = open_pool()
    if words == ["list"]:
        _list(pool, as_json=json)
    elif words[0] == "cancel" and len(words) == 2:
        pool.delete(f"bookings/{segment(words[1])}")
        tell(f"{words[1]} is cancelled")
    elif len(words) > 1:
        raise typer.BadParameter("give one name (in quotes), 'list', or 'cancel' and an id")
    elif not length:
        raise typer.BadParameter("say how long with --for, for example --for 2h")
    else:
        zone = pool.get("pool")["time_zone"]
        starts_at = parse_moment(begin, read_zone(zone), time.time())
        body: dict[str, Any] = {
            "name": words[0],
            "nodes": [part.strip() for part in (nodes or "").split(",") if part.strip()],
            "gpus": gpus,
            "models": model or [],
            "starts_at": starts_at,
            "ends_at": starts_at + parse_duration_s(length),
            "projects": project or [],
            "users": user or [],
            "maintenance": maintenance,
            "note": note,
        }
        _make(pool, body | ({} if lead is None else {"lead_s": parse_duration_s(lead)}), zone, as_json=json)


def _list(pool: Pool, *, as_json: bool) -> None:
    found = pool.get("bookings")
    if as_json:
        show_json(found)
    else:
        show(booking_lines(found["bookings"], pool.get("pool")["time_zone"], out_style()))


def _make(pool: Pool, body: dict[str, Any], zone: str, *, as_json: bool) -> None:
    made = pool.post("bookings", body)
    if as_json:
        show_json(made)
    else:
        show([made["id"]])
    span = f"{moment_text(made['starts_at'], zone)} to {moment_text(made['ends_at'], zone)} ({zone})"
    tell(f"{', '.join(made['nodes'])} booked from {span}")
    if made["evictions"]:
        tell(f"{made['evictions']} replicas of training run there now and will be evicted in time")
    for text in made["warnings"]:
        tell(f"warning: {text}")
