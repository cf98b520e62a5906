"""Connect to a replica through its node's agent, for servers that listen only on their own node's loopback address.

The agent connects to ports of the replica's own processes only. After its answer, the unix socket carries the bytes of
the port.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

from gpupool.gateway.replica_connection import ReplicaConnection
from gpupool.gateway.routing import ReplicaLoad
from gpupool.gateway.sockets import socket_name

MAX_ANSWER_BYTES = 64 << 10


async def connect_through_agent(loop: asyncio.AbstractEventLoop, replica: ReplicaLoad) -> ReplicaConnection:
    """Return a connection to the port of a replica. Raises ``OSError``."""
    connected: asyncio.Future[ReplicaConnection] = loop.create_future()
    with socket_name(Path(replica.agent)) as name:
        transport, _ = await loop.create_unix_connection(lambda: _Handshake(replica, connected), name)
    try:
        return await connected
    except BaseException:
        transport.abort()
        raise


class _Handshake(asyncio.Protocol):
    """Asks the agent for the port, and hands the connection over when the agent has agreed."""

    def __init__(self, replica: ReplicaLoad, connected: asyncio.Future[ReplicaConnection]) -> None:
        self._replica = replica
        self._connected = connected
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request (called by the event loop)."""
        self._transport = cast("asyncio.Transport", transport)
        params = {"key": self._replica.key, "port": self._replica.port, "activity": False}
        self._transport.write(json.dumps({"id": 0, "method": "connect_port", "params": params}).encode() + b"\n")

    def data_received(self, data: bytes) -> None:
        """Read the agent's answer; bytes after it are the replica's (called by the event loop)."""
        self._answer += data
        line, end, rest = self._answer.partition(b"\n")
        if not end and len(line) <= MAX_ANSWER_BYTES:
            return
        try:
            answer = json.loads(line)
            refused = answer.get("error")
        except (ValueError, AttributeError):
            refused = {"message": "its answer is not JSON"}
        if refused is not None or not end:
            self._fail(f"the agent refused: {refused}"[:300])
            return
        if self._connected.done():
            return
        upstream = ReplicaConnection(self._replica)
        self._transport.set_protocol(upstream)
        upstream.connection_made(self._transport)
        self._connected.set_result(upstream)
        if rest:
            upstream.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - as the base has it
        """Handle the end of the connection (called by the event loop)."""
        self._fail("the agent closed the connection")

    def _fail(self, reason: str) -> None:
        if not self._connected.done():
            self._connected.set_exception(ConnectionError(reason))
