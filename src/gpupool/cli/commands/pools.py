"""``up``, ``down``, ``status``, ``doctor``, ``health``, ``whoami`` and ``version``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import Pool, open_pool
from gpupool.cli.render.machines import EMULATED
from gpupool.cli.render.screens import status_lines
from gpupool.domain.errors import ErrorCode, GpupoolError

StateDir = Annotated[str | None, typer.Option("--state-dir", metavar="DIR", help="Where the pool keeps its state.")]


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
    background: Annotated[bool, typer.Option("-b", "--background", help="Return when it answers.")] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Serve a network too; needs TLS.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key (PEM).")] = None,
    tls_self_signed: Annotated[bool, typer.Option("--tls-self-signed", help="Make a certificate.")] = False,
    emulate: Annotated[
        str | None, typer.Option("--emulate", metavar="GPUS", help="Emulated GPUs: 4xT4,2xV100.")
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", metavar="ZONE", help="Of time windows; the machine's otherwise.")
    ] = None,
    dashboard: Annotated[
        str | None, typer.Option("--dashboard", metavar="HOST:PORT", help="For browsers of this machine; off: none.")
    ] = None,
    oidc: Annotated[
        str | None, typer.Option("--oidc", metavar="FILE", help="People sign in as this file says; off: they do not.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="postgresql://USER@HOST/DATABASE; off: a file of its own."),
    ] = None,
    database_password_file: Annotated[
        str | None, typer.Option("--database-password-file", metavar="FILE", help="Its password; mode 0600.")
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Let other machines join this one.")] = False,
    address: Annotated[
        str | None, typer.Option("--address", metavar="IP", help="This machine's address for the others.")
    ] = None,
    cluster_port: Annotated[
        int | None, typer.Option("--cluster-port", metavar="PORT", help="The first of 30 for Ray (8650).")
    ] = None,
    state_dir: StateDir = None,
) -> int:
    """Start the pool of this machine: as root for everybody, else for yourself.

    In the foreground it runs until Ctrl-C. Jobs go on when the pool ends, and the next one takes them over.
    """
    from gpupool.client.locate import place_for_new_pool
    from gpupool.daemon.cluster import head_options
    from gpupool.daemon.config import PoolConfig, Role
    from gpupool.daemon.launch import start, wait_foreground

    if oidc not in {None, "off"}:
        from gpupool.daemon.oidc_file import read_provider

        read_provider(str(full_path(oidc)))
    place = place_for_new_pool(state_dir)
    options = {"listen": listen, "tls_cert": full_path(tls_cert), "tls_key": full_path(tls_key), "emulate": emulate}
    options |= {"time_zone": time_zone, "dashboard": dashboard, "oidc": oidc if oidc == "off" else full_path(oidc)}
    options["database_password_file"] = full_path(database_password_file)
    kept = PoolConfig.for_location(place)
    more = {"cluster_address": address, "cluster_port": cluster_port}
    more |= head_options(kept, listen, address) if cluster or kept.role is Role.HEAD else {}
    config = PoolConfig.from_dict(
        {**kept.to_dict(), **{k: v for k, v in (options | more).items() if v is not None}}
        | ({"tls_self_signed": True} if tls_self_signed else {})
        | ({} if database is None else {"database": database_option(database)})
    )
    result = start(config, background=background)
    if config.role is Role.NODE:
        tell(f"this machine is a node of the pool at {config.head_url}; state in {place.state_dir}")
        return 0 if background else wait_foreground(result)
    tell(f"the pool runs: {result.gpus_text}; state in {place.state_dir}")
    if result.emulated:
        tell(EMULATED)
    for text in result.warnings:
        tell(f"warning: {text}")
    if result.url:
        tell(f"it listens on {result.url} (certificate SHA-256 {result.fingerprint})")
    if config.role is Role.HEAD:
        tell("other machines join it: 'gpupool join-token create' says how")
    return 0 if background else wait_foreground(result)


def database_option(url: str) -> str | None:
    """The URL, with the password file that libpq's variable names: a pool keeps nothing else of who starts it.

    ``off`` is none: the pool's own file.
    """
    if url == "off":
        return None
    passfile = os.environ.get("PGPASSFILE")
    if passfile and "passfile=" not in url:
        from urllib.parse import quote

        url += f"{'&' if '?' in url else '?'}passfile={quote(str(full_path(passfile)))}"
    return url


def full_path(path: str | None) -> str | None:
    """An absolute path, for processes that run in another folder."""
    return None if path is None else str(Path(path).expanduser().absolute())


def down(
    stop_jobs: Annotated[bool, typer.Option("--stop-jobs", help="Stop what runs, too.")] = False,
    state_dir: StateDir = None,
) -> int:
    """Stop the pool; jobs run on, and the next pool takes them over."""
    from gpupool.daemon.launch import stop

    stopped = stop(_place(state_dir), stop_jobs=stop_jobs)
    tell("the pool is stopped" if stopped else "no pool was running")
    return 0


def status(state_dir: StateDir = None, json: AsJson = False) -> int:
    """Show whether the pool runs, its processes and what it holds; exit status 1 when it does not answer."""
    from gpupool.cli.fast.gate import LocalGate
    from gpupool.client.locate import Remote, find_pool
    from gpupool.daemon.launch import pool_status

    place = find_pool()
    if isinstance(place, Remote):
        return _remote_status(as_json=json)
    location = _place(state_dir)
    processes = pool_status(location)
    if processes.get("role") == "node":
        return _node_status(processes, as_json=json)
    pool = _unless_waiting(Pool(LocalGate(location.api_socket))) if processes["answering"] else None
    if json:
        show_json({"pool": pool, "processes": processes})
    else:
        _show_status(pool, processes)
    return 0 if processes["answering"] else 1


def _node_status(processes: dict[str, Any], *, as_json: bool) -> int:
    """Of a machine that has joined a cluster: its own processes."""
    well = processes["running"] and all(child["state"] == "running" for child in processes["children"])
    if as_json:
        show_json({"pool": None, "processes": processes})
    else:
        show([f"a node of the pool at {processes['head_url']}"])
        _show_status(None, processes | {"answering": processes["running"]})
    return 0 if well else 1


def _unless_waiting(pool: Pool) -> dict[str, Any] | None:
    """The pool as a whole, unless its control plane here does not lead."""
    try:
        found: dict[str, Any] = pool.get("pool")
    except GpupoolError as error:
        if error.code not in {ErrorCode.NOT_LEADING, ErrorCode.DATABASE_UNREACHABLE}:
            raise
        tell(f"{error.message} {error.hint}")
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
        tell(EMULATED)
    show(status_lines(pool, processes, time.time(), out_style()))


def _place(state_dir: str | None) -> Any:
    from gpupool.client.locate import Location, find_pool, place_for_new_pool

    found = None if state_dir else find_pool()
    return found if isinstance(found, Location) else place_for_new_pool(state_dir)


def doctor(
    listen: Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Check this address.")] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="GPUs are emulated on purpose.")] = False,
    state_dir: StateDir = None,
    json: AsJson = False,
) -> int:
    """Check driver, devices, permissions, disk, clock, ports, cgroups and stale state; each with a remedy.

    The exit status is 1 when there is a problem.
    """
    from gpupool.daemon.doctor import DoctorContext, exit_status, run_checks

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
    """Say in a few lines whether the pool and its GPUs are well; exit status 1 when they are not."""
    pool = open_pool()
    answer, view, gpus = pool.get("health"), pool.get("pool"), pool.get("gpus")["gpus"]
    sick = [gpu for gpu in gpus if gpu["health"] != "ok" or gpu["foreign"]]
    well = view["nodes_up"] == view["nodes"] and not sick and not view["warnings"]
    if json:
        show_json(answer | {"well": well, "warnings": view["warnings"], "gpus": sick})
        return 0 if well else 1
    if view["emulated"]:
        tell(EMULATED)
    from gpupool.cli.render.machines import gpu_lines

    show(
        [
            f"pool: {answer['status']}",
            f"nodes: {view['nodes_up']} of {view['nodes']} up",
            f"GPUs: {len(gpus) - len(sick)} of {len(gpus)} well",
        ]
    )
    show(f"warning: {text}" for text in view["warnings"])
    show(gpu_lines(sick, out_style()) if sick else [])
    return 0 if well else 1


def whoami(json: AsJson = False) -> None:
    """Show who the pool takes you for and which projects you may use."""
    found = open_pool().get("whoami")
    if json:
        show_json(found)
        return
    from gpupool.cli.render.text import pairs

    rows = [("User", found["user"]), ("Role", found["role"]), ("Known by", found["via"])]
    show(pairs([*rows, ("Projects", ", ".join(found["projects"]))], out_style()))


def version(json: AsJson = False) -> None:
    """Print the version, and that of the pool when one runs."""
    from gpupool import __version__

    try:
        pool = open_pool().get("health")["version"]
    except GpupoolError:
        pool = None
    if json:
        show_json({"client": __version__, "pool": pool})
    else:
        show([f"gpupool {__version__}" + (f" (pool {pool})" if pool else "")])
