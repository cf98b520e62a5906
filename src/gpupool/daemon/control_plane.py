"""The composition root: one control plane, put together from the concrete store, fabric and API, and run.

``python -m gpupool.daemon.control_plane --state-dir DIR``, started by the supervisor. Logs go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI

from gpupool import __version__
from gpupool.api.app import create_app
from gpupool.api.loopback import listen_loopback
from gpupool.api.server import Bound, ListenConfig, address_of, serve
from gpupool.daemon.cluster import AGENT_SOCKET, NODES_DIR, gcs_address, secrets_dir
from gpupool.daemon.config import OFF, LogLevel, PoolConfig, PoolKind, Role, load_config
from gpupool.daemon.folders import CONTROL_PLANE_LOCK, DATABASE, FILES_DIR
from gpupool.daemon.garbage import walk_in_time, walk_seldom
from gpupool.daemon.heads import certificate, certificate_files, database_for_others, enrol, own_head
from gpupool.daemon.oidc_file import read_provider
from gpupool.daemon.other_heads import HeadsOfFolder
from gpupool.daemon.timezone import machine_zone
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.fabric.machines import Directory, MachinesFabric, Together, WrittenDirectory
from gpupool.fabric.ray.directory import BridgeDirectory
from gpupool.messaging import NetworkCourier
from gpupool.node.inventory.host import clean_node_name
from gpupool.node.locks import take as take_lock
from gpupool.services.authority import Authority
from gpupool.services.clock import SteadyClock
from gpupool.services.pool import Pool, PoolInfo
from gpupool.services.ports import Ports
from gpupool.store import SqlStore, open_database, open_store
from gpupool.store.blobs import KeptBlobs
from gpupool.web.install import install as install_web

if TYPE_CHECKING:
    from gpupool.store.address import PostgresAddress
    from gpupool.web.oidc import Provider

EXIT_REFUSED = 2

log = structlog.get_logger("gpupool.control_plane")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a control plane until SIGTERM; 0 after that, 2 when it could not begin, 1 when it broke."""
    parser = argparse.ArgumentParser(prog="gpupool-control-plane", description="The control plane of a pool.")
    parser.add_argument("--state-dir", required=True)
    options = parser.parse_args(argv)
    try:
        config = load_config(options.state_dir)
        _set_up_logging(config.log_level)
        lock = _own(config)
        _allow_many_connections()
        return asyncio.run(_run(config, lock))
    except GpupoolError as error:
        sys.stderr.write(f"control plane not running: {error}\n")
        return EXIT_REFUSED


def _own(config: PoolConfig) -> int:
    lock = take_lock(Path(config.state_dir) / CONTROL_PLANE_LOCK)
    if lock is None:
        raise GpupoolError(
            ErrorCode.POOL_ALREADY_RUNNING,
            f"Another control plane uses {config.state_dir}.",
            "Use that one, or stop it with `gpupool down`.",
        )
    return lock


def _allow_many_connections() -> None:
    """As many open files as the system lets this process have: each waiting client and open log is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(config: PoolConfig, lock: int) -> int:
    stop = _stop_event()
    address = config.database_address()
    if address is None:
        await _work(config, await open_store(Path(config.state_dir) / DATABASE), stop)
    else:
        await _lead(config, address, stop)
    os.close(lock)
    log.info("stopped")
    return 0


async def _lead(config: PoolConfig, address: PostgresAddress, stop: asyncio.Event) -> None:
    """Work on a database that others may lead too: wait for one's turn, and give it back at the end."""
    from gpupool.daemon.waiting import Leadership  # psycopg: not with SQLite

    leadership = Leadership(config, address)
    try:
        if await leadership.wait(lambda app, done: _listen_on(config, app, None, done), stop):
            store = await open_database(leadership.database())
            await _work(config, store, stop, leadership.guard, leadership.term)
    finally:
        await leadership.close()


async def _work(
    config: PoolConfig,
    store: SqlStore,
    stop: asyncio.Event,
    guard: Callable[[asyncio.Future[None]], None] = lambda _broken: None,
    term: int | None = None,
) -> None:
    dashboard = _dashboard(config)
    head = own_head(config, _node_name(config))
    info = replace(_info(config, store, dashboard), term=term, head=head)
    pool = Pool(_ports(config, store), info)
    guard(pool.engine.broken)
    try:
        await pool.start()
        if head is not None and info.movable:
            await enrol(config, pool.services.joining, head)
        walk_seldom()
        await _serve(config, pool, stop, dashboard)
    finally:
        await pool.close()


def _dashboard(config: PoolConfig) -> socket.socket | None:
    """Where browsers of this machine find the dashboard; a pool without it is better than none."""
    address = config.dashboard_address()
    try:
        return listen_loopback(*address) if address else None
    except GpupoolError as error:
        log.warning("no dashboard on this machine", code=error.code, why=error.message)
        return None


async def _serve(config: PoolConfig, pool: Pool, stop: asyncio.Event, dashboard: socket.socket | None) -> None:
    """Serve until told to stop; a background task that breaks ends the process, and the supervisor starts another."""
    app = create_app(pool.services)
    install_web(app, pool.services)
    app.state.oidc = _provider(config)
    serving = asyncio.create_task(_listen_on(config, app, dashboard, stop))
    working = asyncio.create_task(pool.run(stop))
    walking = asyncio.create_task(walk_in_time())
    try:
        await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        walking.cancel()
        results = await asyncio.gather(serving, working, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _listen_on(config: PoolConfig, app: FastAPI, dashboard: socket.socket | None, stop: asyncio.Event) -> None:
    await serve(
        app,
        socket_path=Path(config.location.api_socket),
        socket_mode=0o666 if config.kind is PoolKind.SYSTEM else 0o600,
        listen=_listen(config),
        dashboard=dashboard,
        stop=stop,
        ready=_say_ready,
    )


def _provider(config: PoolConfig) -> Provider | None:
    """With whom people sign in; when that cannot be read, tokens and links still let them in."""
    if config.oidc is None or config.oidc == OFF:
        return None
    from gpupool.web.oidc import Provider  # cryptography and OAuth: a tenth of a second that most pools need not spend

    try:
        return Provider(read_provider(config.oidc))
    except GpupoolError as error:
        log.warning("no sign-in with a provider", code=error.code, why=error.message)
        return None


def _say_ready(bound: Bound) -> None:
    log.info("ready", socket=str(bound.socket_path), listen=bound.listen, pid=os.getpid())


def _ports(config: PoolConfig, store: SqlStore) -> Ports:
    return Ports(
        store=store,
        fabric=MachinesFabric(_directory(config)),
        clock=SteadyClock(),
        random_bits=secrets.randbits,
        sleep=asyncio.sleep,
        courier=NetworkCourier(),
        blobs=KeptBlobs(Path(config.state_dir) / FILES_DIR),
        authority=_authority(config),
        other_heads=HeadsOfFolder(secrets_dir(config)) if config.role is Role.HEAD else None,
    )


def _directory(config: PoolConfig) -> Directory:
    own = WrittenDirectory({_node_name(config): Path(config.run_dir) / AGENT_SOCKET})
    if config.role is not Role.HEAD:
        return own
    return Together(own, BridgeDirectory(Path(config.run_dir) / NODES_DIR))


def _authority(config: PoolConfig) -> Authority | None:
    if config.role is not Role.HEAD:
        return None
    from gpupool.fabric.ray.authority import FolderAuthority  # cryptography, which one machine does without

    return FolderAuthority(secrets_dir(config), *gcs_address(config), certificate_files(config).certificate)


def _node_name(config: PoolConfig) -> str:
    return clean_node_name(config.node_name or os.uname().nodename)


def _info(config: PoolConfig, store: SqlStore, dashboard: socket.socket | None) -> PoolInfo:
    return PoolInfo(
        version=__version__,
        pool_id=store.pool_id,
        kind=str(config.kind),
        started_at=SteadyClock().now(),
        state_dir=config.state_dir,
        listen=config.listen,
        owner_uid=os.geteuid(),
        retention_days=config.retention_days,
        time_zone=config.time_zone or machine_zone(),
        dashboard=f"http://{address_of(dashboard)}" if dashboard else None,
        own_node=_node_name(config),
        movable=config.database is not None,
        database=database_for_others(config.database),
    )


def _listen(config: PoolConfig) -> ListenConfig | None:
    if config.listen is None:
        return None
    host, _, port = config.listen.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"  # noqa: S104 - what `--listen :8443` asks for
    if not port.isdigit() or int(port) > 65535:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{config.listen}' is not an address to listen on.", "Write HOST:PORT."
        )
    return ListenConfig(host, int(port), certificate(config))


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _set_up_logging(level: LogLevel) -> None:
    """One JSON object a line on standard error, the pool's own and those of libraries from WARNING on."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    raise SystemExit(main())
