"""The gateway as a process: ``python -m gpupool.gateway.main --state-dir DIR --run-dir DIR --host H --port N``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpupool.domain.protocol.gateway_table import GATEWAY_SOCKET
from gpupool.gateway.control import ControlServer, StoredTable
from gpupool.gateway.forwarding import Networks
from gpupool.gateway.hub import Hub, JsonLines, log
from gpupool.gateway.listener import GatewayListener, ListenOptions
from gpupool.unix_sockets import listen

TABLE_FILE = "gateway-table.json"
STOP_GRACE_S = 5.0
_OTHER_FILES = 64  # descriptors that are no connections
_FILES_PER_CONNECTION = 2  # the client's, and one to a replica
_MAX_FILES = 65_536
_GC_THRESHOLDS = (50_000, 20, 20)  # requests leave no cycles, so a search for them is rarely worth its time


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; return 0 after that, 1 if it could not start."""
    options = _parse(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log.setLevel(logging.INFO)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(options))
    except (OSError, ValueError) as error:
        log.error("the gateway cannot run: %s", error)
        return 1
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the constructor of uvloop's event loop, which halves the time of a request; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        log.warning("uvloop is not installed; the gateway is slower. Install gpupool with all its dependencies.")
        return None
    return uvloop.new_event_loop


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpupool-gateway", description=__doc__)
    parser.add_argument("--state-dir", required=True, type=Path)
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--fallback", action="store_true", help="use another port if this one is in use")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--trusted-proxy", action="append", default=[], metavar="CIDR")
    return parser.parse_args(argv)


async def _run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    hub = Hub(loop, Networks(options.trusted_proxy), _most_connections())
    stored = StoredTable(options.state_dir / TABLE_FILE)
    table = stored.load()
    if table is not None:
        hub.apply(table)
    control = ControlServer(hub, stored)
    await control.start(listen(options.run_dir / GATEWAY_SOCKET))
    listener = GatewayListener(
        hub,
        ListenOptions(options.host, options.port, options.fallback, options.tls_cert, options.tls_key),
        options.run_dir,
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    listening = asyncio.create_task(listener.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if listening.done():
        await listening  # raises what went wrong
    await stopping
    listening.cancel()
    listener.close()
    await _drain(hub)
    await control.close()


async def _drain(hub: Hub) -> None:
    """Finish the requests in progress, for a short time."""
    hub.stopping = True
    for connection in list(hub.connections):
        connection.close_when_idle()
    if hub.connections:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S):
                await hub.without_connections.wait()


def _most_connections() -> int:
    """Raise the limit of open files, and return how many connections it allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(1, (most - _OTHER_FILES) // _FILES_PER_CONNECTION)


if __name__ == "__main__":
    raise SystemExit(main())
