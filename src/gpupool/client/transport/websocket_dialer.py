"""WebSocket connections to a pool, in an event loop: to the current leader, with one retry after a failover."""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import WebSocketException

from gpupool.client.transport.endpoint import Endpoint, TlsEndpoint, UnixEndpoint
from gpupool.client.transport.failover import HeadSelector
from gpupool.unix_sockets import ShortPath

CONNECT_TIMEOUT_S = 15.0
REFUSED = 4000  # the server closes with 4000 + the HTTP status of its error

OPTIONS: dict[str, Any] = {"open_timeout": CONNECT_TIMEOUT_S, "max_size": None, "compression": None}


class WebSocketDialer:
    """Opens WebSockets of one pool."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._heads = HeadSelector(endpoint) if isinstance(endpoint, TlsEndpoint) else None

    async def connect(self, target: str) -> ClientConnection:
        """Connect to a path of the API. Raises ``OSError``, ``WebSocketException``, ``TimeoutError``."""
        if self._heads is None:
            return await self._connect_here(target)
        endpoint = self._heads.current
        try:
            return await _connect_to(self._heads, endpoint, target)
        except (OSError, WebSocketException, TimeoutError):
            found = await asyncio.to_thread(self._heads.find_leader, endpoint) if self._heads.has_alternatives else None
            if found is None or found == endpoint:
                raise
        return await _connect_to(self._heads, found, target)

    async def _connect_here(self, target: str) -> ClientConnection:
        assert isinstance(self._endpoint, UnixEndpoint)  # noqa: S101 - TLS endpoints have a HeadSelector
        with ShortPath(self._endpoint.path) as path:
            return await unix_connect(path, f"ws://gpupool{target}", **OPTIONS)


async def _connect_to(selector: HeadSelector, endpoint: TlsEndpoint, target: str) -> ClientConnection:
    headers = {"authorization": f"Bearer {endpoint.token}"}
    url = "wss" + endpoint.url.removeprefix("https") + target
    return await connect(url, ssl=selector.context(endpoint), additional_headers=headers, proxy=None, **OPTIONS)
