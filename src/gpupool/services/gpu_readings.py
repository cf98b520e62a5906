"""Looks at the GPUs of every node again and again: health, use, and processes that the pool did not start."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.gpu import NodeState
from gpupool.services.engine import Engine
from gpupool.services.nodebook import NodeBook

EVERY_S = 5.0

log = structlog.get_logger("gpupool.gpu_readings")


class GpuReadings:
    """Asks each node at its own pace: one that does not answer holds up nobody else."""

    def __init__(self, engine: Engine, nodes: NodeBook) -> None:
        self._engine = engine
        self._nodes = nodes
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                self._read_all()
        finally:
            for task in self._reading.values():
                task.cancel()
            await asyncio.gather(*self._reading.values(), return_exceptions=True)

    def _read_all(self) -> None:
        self._reading = {name: task for name, task in self._reading.items() if not task.done()}
        for node in self._nodes.all():
            if node.state is not NodeState.DOWN and node.name not in self._reading:
                self._reading[node.name] = asyncio.create_task(self._read(node.name))

    async def _read(self, name: str) -> None:
        try:
            gpus = tuple(await self._engine.ports.fabric.link(name).gpus())
            if self._nodes.gpus_read(name, gpus):
                now = self._nodes.get(name)
                self._engine.demand.node_changed(now)
                await self._engine.alone(partial(self._engine.ports.store.save_node, now))
                self._engine.work.set()
        except GpupoolError as error:
            log.info("GPUs not read", node=name, code=error.code)
