"""The composition root: assembles one control plane from the concrete store, fabric and API, and runs it.

``control_plane_main`` is its process, started by the supervisor. Logs go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI

from gpupool import __version__
from gpupool.api.app import create_app
from gpupool.api.server.loopback import listen_loopback
from gpupool.api.server.proxies import TrustedProxies
from gpupool.api.server.server import BoundAddresses, ListenConfig, address_of, serve
from gpupool.daemon.cluster.heads import (
    certificate,
    certificate_files,
    database_for_others,
    enrol,
    node_name,
    own_head,
    passfile_of,
)
from gpupool.daemon.cluster.peer_heads import HeadsOfFolder
from gpupool.daemon.config import OFF, LogLevel, MachineRole, PoolConfig, PoolKind, load_config
from gpupool.daemon.folders import CONTROL_PLANE_LOCK, DATABASE, FILES_DIR
from gpupool.daemon.gateway_link import GatewayLink
from gpupool.daemon.machine import AGENT_SOCKET, NODES_DIR, gcs_address, secrets_dir
from gpupool.daemon.oidc_file import read_provider
from gpupool.daemon.pool_identity import Decided, read_identity, settle
from gpupool.daemon.process.garbage_collection import pause_full_collections, run_full_collections
from gpupool.daemon.process.phases import StartPhase, enter_phase
from gpupool.daemon.storage import FolderStorage
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.fencing import Leadership, SoleLeadership
from gpupool.domain.work.time_windows import read_zone
from gpupool.fabric.machines import BridgeDirectory, CombinedDirectory, Directory, MachinesFabric, StaticDirectory
from gpupool.messaging import NetworkCourier
from gpupool.node.host.locks import take as take_lock
from gpupool.services.clock import SteadyClock
from gpupool.services.control.adoption import OtherPools
from gpupool.services.log_rate_limit import LimitedLines, LogLimit
from gpupool.services.pool import Pool, PoolInfo
from gpupool.services.ports.adapters import Ports
from gpupool.services.ports.cluster import Authority
from gpupool.store import SqlStore, open_database, open_store
from gpupool.store.blobs import StoredBlobs
from gpupool.web.install import install as install_web

if TYPE_CHECKING:
    from gpupool.store.backends.address import PostgresAddress
    from gpupool.web.oidc import Provider

EXIT_REFUSED = 2
_CAUSED_BY_CLIENTS = ("uvicorn.error", "asyncio", "websockets.server")  # loggers whose lines a client can cause

FIRST_NODE_S = 10.0
FIRST_NODE_POLL_S = 0.02
log = structlog.get_logger("gpupool.control_plane")
_LOCALTIME = Path("/etc/localtime")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a control plane until SIGTERM; return 0 after that, 2 if it could not begin, 1 if it failed."""
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
            "Use that control plane, or stop it with `gpupool down`.",
        )
    return lock


def _allow_many_connections() -> None:
    """Raise the limit of open files to the maximum: each waiting client and open log needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(config: PoolConfig, lock: int) -> int:
    stop = _stop_event()
    address = config.database_address()
    enter_phase(config.run_dir, StartPhase.OPENING)
    if address is None:
        known = read_identity(config.state_dir).pool_id
        await _work(config, await open_store(Path(config.state_dir) / DATABASE, known), stop, SoleLeadership(), None)
    else:
        await _lead(config, address, stop)
    os.close(lock)
    log.info("stopped")
    return 0


async def _lead(config: PoolConfig, address: PostgresAddress, stop: asyncio.Event) -> None:
    """Work on a database that others may lead too: wait for the right to lead, and release it at the end."""
    from gpupool.daemon.cluster.standby import ElectedLeadership  # psycopg: not with SQLite

    leadership = ElectedLeadership(config, address)
    try:
        if await leadership.wait(lambda app, done: _listen_on(config, app, None, done), stop):
            store = await open_database(leadership.database())
            await _work(config, store, stop, leadership.lead, leadership.guard)
    finally:
        await leadership.close()


async def _work(
    config: PoolConfig,
    store: SqlStore,
    stop: asyncio.Event,
    lead: Leadership,
    guard: Callable[[asyncio.Future[None]], None] | None,
) -> None:
    try:
        decided = settle(config.state_dir, store.pool_id)
    except GpupoolError:
        await store.close()
        raise
    dashboard = _dashboard(config)
    head = own_head(config, node_name(config))
    info = replace(_info(config, store, dashboard), term=lead.term, head=head, others=_others(decided))
    pool = Pool(_ports(config, store, lead), info)
    if guard is not None:
        guard(pool.engine.broken)
    try:
        enter_phase(config.run_dir, StartPhase.READING)
        await pool.start()
        if head is not None and info.movable:
            await enrol(config, pool.services.joining, head)
        if config.role is MachineRole.ALONE:
            await _first_node(pool, stop)
        pause_full_collections()
        await _serve(config, pool, stop, dashboard)
    finally:
        await pool.close()


async def _first_node(pool: Pool, stop: asyncio.Event) -> None:
    """Wait for the node of a new pool: until it has reported, every request would be refused as impossible.

    The wait is short, because a driver may be slow or the agent fail, and an answer without GPUs is better than none.
    """
    deadline = time.monotonic() + FIRST_NODE_S
    while not pool.engine.feed.scheduler.cluster.rows:
        if stop.is_set() or pool.engine.broken.done() or time.monotonic() >= deadline:
            return
        await asyncio.sleep(FIRST_NODE_POLL_S)


def _others(decided: Decided) -> OtherPools:
    return OtherPools(decided.adopt, decided.abandon, decided.abandon_all)


def _dashboard(config: PoolConfig) -> socket.socket | None:
    """Return the dashboard's socket for browsers of this machine; None (logged) if it cannot be opened."""
    address = config.dashboard_address()
    try:
        return listen_loopback(*address) if address else None
    except GpupoolError as error:
        log.warning("no dashboard on this machine", code=error.code, why=error.message)
        return None


async def _serve(config: PoolConfig, pool: Pool, stop: asyncio.Event, dashboard: socket.socket | None) -> None:
    """Serve until stopped; a failed background task ends the process, and the supervisor starts another one."""
    app = create_app(pool.services)
    install_web(app, pool.services, _provider(config))
    serving = asyncio.create_task(_listen_on(config, app, dashboard, stop))
    working = asyncio.create_task(pool.run(stop))
    walking = asyncio.create_task(run_full_collections())
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
    def ready(bound: BoundAddresses) -> None:
        gc.freeze()  # loaded modules stay: the collector need not scan them again
        gc.enable()
        enter_phase(config.run_dir, StartPhase.READY)
        log.info("ready", socket=str(bound.socket_path), listen=bound.listen, pid=os.getpid())

    enter_phase(config.run_dir, StartPhase.LISTENING)
    await serve(
        app,
        socket_path=Path(config.location.api_socket),
        socket_mode=0o666 if config.kind is PoolKind.SYSTEM else 0o600,
        listen=_listen(config),
        dashboard=dashboard,
        stop=stop,
        ready=ready,
    )


def _provider(config: PoolConfig) -> Provider | None:
    """Return the sign-in provider; None (logged) if its file cannot be read: tokens and links still work."""
    if config.oidc is None or config.oidc == OFF:
        return None
    from gpupool.web.oidc import Provider  # cryptography and OAuth: a tenth of a second that most pools can save

    try:
        return Provider(read_provider(config.oidc))
    except GpupoolError as error:
        log.warning("no sign-in with a provider", code=error.code, why=error.message)
        return None


def _ports(config: PoolConfig, store: SqlStore, lead: Leadership) -> Ports:
    clock = SteadyClock()
    return Ports(
        store=store,
        fabric=MachinesFabric(_directory(config), lead, clock),
        clock=clock,
        random_bits=secrets.randbits,
        sleep=asyncio.sleep,
        courier=NetworkCourier(),
        blobs=StoredBlobs(Path(config.state_dir) / FILES_DIR),
        authority=_authority(config),
        gateway=GatewayLink(config),
        storage=FolderStorage(config),
        other_heads=HeadsOfFolder(secrets_dir(config)) if config.role is MachineRole.HEAD else None,
    )


def _directory(config: PoolConfig) -> Directory:
    own = StaticDirectory({node_name(config): Path(config.run_dir) / AGENT_SOCKET})
    if config.role is not MachineRole.HEAD:
        return own
    return CombinedDirectory(own, BridgeDirectory(Path(config.run_dir) / NODES_DIR))


def _authority(config: PoolConfig) -> Authority | None:
    if config.role is not MachineRole.HEAD:
        return None
    from gpupool.fabric.ray.authority import FolderAuthority  # cryptography, which a single machine does not need

    return FolderAuthority(secrets_dir(config), *gcs_address(config), certificate_files(config).certificate)


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
        own_node=node_name(config),
        movable=config.database is not None,
        database=database_for_others(config.database),
        address=config.cluster_address,
        password_file=config.database_password_file,
        passfile=passfile_of(config.database),
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
    return ListenConfig(host, int(port), certificate(config), TrustedProxies(config.trusted_proxies))


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _set_up_logging(level: LogLevel) -> None:
    """Log one JSON object per line to standard error, of libraries from WARNING on."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    for name in _CAUSED_BY_CLIENTS:
        logging.getLogger(name).addFilter(LimitedLines(LogLimit(time.monotonic)))
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


def machine_zone() -> str:
    """Return the name of this machine's time zone, or UTC if it is unknown."""
    for name in (os.environ.get("TZ", ""), str(_LOCALTIME.resolve()).partition("zoneinfo/")[2]):
        with contextlib.suppress(GpupoolError):
            read_zone(name)
            return name
    return "UTC"
