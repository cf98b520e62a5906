"""The actor on every machine that forwards bytes between the head and the agent of its machine.

It has no state: a relay that dies closes its connections, and clients connect again. Calls of one connection are
numbered, because calls of an asynchronous actor may overtake each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpupool.fabric.local.link import connection
from gpupool.services.socket_stream import SocketStream

PROTOCOL = 1
AGENT_SOCKET_VARIABLE = "GPUPOOL_AGENT_SOCKET"
NODE_NAME_VARIABLE = "GPUPOOL_NODE_NAME"
PIECE = 64 << 10  # bytes in one call: less than Ray would put into its object store (100 KiB)
DESERTED_AFTER_S = 45.0  # a connection that no bridge has named for this long is closed
_SWEEP_S = 5.0


class CallOrder:
    """Executes numbered calls in order, from 0 on."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """Wait for all calls before ``number``; the next one may run when this block is left."""
        if number > self._next:
            await self._waiting.setdefault(number, asyncio.Event()).wait()
        try:
            yield
        finally:
            self._next = max(self._next, number + 1)
            self._waiting.pop(number, None)
            if following := self._waiting.get(self._next):
                following.set()


class Pipe:
    """One connection to the agent."""

    def __init__(self) -> None:
        self.heard_at = time.monotonic()
        self._reading = CallOrder()
        self._writing = CallOrder()

    async def open(self, agent: Path) -> None:
        """Connect. Raises OSError."""
        async with connection(agent) as ends:
            self._stream = await SocketStream.take_over(*ends)

    async def send(self, number: int, data: bytes) -> bool:
        """Write, waiting for a slow agent; return False if it has disconnected."""
        async with self._writing.turn(number):
            try:
                await self._stream.write(data)
            except OSError:
                return False
        return True

    async def receive(self, number: int) -> bytes:
        """Return the next bytes from the agent as soon as there are any; empty at the end."""
        async with self._reading.turn(number):
            return await self._stream.read(PIECE)

    async def close(self) -> None:
        """Close the connection; readers get the end."""
        self._stream.close()


class Relay:
    """Connections to the agent of this machine, by names chosen by the bridge."""

    def __init__(self) -> None:
        self._agent = os.environ.get(AGENT_SOCKET_VARIABLE, "")
        self._pipes: dict[str, Pipe] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def beat(self, tunnels: list[str]) -> dict[str, Any]:
        """Return the identity of this relay; ``tunnels`` are the connections still in use by the caller."""
        now = time.monotonic()
        for name in tunnels:
            if pipe := self._pipes.get(name):
                pipe.heard_at = now
        return {"protocol": PROTOCOL, "node": os.environ.get(NODE_NAME_VARIABLE, ""), "open": len(self._pipes)}

    async def open(self, tunnel: str) -> str:
        """Connect to the agent under a new name; return the error, or empty."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        pipe = Pipe()
        try:
            await pipe.open(Path(self._agent))
        except OSError as error:
            return error.strerror or repr(error)
        self._pipes[tunnel] = pipe
        return ""

    async def send(self, tunnel: str, number: int, data: bytes) -> bool:
        """Send bytes to the agent; return False if there is no such connection."""
        pipe = self._pipes.get(tunnel)
        return pipe is not None and await pipe.send(number, data)

    async def receive(self, tunnel: str, number: int) -> bytes:
        """Return the next bytes from the agent, at most ``PIECE``, as soon as there are any; empty at the end."""
        pipe = self._pipes.get(tunnel)
        return b"" if pipe is None else await pipe.receive(number)

    async def close(self, tunnel: str) -> None:
        """Close a connection."""
        if pipe := self._pipes.pop(tunnel, None):
            await pipe.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            limit = time.monotonic() - DESERTED_AFTER_S
            for name in [name for name, pipe in self._pipes.items() if pipe.heard_at < limit]:
                await self.close(name)
