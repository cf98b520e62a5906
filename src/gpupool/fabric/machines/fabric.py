"""A fabric of many machines: one link per node, opened again when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from gpupool.domain.protocol.fencing import Leadership
from gpupool.domain.work.program.supervision import ProcessStatus
from gpupool.fabric.local.link import LocalLink, unreachable
from gpupool.fabric.machines.directory import Directory
from gpupool.services.clock import Clock
from gpupool.services.ports.fabric import FabricEvent, NodeLink

MIN_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
DIRECTORY_PAUSE_S = 1.0

log = structlog.get_logger("gpupool.fabric")


class MachinesFabric:
    """All nodes of a directory; implements ``services.ports.fabric.Fabric``.

    A node is ``up`` once its agent has answered on a connection. It is not ``up`` when that connection is lost or the
    agent has not answered for ten seconds (``fabric.local.link``), even if the transport is still open.
    """

    def __init__(self, directory: Directory, lead: Leadership, clock: Clock) -> None:
        self._directory = directory
        self._lead = lead
        self._clock = clock
        self._events: asyncio.Queue[FabricEvent] = asyncio.Queue()
        self._machines: dict[str, _Machine] = {}
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to connect; nodes are announced by events."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_directory())

    def link(self, node: str) -> NodeLink:
        """Return the link of an announced node; raise NODE_UNREACHABLE for others."""
        machine = self._machines.get(node)
        if machine is None or not machine.announced:
            raise unreachable(node, "is not known")
        return machine.link

    async def events(self) -> AsyncIterator[FabricEvent]:
        """Yield events of nodes, forever; ``up`` is true after every connect, false when the agent is lost."""
        while True:
            yield await self._events.get()

    async def close(self) -> None:
        """Close all connections; programs on the nodes continue."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        machines, self._machines = self._machines, {}
        await asyncio.gather(*(machine.close() for machine in machines.values()))

    async def _read_directory(self) -> None:
        while True:
            try:
                async for place in self._directory.places():
                    await self._take(place.node, place.socket)
            except Exception:  # known nodes stay, and the directory is read again
                log.exception("the directory of nodes failed")
            await asyncio.sleep(DIRECTORY_PAUSE_S)

    async def _take(self, name: str, socket: Path | None) -> None:
        known = self._machines.get(name)
        if known is not None and known.socket == socket:
            return
        if known is not None:
            del self._machines[name]
            await known.close()
        if socket is not None:
            link = LocalLink(name, socket, self._lead, self._clock)
            self._machines[name] = _Machine(link, socket, self._events.put_nowait)


class _Machine:
    """One node; it is reconnected until it is closed."""

    def __init__(self, link: LocalLink, socket: Path, tell: Callable[[FabricEvent], None]) -> None:
        self.socket = socket
        self.link = link
        self.announced = False
        self._tell = tell
        self._up = False
        self._task = asyncio.create_task(self._stay_connected(), name=f"link {link.name}")

    async def close(self) -> None:
        """Close the connection and send an event."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._lost()

    async def _stay_connected(self) -> None:
        pause_s = MIN_PAUSE_S
        while True:
            try:
                await self.link.converse(self._on_up, self._on_status)
            except OSError:
                pass
            except Exception as error:  # noqa: BLE001 - any invalid message leads to a new connection
                log.warning("invalid message from an agent", node=self.link.name, error=repr(error)[:200])
            if self._lost():
                pause_s = MIN_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _lost(self) -> bool:
        was_up, self._up = self._up, False
        if was_up:
            self._tell(FabricEvent(self.link.name, up=False))
        return was_up

    def _on_up(self) -> None:
        self._up = self.announced = True
        self._tell(FabricEvent(self.link.name, up=True))

    def _on_status(self, status: ProcessStatus) -> None:
        self._tell(FabricEvent(self.link.name, status=status))
