"""Events from the nodes: reports of programs, and nodes that connect and disconnect."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import split_attempt_key
from gpupool.domain.work.lifecycle import add_notes, mark_started, note_suspended_gpu, return_gpus, want_gpus
from gpupool.domain.work.program.supervision import ProcessPhase, ProcessStatus
from gpupool.domain.work.workload import Replica, ReplicaState
from gpupool.services.control.adoption import Adoption
from gpupool.services.control.engine import Engine
from gpupool.services.control.reconcile import Reconciler
from gpupool.services.lifecycle import transitions
from gpupool.services.ports.fabric import FabricEvent
from gpupool.services.state.mirror import Draft
from gpupool.services.state.node_registry import NodeRegistry

MAX_BATCH = 256  # statuses written in one transaction
RETRY_DELAY_S = 1.0
START_BATCH_DELAY_S = 0.015
DISMISSAL_BATCH = 64

log = structlog.get_logger("gpupool.observer")


class Observer:
    """Turns events of the fabric into transitions.

    Statuses are handled in batches, one transaction each. When a write fails (a full disk) nothing is acknowledged to
    the nodes, so reconciling reads the same statuses again. Each node is reconciled by its own task, so that a slow
    node does not delay others.
    """

    def __init__(self, engine: Engine, nodes: NodeRegistry, adoption: Adoption) -> None:
        self._engine = engine
        self._nodes = nodes
        self._adoption = adoption
        self._reconciler = Reconciler(engine, nodes, adoption, self.take)
        self._inbox: asyncio.Queue[FabricEvent] = asyncio.Queue()
        self._urgent = asyncio.Event()  # the inbox has more than starts
        self._handling = False
        self._dismissing: set[asyncio.Task[None]] = set()
        engine.listen_with(self)

    def take_status(self, node: str, status: ProcessStatus) -> None:
        """Handle the answer of a node to a start."""
        self._put(FabricEvent(node, status=status))

    def effect_failed(self, node: str) -> None:
        """Reconcile soon with a node that did not accept an effect."""
        self._reconciler.reconcile_soon(node)

    @property
    def busy(self) -> bool:
        """Return True while an event is not yet handled."""
        return self._handling or self._reconciler.busy or bool(self._dismissing)

    async def listen(self) -> None:
        """Move events of the fabric to the inbox, for ever."""
        async for event in self._engine.ports.fabric.events():
            self._put(event)

    def _put(self, event: FabricEvent) -> None:
        """Queue an event; publish a live program's socket at once, because a client may wait for it."""
        if event.status is not None and event.status.phase is not ProcessPhase.EXITED:
            self._note_live(event.node, event.status)
        else:
            self._urgent.set()
        self._inbox.put_nowait(event)

    async def work(self) -> None:
        """Handle the inbox, for ever."""
        try:
            while True:
                await self._work_once()
        finally:
            await self._reconciler.close()
            for task in self._dismissing:
                task.cancel()

    async def _work_once(self) -> None:
        self._handling = not self._inbox.empty()
        if not self._handling:
            self._urgent.clear()
        batch = [await self._inbox.get()]
        self._handling = True
        if all(_only_started(event) for event in batch):
            await self._wait_for_more()
        while len(batch) < MAX_BATCH and not self._inbox.empty():
            batch.append(self._inbox.get_nowait())
        try:
            await self._handle(batch)
        except GpupoolError as error:
            log.warning("could not write statuses of nodes; will reconcile", code=error.code)
            self._handling = False
            await asyncio.sleep(RETRY_DELAY_S)
            for node in {event.node for event in batch}:
                self._reconciler.again(node)

    async def _wait_for_more(self) -> None:
        """Wait a little, so that starts that arrive together, and a quick end, become one write."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_BATCH_DELAY_S):
                await self._urgent.wait()

    async def _handle(self, batch: list[FabricEvent]) -> None:
        """Handle connects and disconnects first and in order, also if statuses cannot be written then."""
        lost = []
        for event in batch:
            if event.up is True:
                self._reconciler.up(event.node)
            elif event.up is False and self._node_down(event.node):
                lost.append(event.node)
        if lost:
            await self._reconciler.note_absence(lost)
        reported: dict[str, list[ProcessStatus]] = defaultdict(list)
        for event in batch:
            if event.status is not None:
                reported[event.node].append(event.status)
        if reported:
            await self._take_all(reported)

    async def take(self, node: str, statuses: Sequence[ProcessStatus]) -> None:
        """Write statuses of a node's programs; programs of no current attempt are stopped and forgotten."""
        await self._take_all({node: statuses})

    async def _take_all(self, reported: dict[str, Any]) -> None:
        stale: list[tuple[str, ProcessStatus]] = []

        def build(draft: Draft) -> None:
            for node, statuses in reported.items():
                stale.extend((node, status) for status in statuses if not self._take_one(draft, node, status))

        await self._engine.transact(build)
        stale = await self._without_unknown(stale)
        for at in range(0, len(stale), DISMISSAL_BATCH):
            self._spawn(self._dismiss(stale[at : at + DISMISSAL_BATCH]))

    async def _without_unknown(self, stale: list[tuple[str, ProcessStatus]]) -> list[tuple[str, ProcessStatus]]:
        """Leave out programs that the database does not know: reconciling adopts them or leaves them alone."""
        unknown = {status.key for status in await self._adoption.unknown([status for _, status in stale])}
        for node in {node for node, status in stale if status.key in unknown}:
            self._reconciler.reconcile_soon(node)
        return [(node, status) for node, status in stale if status.key not in unknown]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._dismissing.add(task)
        task.add_done_callback(self._dismissing.discard)

    def _take_one(self, draft: Draft, node: str, status: ProcessStatus) -> bool:
        workload_id, index, _ = split_attempt_key(status.key)
        workload = draft.workload(workload_id)
        replica = draft.replica(workload_id, index)
        if workload is None or not is_current(replica, node, status):
            return False
        assert replica is not None  # noqa: S101 - for the type checker
        if status.phase is ProcessPhase.EXITED and status.exit is not None:
            if status.started_at is not None and replica.state is ReplicaState.STARTING:
                # The report of its start was lost: record the start now.
                replica = draft.take(mark_started(replica, status, draft.now))
            replica = draft.take(add_notes(replica, status, draft.now))
            replica = transitions.note_progress(draft, workload, replica, status)
            transitions.end(draft, workload, replica, status.exit)
            return True
        self._note_live(node, status)
        if status.phase is ProcessPhase.RUNNING and (replica.state is ReplicaState.STARTING or replica.pid is None):
            replica = draft.take(mark_started(replica, status, draft.now))
        replica = draft.take(add_notes(replica, status, draft.now))
        replica = transitions.note_progress(draft, workload, replica, status)
        if status.gpu_returned:
            replica = draft.take(return_gpus(replica, status.gpu_returned, status.suspended_gpu, draft.now))
        replica = draft.take(note_suspended_gpu(replica, status))
        if status.not_suspended and replica.suspend_asked_at is not None and status.gpu_epoch == replica.gpu_lease:
            replica = transitions.stop(draft, workload, replica, Reason.PREEMPTED, sentence=status.not_suspended)
        if status.gpu_wanted_at is not None and status.gpu_epoch == (replica.gpu_lease or 0):  # else it is outdated
            draft.take(want_gpus(workload, replica, min(status.gpu_wanted_at, draft.now)))
        return True

    def _note_live(self, node: str, status: ProcessStatus) -> None:
        workload, index, _ = split_attempt_key(status.key)
        if not is_current(self._engine.mirror.replica(workload, index), node, status):
            return
        if status.last_active_at is not None:
            self._engine.activity[status.key] = status.last_active_at
        if status.attach_path and self._engine.attach_paths.get(status.key) != status.attach_path:
            self._engine.attach_paths[status.key] = status.attach_path
            self._engine.wake(workload)

    async def _dismiss(self, stale: Sequence[tuple[str, ProcessStatus]]) -> None:
        for node, status in stale:
            with contextlib.suppress(GpupoolError):  # unreachable: reconciled when it is back
                link = self._engine.ports.fabric.link(node)
                if status.phase is ProcessPhase.EXITED:
                    await link.forget(status.key)
                else:
                    log.warning("stopping a program that belongs to no live replica", key=status.key, node=node)
                    await link.stop(status.key, 0.0)

    def _node_down(self, name: str) -> bool:
        """Record that a node disconnected; return False if that was known."""
        self._reconciler.down(name)
        node = self._nodes.lost(name, self._engine.ports.clock.monotonic())
        if node is not None:
            log.warning("node does not answer", node=name)
            self._engine.feed.node_changed(node)
        return node is not None


def is_current(replica: Replica | None, node: str, status: ProcessStatus) -> bool:
    """Return True if a status concerns the current attempt of a replica that is placed on this node."""
    if replica is None or not replica.state.placed or replica.node != node:
        return False
    return replica.attempt == split_attempt_key(status.key)[2] and status.epoch == (replica.lease or 0)


def _only_started(event: FabricEvent) -> bool:
    return event.status is not None and event.status.phase is not ProcessPhase.EXITED
