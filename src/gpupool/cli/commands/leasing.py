"""``request_gpus``, ``release_gpus`` and ``extend``: holding GPUs with no program of one's own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool.cli import asking, leases
from gpupool.cli.commands.common import command, takes
from gpupool.cli.completing import workloads
from gpupool.cli.options import LEASE
from gpupool.cli.output import show, show_json, tell
from gpupool.cli.pool import open_pool, workload_path
from gpupool.domain.units import format_duration, parse_duration_s

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="The lease; your last one otherwise.", autocompletion=workloads),
]
LeaseFile = Annotated[str | None, typer.Option("-f", "--file", help="The lease's file.", metavar="FILE")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool request_gpus -n 1 -m 2048",
        "gpupool request_gpus -n 2 -p 0.5 --lifetime 2h --wait 10m",
        "gpupool request_gpus 1",
        name="request_gpus",
    )(request_gpus)
    command(app, "gpupool release_gpus", "gpupool release_gpus -f lease.json", name="release_gpus")(release_gpus)
    command(app, "gpupool extend 2h", "gpupool extend 30m my-lease")(extend)


@takes(LEASE)
def request_gpus(
    count: Annotated[int | None, typer.Argument(metavar="N", help="How many GPUs, as -n says it.")] = None,
    **values: Any,
) -> int:
    """Hold GPUs until they are released: waits for them, then prints the path of the lease's file.

    'gpupool client -- COMMAND' uses them, 'gpupool release_gpus' gives them back. Leases that nobody uses are warned,
    then released.
    """
    from gpupool.cli.holding import take_lease

    if count is not None:
        values.setdefault("num_gpus", count)
    body = asking.workload(values, []) | {"kind": "lease"}
    if values.get("lifetime"):
        body["lifetime"] = values["lifetime"]
    outcome = take_lease(body, quiet=bool(values.get("quiet")))
    if isinstance(outcome, int):
        return outcome
    path = leases.remember(outcome, values.get("file"))
    if values.get("json"):
        show_json(outcome | {"file": path})
        return 0
    tell(f"{outcome['name']} holds {_held(outcome)}; 'gpupool client -- COMMAND' uses it")
    show([path])
    return 0


def release_gpus(name: Name = None, file: LeaseFile = None) -> int:
    """Give the GPUs of a lease back; programs that still use them are stopped."""
    workload = name or leases.lease_of(file)
    stopped = open_pool().post(workload_path(workload, "stop"), {})
    leases.forget(stopped["id"])
    tell(f"{stopped['name']} is released")
    return 0


def extend(
    time: Annotated[str, typer.Argument(metavar="TIME", help="How much longer: 30m, 2h.")],
    name: Name = None,
    file: LeaseFile = None,
) -> int:
    """Hold a lease longer."""
    seconds = parse_duration_s(time)
    lease = open_pool().post(workload_path(name or leases.lease_of(file), "extend"), {"seconds": seconds})
    tell(f"{lease['name']} is held {format_duration(seconds)} longer")
    return 0


def _held(lease: dict[str, Any]) -> str:
    from gpupool.cli.render.workloads import gpus_text

    place = f" on {lease['node']}" if lease.get("node") else ""
    return f"{gpus_text(lease['gpus'])} GPU{place}"
