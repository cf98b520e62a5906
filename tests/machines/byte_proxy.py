"""A network between a control plane and an agent that a test can cut, freeze and heal."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from enum import Enum
from pathlib import Path
from typing import Any

PIECE = 256 << 10
PATIENCE_S = 30.0


class Weather(Enum):
    FINE = "fine"
    CUT = "cut"  # connections break, new ones are hung up on
    FROZEN = "frozen"  # connections stay, no byte moves; they move when it is fine again
    DEAF = "deaf"  # bytes to the agent move, none come back


class Proxy:
    """From one unix socket to another; used from any thread, its work is done by the ``Network``'s."""

    def __init__(self, network: Network, near: Path, far: Path) -> None:
        self.near, self.far = near, far
        self._network = network
        self._weather = Weather.FINE
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        await asyncio.start_unix_server(self._serve, str(self.near), limit=PIECE)

    def set(self, weather: Weather) -> None:
        self._network.do(self._set(weather))

    async def _set(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()
        if weather is Weather.CUT:
            for writer in list(self._writers):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather is Weather.CUT:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self.far), limit=PIECE)
        except OSError:
            writer.close()
            return
        mine = {writer, far_writer}
        self._writers |= mine
        there = asyncio.create_task(self._carry(reader, far_writer, back=False))
        back = asyncio.create_task(self._carry(far_reader, writer, back=True))
        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        for task in (there, back):
            task.cancel()
        for end in mine:
            end.close()
        self._writers -= mine

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        stopped = {Weather.FROZEN, Weather.DEAF} if back else {Weather.FROZEN}
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                while self._weather in stopped:
                    await self._changed.wait()
                writer.write(data)
                await writer.drain()


class Network:
    """A thread in which all proxies live."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="network")
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def between(self, near: Path, far: Path) -> Proxy:
        proxy = Proxy(self, near, far)
        self.do(proxy.open())
        return proxy

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
