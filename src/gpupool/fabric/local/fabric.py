"""The fabric of a pool on one machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gpupool.domain.supervision import ProcessStatus
from gpupool.fabric.local.link import LocalLink, unreachable
from gpupool.services.ports import FabricEvent, NodeLink

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class LocalFabric:
    """One agent, connected to again whenever it goes; ``services.ports.Fabric``."""

    def __init__(self, agent_socket: Path, node_name: str) -> None:
        self._link = LocalLink(node_name, agent_socket)
        self._events: asyncio.Queue[FabricEvent] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._announced = False
        self._up = False

    async def start(self) -> None:
        """Begin to connect; the node is announced by an event."""
        if self._task is None:
            self._task = asyncio.create_task(self._stay_connected())

    def link(self, node: str) -> NodeLink:
        """The link of the node once it has been announced; raises NODE_UNREACHABLE before, and for another."""
        if node != self._link.name or not self._announced:
            raise unreachable(node, "is not known")
        return self._link

    async def events(self) -> AsyncIterator[FabricEvent]:
        """What the node says, for ever; ``up`` true after every connect, false when the agent is lost."""
        while True:
            yield await self._events.get()

    async def close(self) -> None:
        """Hang up; what runs on the node runs on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _stay_connected(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError):
                await self._link.converse(self._on_up, self._on_status)
            if self._up:
                pause_s = FIRST_PAUSE_S
                self._up = False
                self._tell(FabricEvent(self._link.name, up=False))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _on_up(self) -> None:
        self._up = self._announced = True
        self._tell(FabricEvent(self._link.name, up=True))

    def _on_status(self, status: ProcessStatus) -> None:
        self._tell(FabricEvent(self._link.name, status=status))

    def _tell(self, event: FabricEvent) -> None:
        self._events.put_nowait(event)
