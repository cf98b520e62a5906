"""Background tasks that watch the nodes: readings of their GPUs, the GPU capacity over time, and lost nodes.

A node out of contact may still run its programs, so their leases stay. A node ends fenced programs by itself after
``Lease.fence_after_s``; some time later their end is certain. Others end only on request of an administrator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.capacity import (
    CapacityChange,
    CapacityStatus,
    GpuCapacity,
    capacity_of,
    changes_between,
)
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.protocol.fencing import certain_after_s
from gpupool.domain.units import format_duration
from gpupool.domain.work.program.supervision import ExitReason, ExitReport
from gpupool.domain.work.workload import WorkloadKind
from gpupool.services.control.engine import Engine
from gpupool.services.lifecycle import transitions
from gpupool.services.state.mirror import Draft, ReplicaId
from gpupool.services.state.node_registry import NodeRegistry

READ_INTERVAL_S = 5.0
CAPACITY_INTERVAL_S = 5.0
RETRY_DELAY_S = 1.0
SETTLE_S = 15.0  # after a restart of the control plane, nodes connect again within seconds
RETENTION_S = 3 * 366 * 86_400.0
DELETE_INTERVAL_S = 86_400.0
SILENCE_INTERVAL_S = 1.0

log = structlog.get_logger("gpupool.nodes")


class GpuHealthMonitor:
    """Reads the GPUs of each node in its own task, so that a silent node does not delay others."""

    def __init__(self, engine: Engine, nodes: NodeRegistry) -> None:
        self._engine = engine
        self._nodes = nodes
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run for ever."""
        try:
            while True:
                await asyncio.sleep(READ_INTERVAL_S)
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
                self._engine.feed.node_changed(now)
                await self._engine.run_exclusive(partial(self._engine.ports.store.save_nodes, [now]))
                self._engine.work.set()
        except GpupoolError as error:
            log.info("GPUs not read", node=name, code=error.code)


class CapacityRecorder:
    """Compares the nodes with the last record and writes the differences."""

    def __init__(self, engine: Engine, nodes: NodeRegistry) -> None:
        self._engine = engine
        self._nodes = nodes
        self._recorded: dict[str, GpuCapacity] | None = None  # None: not loaded yet
        self._down_since: dict[str, tuple[float, float]] = {}  # by node: monotonic, and seconds since the epoch
        self._deleted_at = float("-inf")

    async def run(self) -> None:
        """Run for ever: record at each change of a node, and at intervals for nodes that stay down."""
        while True:
            self._nodes.changed.clear()
            try:
                await self.record()
            except GpupoolError as error:
                log.warning("capacity not recorded", code=error.code)
                await self._engine.ports.sleep(RETRY_DELAY_S)
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CAPACITY_INTERVAL_S):
                    await self._nodes.changed.wait()

    async def record(self) -> None:
        """Write the changes since the last call; raises ``GpupoolError`` if the database cannot be written."""
        store, clock = self._engine.ports.store.capacity, self._engine.ports.clock
        if self._recorded is None:
            self._recorded = {gpu.gpu_uuid: gpu for gpu in await store.present()}
        self._note_down_nodes()
        now = self._now(self._recorded)
        changes = [self._dated(change) for change in changes_between(self._recorded, now, clock.now())]
        if changes:
            await store.record(changes)
            self._recorded = now
        if clock.monotonic() - self._deleted_at >= DELETE_INTERVAL_S:
            self._deleted_at = clock.monotonic()
            await store.forget_before(clock.now() - RETENTION_S)

    def _note_down_nodes(self) -> None:
        clock = self._engine.ports.clock
        down = {node.name for node in self._nodes.all() if node.state is NodeState.DOWN}
        at = (clock.monotonic(), clock.now())
        self._down_since = {name: self._down_since.get(name, at) for name in down}

    def _now(self, recorded: dict[str, GpuCapacity]) -> dict[str, GpuCapacity]:
        """Return the GPUs by UUID; GPUs of a node that has just gone down stay as recorded."""
        settled = self._engine.ports.clock.monotonic() - SETTLE_S
        found: dict[str, GpuCapacity] = {}
        for node in self._nodes.all():
            settling = self._down_since.get(node.name, (float("-inf"), 0.0))[0] > settled
            for gpu in capacity_of(node):
                found[gpu.gpu_uuid] = recorded.get(gpu.gpu_uuid, gpu) if settling else gpu
        return found

    def _dated(self, change: CapacityChange) -> CapacityChange:
        """Return the change with the time at which its node went down, if that is the cause."""
        if change.now is None or change.now.status is not CapacityStatus.DOWN:
            return change
        return replace(change, at=self._down_since[change.now.node][1])


class LostNodes:
    """Checks silent nodes once a second; ``give_up`` ends the work of a node at once for an administrator."""

    def __init__(self, engine: Engine, nodes: NodeRegistry) -> None:
        self._engine = engine
        self._nodes = nodes

    async def run(self) -> None:
        """Run for ever."""
        while True:
            await asyncio.sleep(SILENCE_INTERVAL_S)
            now = self._engine.ports.clock.monotonic()
            for name, silent_s in self._nodes.silent(now).items():
                try:
                    await self._check(name, silent_s)
                except GpupoolError as error:
                    log.warning("could not end the work of a lost node", node=name, code=error.code)

    async def _check(self, name: str, silent_s: float) -> None:
        over = [key for key in self._engine.mirror.placed.get(name, ()) if self._certain(key, silent_s)]
        if over:
            log.warning("node is lost", node=name, silent_s=round(silent_s), replicas=len(over))
            why = f"{name} has not responded for {format_duration(silent_s)}"
            await self._engine.transact(lambda draft: _end(draft, over, why))

    def _certain(self, key: ReplicaId, silent_s: float) -> bool:
        """Return True if the node has certainly ended it: the fence, its grace period and a margin have passed."""
        lease = self._engine.mirror.lease_of(self._engine.mirror.replica(*key))
        if lease is None or lease.fence_after_s is None:
            return False
        return silent_s > certain_after_s(lease.fence_after_s)

    async def give_up(self, name: str, why: str) -> int:
        """End all replicas on a node as lost; return their number."""
        keys = list(self._engine.mirror.placed.get(name, ()))
        await self._engine.transact(lambda draft: _end(draft, keys, why))
        return len(keys)


def _end(draft: Draft, keys: Iterable[ReplicaId], why: str) -> None:
    """End replicas as lost. Programs on leases of others first, so that ending a lease has nothing to stop."""

    def is_program_on_lease(key: ReplicaId) -> bool:
        owner = draft.workload(key[0])
        return owner is not None and owner.kind is WorkloadKind.EXEC

    for key in sorted(keys, key=lambda key: (not is_program_on_lease(key), key)):
        workload, replica = draft.workload(key[0]), draft.replica(*key)
        if workload is not None and replica is not None and replica.state.placed:
            report = ExitReport(ExitReason.NODE_LOST, None, None, why, draft.now)
            transitions.end(draft, workload, replica, report)
