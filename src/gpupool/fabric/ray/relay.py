"""The actor on every machine that passes bytes between the head and the agent of its machine.

It keeps nothing: a relay that dies takes its connections with it, and whoever used them connects again. Calls of one
connection carry numbers, because calls of an asynchronous actor may overtake each other.
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

PROTOCOL = 1
AGENT_SOCKET_VARIABLE = "GPUPOOL_AGENT_SOCKET"
NODE_NAME_VARIABLE = "GPUPOOL_NODE_NAME"
PIECE = 64 << 10  # bytes in one call: less than Ray would put into its object store (100 KiB)
DESERTED_AFTER_S = 45.0  # a connection that no bridge has spoken of for so long is closed
_SWEEP_S = 5.0


class Turns:
    """Lets numbered calls through in the order of their numbers, from 0 on."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """Wait for all calls before ``number``; the one after it may go once this block is left."""
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
        self._stack = contextlib.AsyncExitStack()
        self._reading = Turns()
        self._writing = Turns()

    async def open(self, agent: Path) -> None:
        """Connect. Raises OSError."""
        self._reader, self._writer = await self._stack.enter_async_context(connection(agent))

    async def send(self, number: int, data: bytes) -> bool:
        """Write, waiting while the agent is slow; False when it has hung up."""
        async with self._writing.turn(number):
            try:
                self._writer.write(data)
                await self._writer.drain()
            except (OSError, RuntimeError):
                return False
        return True

    async def receive(self, number: int) -> bytes:
        """What the agent says next, as soon as it says something; empty at the end."""
        async with self._reading.turn(number):
            try:
                return await self._reader.read(PIECE)
            except (OSError, RuntimeError):
                return b""

    async def close(self) -> None:
        """Hang up; whoever reads gets the end."""
        await self._stack.aclose()
        self._reader.feed_eof()


class Relay:
    """Connections to the agent of this machine, by names that the bridge chose."""

    def __init__(self) -> None:
        self._agent = os.environ.get(AGENT_SOCKET_VARIABLE, "")
        self._pipes: dict[str, Pipe] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def beat(self, tunnels: list[str]) -> dict[str, Any]:
        """Say who this is; ``tunnels`` are the connections that the caller still uses."""
        now = time.monotonic()
        for name in tunnels:
            if pipe := self._pipes.get(name):
                pipe.heard_at = now
        return {"protocol": PROTOCOL, "node": os.environ.get(NODE_NAME_VARIABLE, ""), "open": len(self._pipes)}

    async def open(self, tunnel: str) -> str:
        """Connect to the agent under a new name; why not, or empty."""
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
        """Pass bytes to the agent; False when there is no such connection (any more)."""
        pipe = self._pipes.get(tunnel)
        return pipe is not None and await pipe.send(number, data)

    async def receive(self, tunnel: str, number: int) -> bytes:
        """The next bytes of the agent, at most ``PIECE``, as soon as there are some; empty at the end."""
        pipe = self._pipes.get(tunnel)
        return b"" if pipe is None else await pipe.receive(number)

    async def close(self, tunnel: str) -> None:
        """Hang up."""
        if pipe := self._pipes.pop(tunnel, None):
            await pipe.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            limit = time.monotonic() - DESERTED_AFTER_S
            for name in [name for name, pipe in self._pipes.items() if pipe.heard_at < limit]:
                await self.close(name)
