"""The control plane's side of the gateway's socket: sends the routes that changed, and receives reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from gpupool.daemon.config import PoolConfig
from gpupool.daemon.process.gateway_switch import want_gateway
from gpupool.domain.protocol.gateway_table import (
    GATEWAY_ADDRESS,
    GATEWAY_SOCKET,
    MAX_LINE_BYTES,
    MAX_ROUTES,
    MessageError,
    Report,
    Route,
    RouteChange,
    RouteRemoval,
    Table,
    decode_report,
    encode,
)
from gpupool.domain.work.gang import endpoint

RETRY_S = 1.0
IDLE_RETRY_S = 10.0  # without routes, the gateway is being ended
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not listened on

log = structlog.get_logger("gpupool.gateway")


class GatewayLink:
    """``services.ports.adapters.Gateway`` over the unix socket in the run folder.

    The gateway runs while there are routes. Without a domain for ports of workloads, browsers on this machine use names
    below localhost, unless the gateway uses TLS: no certificate is valid for them.
    """

    def __init__(self, config: PoolConfig) -> None:
        self._state_dir = config.state_dir
        self._run_dir = Path(config.run_dir)
        self._address = config.cluster_address or ""
        self._domain = config.gateway_domain
        self._secure = config.listen is not None
        self._routes: dict[str, Route] | None = None  # None: nothing was published yet
        self._writer: asyncio.StreamWriter | None = None
        self._version = 0
        self._published = asyncio.Event()
        self._routed = asyncio.Event()  # set while there are routes

    @property
    def connected(self) -> bool:
        """Return whether the gateway answers now."""
        return self._writer is not None

    @property
    def url(self) -> str | None:
        """Return the address at which the gateway listens; None while it does not."""
        try:
            state = json.loads((self._run_dir / GATEWAY_ADDRESS).read_text(encoding="utf-8"))
            host, port, secure = str(state["host"]), int(state["port"]), bool(state["tls"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if host in _ANY:
            host = self._address or _ANY[host]
        return f"{'https' if secure else 'http'}://{endpoint(host, port)}"

    def port_domain(self, *, here: bool) -> str | None:
        """Return the domain of the host names of workloads' ports; None if browsers cannot use one."""
        return self._domain or ("localhost" if here and not self._secure else None)

    def publish(self, routes: Sequence[Route]) -> None:
        """Send what changed since the last routes; a new connection gets all of them."""
        before, after = self._routes, {route.key: route for route in routes[:MAX_ROUTES]}
        self._routes = after
        self._published.set()
        if before is None or bool(before) != bool(after):
            self._switch(wanted=bool(after))
        if after:
            self._routed.set()
        else:
            self._routed.clear()
        if self._writer is None or before is None:
            return
        changed = [route for key, route in after.items() if before.get(key) != route]
        gone = [key for key in before if key not in after]
        for route in changed:
            self._writer.write(encode(RouteChange(self._next(), route)))
        for key in gone:
            self._writer.write(encode(RouteRemoval(self._next(), key)))

    def _switch(self, *, wanted: bool) -> None:
        try:
            want_gateway(self._state_dir, wanted=wanted)
        except OSError as error:
            log.warning("the gateway cannot be started or ended", why=str(error))

    def _next(self) -> int:
        self._version += 1
        return self._version

    async def run(self, on_report: Callable[[Report], None]) -> None:
        """Keep the connection open for ever, and pass on what the gateway reports."""
        await self._published.wait()  # the gateway keeps its last table until then
        while True:
            with suppress(OSError):
                await self._converse(on_report)
            if self._routed.is_set():
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_RETRY_S):
                    await self._routed.wait()

    async def _converse(self, on_report: Callable[[Report], None]) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._run_dir / GATEWAY_SOCKET), limit=MAX_LINE_BYTES)
        try:
            writer.write(encode(Table(self._next(), tuple((self._routes or {}).values()))))
            self._writer = writer
            log.info("the gateway is connected", routes=len(self._routes or {}))
            while line := await reader.readline():
                on_report(decode_report(line))
        except (MessageError, ValueError) as error:
            log.warning("the connection to the gateway is closed", why=str(error))
        finally:
            self._writer = None
            writer.close()
            log.info("the gateway is not connected")
