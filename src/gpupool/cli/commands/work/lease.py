"""``request-gpus``, ``release-gpus`` and ``extend``: GPUs without a program."""

from __future__ import annotations

from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli import leases
from gpupool.cli.commands.common import command, with_options
from gpupool.cli.completion import workloads
from gpupool.cli.fast.launch import FINAL, Launcher
from gpupool.cli.fast.signals import SignalInbox
from gpupool.cli.fast.waiting import Interrupted
from gpupool.cli.output import notify, show, show_json
from gpupool.cli.request import request_body
from gpupool.cli.request.options import LEASE
from gpupool.cli.transport.local import find_transport
from gpupool.cli.transport.pool import open_pool, workload_path
from gpupool.domain.events import Reason
from gpupool.domain.units import format_duration, parse_duration_s

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="The lease; default: your last one.", autocompletion=workloads),
]
LeaseFile = Annotated[str | None, typer.Option("-f", "--file", help="Use the lease in this file.", metavar="FILE")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool request-gpus -n 1 -m 2048",
        "gpupool request-gpus -n 2 -p 0.5 --lifetime 2h --wait 10m",
        "gpupool request-gpus 1",
        name="request-gpus",
    )(request_gpus)
    command(app, "gpupool release-gpus", "gpupool release-gpus -f lease.json", name="release-gpus")(release_gpus)
    command(app, "gpupool extend 2h", "gpupool extend 30m my-lease")(extend)


@with_options(LEASE)
def request_gpus(
    count: Annotated[int | None, typer.Argument(metavar="N", help="The number of GPUs, as -n.")] = None,
    **values: Any,
) -> int:
    """Request a lease of GPUs: wait for the grant, then print the path of the lease file.

    'gpupool client -- COMMAND' uses the lease, 'gpupool release-gpus' releases it. The owner of an idle lease gets a
    warning, then the lease is released.
    """
    if count is not None:
        values.setdefault("num_gpus", count)
    body = request_body.workload_body(values, []) | {"kind": "lease"}
    if values.get("lifetime"):
        body["lifetime"] = values["lifetime"]
    outcome = _take_lease(body, quiet=bool(values.get("quiet")))
    if isinstance(outcome, int):
        return outcome
    path = leases.save_lease(outcome, values.get("file"))
    if values.get("json"):
        show_json(outcome | {"file": path})
        return 0
    if not values.get("quiet"):
        notify(f"{outcome['name']} holds {_held(outcome)}; 'gpupool client -- COMMAND' uses it")
    show([path])
    return 0


def _take_lease(body: dict[str, Any], *, quiet: bool) -> dict[str, Any] | int:
    """Return the lease once it is granted, or the exit status if it is not. Raises ``GpupoolError``."""
    with SignalInbox() as inbox:
        launcher = Launcher(find_transport(start=True), inbox, tty=False, quiet=quiet)
        try:
            lease = launcher.submit_and_wait(body)
        except Interrupted as stop:
            return 128 + stop.signum
        return launcher.report_end(lease) if lease["state"] in FINAL else lease


def release_gpus(name: Name = None, file: LeaseFile = None) -> int:
    """Release the GPUs of a lease; programs that still use them are stopped."""
    pool = open_pool()
    workload = name or leases.find_lease(pool.transport, file)
    stopped = pool.post(workload_path(workload, "stop"), {})
    leases.delete_lease_files(stopped["id"])
    released = stopped["stop_reason"] == Reason.RELEASED
    notify(f"{stopped['name']} is released" if released else f"{stopped['name']} had already ended: {stopped['state']}")
    return 0


def extend(
    time: Annotated[str, typer.Argument(metavar="TIME", help="The additional time: 30m, 2h.")],
    name: Name = None,
    file: LeaseFile = None,
) -> int:
    """Extend the lifetime of a lease."""
    seconds = parse_duration_s(time)
    pool = open_pool()
    workload = name or leases.find_lease(pool.transport, file)
    lease = pool.post(workload_path(workload, "extend"), {"seconds": seconds})
    notify(f"{lease['name']} is extended by {format_duration(seconds)}")
    return 0


def _held(lease: dict[str, Any]) -> str:
    from gpupool.cli.render.workloads import gpus_text

    place = f" on {lease['node']}" if lease.get("node") else ""
    return f"{gpus_text(lease['gpus'])} GPU{place}"
