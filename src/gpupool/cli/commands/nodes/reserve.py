"""``reserve``: reservations of nodes."""

from __future__ import annotations

import time
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.machines import moment_text, reservation_lines
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment
from gpupool.domain.units import parse_duration_s
from gpupool.domain.work.time_windows import parse_moment, read_zone

Words = Annotated[
    list[str], typer.Argument(metavar="NAME | list | cancel ID", help="A name for the reservation, or an action.")
]
Many = list[str] | None


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool reserve 'CS101 Monday' --gpus 8 --gpu-model t4 --from '2026-11-23 09:00' --for 2h --project cs101",
        "gpupool reserve 'new driver' --nodes gpu1,gpu2 --from now --for 1h --maintenance",
        "gpupool reserve list",
        "gpupool reserve cancel b00c0ffee42",
    )(reserve)


def reserve(  # noqa: PLR0913, PLR0917 - one parameter per option
    words: Words,
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="LIST", help="Reserve these nodes: gpu1,gpu2.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", help="Reserve whole nodes with this number of GPUs.")
    ] = None,
    model: Annotated[
        Many, typer.Option("--gpu-model", "--model", metavar="NAME", help="Require this GPU model; repeatable.")
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start at '2026-11-23 09:00' (pool's time zone), now, +2h.")
    ] = "now",
    length: Annotated[str, typer.Option("--for", metavar="TIME", help="Set the duration: 2h, 1d.")] = "",
    project: Annotated[
        Many, typer.Option("--project", metavar="NAME", help="Reserve for this project; repeatable.")
    ] = None,
    user: Annotated[Many, typer.Option("--user", metavar="NAME", help="Reserve for this user; repeatable.")] = None,
    maintenance: Annotated[bool, typer.Option("--maintenance", help="Reserve for maintenance: no workloads.")] = False,
    lead: Annotated[
        str | None,
        typer.Option("--lead", metavar="TIME", help="Place no unlimited protected workload this long before."),
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Add a note.")] = "",
    json: AsJson = False,
) -> None:
    """Reserve nodes for users, projects or maintenance; list reservations, or cancel one.

    Training on these nodes is evicted before the reservation starts, and queued again. Protected workloads are not
    stopped.
    """
    pool = open_pool()
    if words == ["list"]:
        _list(pool, as_json=json)
    elif words[0] == "cancel" and len(words) == 2:
        pool.delete(f"bookings/{quote_segment(words[1])}")
        notify(f"{words[1]} is cancelled")
    elif len(words) > 1:
        raise typer.BadParameter("give one name (in quotes), 'list', or 'cancel' and an id")
    elif not length:
        raise typer.BadParameter("give the duration, for example --for 2h")
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
        _create(pool, body | ({} if lead is None else {"lead_s": parse_duration_s(lead)}), zone, as_json=json)


def _list(pool: PoolClient, *, as_json: bool) -> None:
    found = pool.get("bookings")
    if as_json:
        show_json(found)
    else:
        show(reservation_lines(found["bookings"], pool.get("pool")["time_zone"], out_style()))


def _create(pool: PoolClient, body: dict[str, Any], zone: str, *, as_json: bool) -> None:
    made = pool.post("bookings", body)
    if as_json:
        show_json(made)
    else:
        show([made["id"]])
    span = f"{moment_text(made['starts_at'], zone)} to {moment_text(made['ends_at'], zone)} ({zone})"
    notify(f"{', '.join(made['nodes'])} reserved from {span}")
    if made["evictions"]:
        notify(f"{made['evictions']} training replicas run there now and will be evicted before the start")
    for text in made["warnings"]:
        notify(f"warning: {text}")
