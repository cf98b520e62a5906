"""``up``, ``down``, ``status``, ``doctor``, ``health``, ``whoami`` and ``version``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.machines import EMULATED
from gpupool.cli.render.screens import status_lines
from gpupool.cli.transport.local import STARTING_MESSAGE
from gpupool.cli.transport.pool import PoolClient, open_pool
from gpupool.domain.errors import NO_LEADER_CODES, ErrorCode, GpupoolError

if TYPE_CHECKING:
    from gpupool.daemon.pool_identity import Decision

EXIT_INTERRUPTED = 130  # 128 + INT
StateDir = Annotated[str | None, typer.Option("--state-dir", metavar="DIR", help="Set the state folder of the pool.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool up",
        "gpupool up --background --emulate 4xT4,2xV100",
        "gpupool up --listen 0.0.0.0:8443 --tls-self-signed",
        "gpupool up --background --cluster --address 10.0.0.1",
        "gpupool up --database postgresql://gpupool@db.example.org/gpupool --database-password-file /etc/gpupool/db",
    )(up)
    command(app, "gpupool down", "gpupool down --stop-jobs")(down)
    command(app, "gpupool status", "gpupool status --json")(status)
    command(app, "gpupool doctor", "gpupool doctor --listen 0.0.0.0:8443")(doctor)
    command(app, "gpupool health")(health)
    command(app, "gpupool whoami")(whoami)
    command(app, "gpupool version")(version)


def up(  # noqa: PLR0913, PLR0917 - one parameter per option
    background: Annotated[bool, typer.Option("-b", "--background", help="Return when the pool answers.")] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Listen on a network; needs TLS.")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="Use this certificate (PEM).")
    ] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Use this key (PEM).")] = None,
    tls_self_signed: Annotated[bool, typer.Option("--tls-self-signed", help="Create a certificate.")] = False,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy", metavar="CIDR", help="Trust X-Forwarded-For of these proxies; repeatable; off: none."
        ),
    ] = None,
    emulate: Annotated[str | None, typer.Option("--emulate", metavar="GPUS", help="Emulate GPUs: 4xT4,2xV100.")] = None,
    time_zone: Annotated[
        str | None,
        typer.Option("--time-zone", metavar="ZONE", help="Set the pool's time zone; default: the machine's."),
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option("--dashboard", metavar="HOST:PORT", help="Serve the dashboard to this machine; off: none."),
    ] = None,
    gateway_port: Annotated[
        int | None,
        typer.Option(
            "--gateway-port", metavar="PORT", help="Serve services on this port; default: 8490 or a free one."
        ),
    ] = None,
    gateway_domain: Annotated[
        str | None,
        typer.Option("--gateway-domain", metavar="DOMAIN", help="Open ports of workloads at names below this domain."),
    ] = None,
    oidc: Annotated[
        str | None, typer.Option("--oidc", metavar="FILE", help="Sign in by OpenID Connect as in this file; off: none.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="Use postgresql://USER@HOST/DATABASE; off: a local file."),
    ] = None,
    database_password_file: Annotated[
        str | None,
        typer.Option("--database-password-file", metavar="FILE", help="Read its password from this file, mode 0600."),
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Let other machines join.")] = False,
    address: Annotated[
        str | None, typer.Option("--address", metavar="IP", help="Set its address for other machines.")
    ] = None,
    cluster_port: Annotated[
        int | None, typer.Option("--cluster-port", metavar="PORT", help="Set the first of 30 ports for Ray (8650).")
    ] = None,
    adopt_jobs: Annotated[
        bool, typer.Option("--adopt-jobs", help="Adopt running jobs of another pool on this machine.")
    ] = False,
    abandon_jobs: Annotated[
        bool, typer.Option("--abandon-jobs", help="Stop jobs that the database does not know and cannot adopt.")
    ] = False,
    state_dir: StateDir = None,
) -> int:
    """Start the pool of this machine: as root for all users, else for yourself.

    In the foreground it runs until Ctrl-C. Jobs continue when the pool stops, and the next pool adopts them.
    """
    from gpupool.client.discovery import place_for_new_pool
    from gpupool.daemon.config import MachineRole, PoolConfig
    from gpupool.daemon.machine import database_option, full_path, head_options
    from gpupool.daemon.process.launch import start, wait_foreground
    from gpupool.domain.decode import decode

    if oidc not in {None, "off"}:
        from gpupool.daemon.oidc_file import read_provider

        read_provider(str(full_path(oidc)))
    place = place_for_new_pool(state_dir)
    options = {"listen": listen, "tls_cert": full_path(tls_cert), "tls_key": full_path(tls_key), "emulate": emulate}
    options |= {"time_zone": time_zone, "dashboard": dashboard, "oidc": oidc if oidc == "off" else full_path(oidc)}
    options["database_password_file"] = full_path(database_password_file)
    kept = PoolConfig.for_location(place)
    more = {"cluster_address": address, "cluster_port": cluster_port, "gateway_port": gateway_port}
    more["gateway_domain"] = gateway_domain
    more |= head_options(kept, listen, address) if cluster or kept.role is MachineRole.HEAD else {}
    config = decode(
        PoolConfig,
        {**kept.to_dict(), **{k: v for k, v in (options | more).items() if v is not None}}
        | ({"tls_self_signed": True} if tls_self_signed else {})
        | ({} if database is None else {"database": database_option(database)})
        | ({} if not trusted_proxy else {"trusted_proxies": [] if trusted_proxy == ["off"] else trusted_proxy}),
    )
    decision = decision_of(adopt=adopt_jobs, abandon=abandon_jobs)
    try:
        result = start(config, notify, background=background, decision=decision)
    except KeyboardInterrupt:
        if background:
            notify(STARTING_MESSAGE)
        return EXIT_INTERRUPTED
    if config.role is MachineRole.NODE:
        notify(f"this machine is a node of the pool at {config.head_url}; state in {place.state_dir}")
        return 0 if background else wait_foreground(result)
    notify(f"the pool is running: {result.gpus_text}; state in {place.state_dir}")
    if result.emulated:
        notify(EMULATED)
    for text in result.warnings:
        notify(f"warning: {text}")
    if result.url:
        notify(f"it listens on {result.url} (certificate SHA-256 {result.fingerprint})")
    if config.role is MachineRole.HEAD:
        notify("add machines with 'gpupool join-token create'")
    return 0 if background else wait_foreground(result)


def decision_of(*, adopt: bool, abandon: bool) -> Decision | None:
    """Return what to do with jobs that the database does not know; None if no option was given."""
    from gpupool.daemon.pool_identity import Decision

    if adopt and abandon:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "--adopt-jobs and --abandon-jobs exclude each other.", "Give one of them."
        )
    return Decision.ADOPT if adopt else Decision.ABANDON if abandon else None


def down(
    stop_jobs: Annotated[bool, typer.Option("--stop-jobs", help="Also stop running jobs.")] = False,
    state_dir: StateDir = None,
) -> int:
    """Stop the pool. Jobs continue, and the next pool adopts them."""
    from gpupool.daemon.process.launch import stop

    stopped = stop(_place(state_dir), stop_jobs=notify if stop_jobs else None)
    notify("the pool is stopped" if stopped else "no pool was running")
    return 0


def status(state_dir: StateDir = None, json: AsJson = False) -> int:
    """Show the state of the pool and its processes; exit status 1 if it does not answer."""
    from gpupool.cli.transport.local import LocalTransport
    from gpupool.client.discovery import Remote, find_pool
    from gpupool.daemon.process.launch import pool_status

    place = find_pool()
    if isinstance(place, Remote):
        return _remote_status(as_json=json)
    location = _place(state_dir)
    processes = pool_status(location)
    if processes.get("role") == "node":
        return _node_status(processes, as_json=json)
    pool = _pool_if_leading(PoolClient(LocalTransport(location))) if processes["answering"] else None
    if pool is None:
        _show_takeover(location)
    if json:
        show_json({"pool": pool, "processes": processes})
    else:
        _show_status(pool, processes)
    return 0 if processes["answering"] else 1


def _node_status(processes: dict[str, Any], *, as_json: bool) -> int:
    """Show the processes of a machine that joined a cluster."""
    healthy = processes["running"] and all(child["state"] == "running" for child in processes["children"])
    healthy = healthy and not _show_removal(processes["state_dir"])
    if as_json:
        show_json({"pool": None, "processes": processes})
    else:
        show([f"a node of the pool at {processes['head_url']}"])
        _show_status(None, processes | {"answering": processes["running"]})
    return 0 if healthy else 1


def _show_removal(state_dir: str) -> bool:
    """Print that this machine was removed from its cluster, and return whether it was. Only its owner can read that."""
    from gpupool.daemon.machine import CLUSTER_DIR
    from gpupool.fabric.ray.head_selection import read_removal

    removal = read_removal(Path(state_dir) / CLUSTER_DIR)
    if removal is not None:
        notify(f"{removal.message} {removal.hint}")
    return removal is not None


def _show_takeover(location: Any) -> None:
    """Print whether this standby head can take over."""
    from gpupool.daemon.local_api import health

    found = health(location)
    if faults := found.get("faults"):
        notify(f"This head cannot take over: {' '.join(faults)}")
    elif found.get("ready"):
        notify("This head can take over.")


def _pool_if_leading(pool: PoolClient) -> dict[str, Any] | None:
    """Return the pool's state, or None if the control plane on this machine does not lead."""
    try:
        found: dict[str, Any] = pool.get("pool")
    except GpupoolError as error:
        if error.code not in NO_LEADER_CODES | {ErrorCode.DATABASE_UNREACHABLE}:
            raise
        notify(f"{error.message} {error.hint}")
        return None
    return found


def _remote_status(*, as_json: bool) -> int:
    pool = open_pool().get("pool")
    if as_json:
        show_json({"pool": pool, "processes": {}})
    else:
        _show_status(pool, {"answering": True, "kind": pool["kind"], "state_dir": pool["state_dir"]})
    return 0


def _show_status(pool: dict[str, Any] | None, processes: dict[str, Any]) -> None:
    if pool and pool["emulated"]:
        notify(EMULATED)
    show(status_lines(pool, processes, time.time(), out_style()))


def _place(state_dir: str | None) -> Any:
    from gpupool.client.discovery import Location, find_pool, place_for_new_pool

    found = None if state_dir else find_pool()
    return found if isinstance(found, Location) else place_for_new_pool(state_dir)


def doctor(
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Check whether this address is free.")
    ] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="Accept emulated GPUs.")] = False,
    state_dir: StateDir = None,
    json: AsJson = False,
) -> int:
    """Check driver, devices, permissions, disk, clock, ports, cgroups and stale state, and suggest remedies.

    The exit status is 1 if there is a problem.
    """
    from gpupool.daemon.doctor.run import DoctorContext, exit_status, run_checks

    place = _place(state_dir)
    findings = run_checks(DoctorContext(Path(place.state_dir), Path(place.run_dir), emulate=emulate, listen=listen))
    if json:
        show_json({"findings": [finding.to_dict() for finding in findings]})
        return exit_status(findings)
    style = out_style()
    for finding in findings:
        show([f"{style.state(f'{finding.level:<8}')} {style.bold(finding.check)}: {finding.sentence}"])
        if finding.remedy:
            show([f"         {finding.remedy}"])
    return exit_status(findings)


def health(json: AsJson = False) -> int:
    """Show whether the pool and its GPUs are healthy; exit status 1 if not."""
    pool = open_pool()
    answer, view, gpus = pool.get("health"), pool.get("pool"), pool.get("gpus")["gpus"]
    unhealthy = [gpu for gpu in gpus if gpu["health"] != "ok" or gpu["foreign"]]
    healthy = (
        view["nodes_up"] == view["nodes"] and not unhealthy and not set(view["warnings"]) - set(view.get("refused", []))
    )
    if json:
        show_json(answer | {"well": healthy, "warnings": view["warnings"], "gpus": unhealthy})
        return 0 if healthy else 1
    if view["emulated"]:
        notify(EMULATED)
    from gpupool.cli.render.machines import gpu_lines

    show(
        [
            f"pool: {answer['status']}",
            f"nodes: {view['nodes_up']} of {view['nodes']} up",
            f"GPUs: {len(gpus) - len(unhealthy)} of {len(gpus)} healthy",
        ]
    )
    show(f"warning: {text}" for text in view["warnings"])
    show(gpu_lines(unhealthy, out_style()) if unhealthy else [])
    return 0 if healthy else 1


def whoami(json: AsJson = False) -> None:
    """Show the authenticated user and the projects that it may use."""
    found = open_pool().get("whoami")
    if json:
        show_json(found)
        return
    from gpupool.cli.render.text import pairs

    rows = [("User", found["user"]), ("Role", found["role"]), ("Authenticated by", found["via"])]
    show(pairs([*rows, ("Projects", ", ".join(found["projects"]))], out_style()))


def version(json: AsJson = False) -> None:
    """Print the version, and the version of the running pool."""
    from gpupool import __version__

    try:
        pool = open_pool().get("health")["version"]
    except GpupoolError:
        pool = None
    if json:
        show_json({"client": __version__, "pool": pool})
    else:
        show([f"gpupool {__version__}" + (f" (pool {pool})" if pool else "")])
