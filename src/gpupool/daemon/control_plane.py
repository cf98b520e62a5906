"""The composition root: one control plane, put together from the concrete store, fabric and API, and run.

``python -m gpupool.daemon.control_plane --state-dir DIR``, started by the supervisor. Logs go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from gpupool import __version__
from gpupool.api.app import create_app
from gpupool.api.server import Bound, ListenConfig, serve
from gpupool.api.tls import CertificateFiles, ensure_self_signed
from gpupool.daemon.config import LogLevel, PoolConfig, PoolKind, load_config
from gpupool.daemon.folders import CONTROL_PLANE_LOCK
from gpupool.daemon.timezone import machine_zone
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.fabric.local import LocalFabric
from gpupool.node.inventory.host import clean_node_name
from gpupool.node.locks import take as take_lock
from gpupool.services.clock import SteadyClock
from gpupool.services.pool import Pool, PoolInfo
from gpupool.services.ports import Ports
from gpupool.store import SqlStore, open_store

DATABASE = "pool.db"
AGENT_SOCKET = "agent.sock"
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
    store = await open_store(Path(config.state_dir) / DATABASE)
    pool = Pool(_ports(config, store), _info(config, store))
    stop = _stop_event()
    try:
        await pool.start()
        gc.freeze()  # what is here now stays: the collector need not walk it again and again
        await _serve(config, pool, stop)
    finally:
        await pool.close()
        os.close(lock)
    log.info("stopped")
    return 0


async def _serve(config: PoolConfig, pool: Pool, stop: asyncio.Event) -> None:
    """Serve until told to stop; a background task that breaks ends the process, and the supervisor starts another."""
    app = create_app(pool.services)
    serving = asyncio.create_task(
        serve(
            app,
            socket_path=Path(config.location.api_socket),
            socket_mode=0o666 if config.kind is PoolKind.SYSTEM else 0o600,
            listen=_listen(config),
            stop=stop,
            ready=_say_ready,
        )
    )
    working = asyncio.create_task(pool.run(stop))
    try:
        await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        results = await asyncio.gather(serving, working, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _say_ready(bound: Bound) -> None:
    log.info("ready", socket=str(bound.socket_path), listen=bound.listen, pid=os.getpid())


def _ports(config: PoolConfig, store: SqlStore) -> Ports:
    node_name = clean_node_name(config.node_name or os.uname().nodename)
    return Ports(
        store=store,
        fabric=LocalFabric(Path(config.run_dir) / AGENT_SOCKET, node_name),
        clock=SteadyClock(),
        random_bits=secrets.randbits,
        sleep=asyncio.sleep,
    )


def _info(config: PoolConfig, store: SqlStore) -> PoolInfo:
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
    return ListenConfig(host, int(port), _certificate(config, host))


def _certificate(config: PoolConfig, host: str) -> CertificateFiles:
    if config.tls_cert is not None and config.tls_key is not None:
        return CertificateFiles(Path(config.tls_cert), Path(config.tls_key))
    folder = Path(config.state_dir) / "tls"
    folder.mkdir(mode=0o700, exist_ok=True)
    files = CertificateFiles(folder / "cert.pem", folder / "key.pem")
    log.info("self-signed certificate", sha256=ensure_self_signed(files, host))
    return files


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
