"""The shared state of the gateway's connections: routes, timers and reports to the control plane."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Protocol

from gpupool.domain.protocol.gateway_table import Command, Report, Route, RouteChange, Table, Wake
from gpupool.gateway.forwarding import Networks
from gpupool.gateway.routing import Router, RouteState

TICK_S = 0.5
REPORT_TICKS = 2
MAX_CONNECTIONS = 16_384
MAX_COLLECTED_BYTES = 256 << 20  # request bodies in memory, of all connections
log = logging.getLogger("gpupool.gateway")


class Connection(Protocol):
    """A connection of a client, for timers and the end of the gateway."""

    def tick(self, now: float) -> None:
        """Act on passed time limits."""

    def close_when_idle(self) -> None:
        """Close now if no request is in progress."""


class Hub:
    """Routes, connections and reports. ``send`` gets each report; it returns False if no control plane is connected."""

    def __init__(self, loop: asyncio.AbstractEventLoop, trusted: Networks, max_connections: int) -> None:
        self.loop = loop
        self.trusted = trusted
        self.max_connections = min(MAX_CONNECTIONS, max_connections)
        self.router: Router = Router()
        self.connections: set[Connection] = set()
        self.collected_bytes = 0
        self.stopping = False
        self.without_connections = asyncio.Event()  # set when the last one ends while the gateway stops
        self.version = -1
        self._send: Callable[[Report], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0

    @property
    def routes(self) -> dict[str, Route]:
        """Return all routes by key."""
        return {key: state.route for key, state in self.router.routes.items()}

    def apply(self, command: Command) -> bool:
        """Apply a message of the control plane; return False if it does not follow the last one."""
        if isinstance(command, Table):
            routes = {route.key: route for route in command.routes}
        elif command.version <= self.version:
            return False
        else:
            routes = self.routes
            if isinstance(command, RouteChange):
                routes[command.route.key] = command.route
            else:
                routes.pop(command.key, None)
        self.version = command.version
        gone = self.router.replace(routes)
        for state in (*self.router.routes.values(), *gone):
            self.release(state)
        return True

    def attach(self, send: Callable[[Report], bool] | None) -> None:
        """Send reports there from now on; a new control plane gets the load of all routes in use."""
        self._send = send
        if send is None:
            return
        for key, state in self.router.routes.items():
            state.changed = state.changed or state.in_flight > 0
            if state.held:
                send(Wake(key))
        self.keep_ticking()

    def wake(self, state: RouteState) -> None:
        """Report that a request is held."""
        if self._send is not None:
            self._send(Wake(state.route.key))

    def release(self, state: RouteState) -> None:
        """Carry held requests to replicas, as far as there are any."""
        while state.held and (state.gone or state.choose(self.loop.time())):
            exchange = next(iter(state.held))
            del state.held[exchange]
            state.changed = True
            exchange.dispatch()

    def keep_ticking(self) -> None:
        """Run the timer while there is anything to watch; an idle gateway sleeps."""
        if self._timer is None:
            self._timer = self.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self.loop.time()
        for connection in list(self.connections):
            connection.tick(now)
        for state in self.router.routes.values():
            if state.held:
                self.release(state)
        self._ticks += 1
        waiting = False
        if self._ticks % REPORT_TICKS:
            waiting = True
        elif self._send is not None:
            self._report(self._send)
        if self.connections or waiting:
            self.keep_ticking()

    def _report(self, send: Callable[[Report], bool]) -> None:
        for state in self.router.routes.values():
            if state.changed:
                load = state.take_load()
                if not send(load):
                    state.changed = True
                    return


class JsonLines(logging.Formatter):
    """Log records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {"timestamp": self.formatTime(record), "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
