"""Hearing the nodes: what programs report, and nodes that come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import split_attempt_key
from gpupool.domain.lifecycle import started
from gpupool.domain.supervision import ProcessPhase, ProcessStatus
from gpupool.domain.workload import Replica, ReplicaState
from gpupool.services import transitions
from gpupool.services.comparing import Comparing
from gpupool.services.engine import Engine
from gpupool.services.mirror import Draft
from gpupool.services.nodebook import NodeBook
from gpupool.services.ports import FabricEvent

BATCH = 256  # statuses written in one transaction
RETRY_S = 1.0
STARTS_TOGETHER_S = 0.015
DISMISSED_AT_ONCE = 64

log = structlog.get_logger("gpupool.observer")


class Observer:
    """Turns what the fabric says into transitions.

    Statuses are handled in batches, one transaction each. When a write fails (a full disk) nothing is acknowledged to
    the nodes, so the same statuses are learnt again by comparing. Each node is compared by a task of its own: one that
    answers slowly holds up nobody else.
    """

    def __init__(self, engine: Engine, nodes: NodeBook) -> None:
        self._engine = engine
        self._nodes = nodes
        self._comparing = Comparing(engine, nodes, self.take)
        self._inbox: asyncio.Queue[FabricEvent] = asyncio.Queue()
        self._urgent = asyncio.Event()  # something waits that is more than a start
        self._handling = False
        self._dismissing: set[asyncio.Task[None]] = set()
        engine.not_taken = self._comparing.soon
        engine.deliver_to(lambda node, status: self._put(FabricEvent(node, status=status)))

    @property
    def busy(self) -> bool:
        """Whether something has been heard that has not been dealt with yet."""
        return self._handling or self._comparing.busy or bool(self._dismissing)

    async def listen(self) -> None:
        """Move the fabric's events to the inbox, for ever."""
        async for event in self._engine.ports.fabric.events():
            self._put(event)

    def _put(self, event: FabricEvent) -> None:
        """Queue an event; a live program's socket is known at once, for a client may be waiting for it."""
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
            await self._comparing.close()
            for task in self._dismissing:
                task.cancel()

    async def _work_once(self) -> None:
        self._handling = not self._inbox.empty()
        if not self._handling:
            self._urgent.clear()
        batch = [await self._inbox.get()]
        self._handling = True
        if all(_only_started(event) for event in batch):
            await self._nap()
        while len(batch) < BATCH and not self._inbox.empty():
            batch.append(self._inbox.get_nowait())
        try:
            await self._handle(batch)
        except GpupoolError as error:
            log.warning("could not take in what nodes said; will compare again", code=error.code)
            self._handling = False
            await asyncio.sleep(RETRY_S)
            for node in {event.node for event in batch}:
                self._comparing.again(node)

    async def _nap(self) -> None:
        """Nobody waits for starts to be written: those that come together, and a quick end, are one write."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STARTS_TOGETHER_S):
                await self._urgent.wait()

    async def _handle(self, batch: list[FabricEvent]) -> None:
        """Nodes come and go in the order of the events, also when what programs said cannot be written."""
        lost = []
        for event in batch:
            if event.up is True:
                self._comparing.up(event.node)
            elif event.up is False and self._node_down(event.node):
                lost.append(event.node)
        if lost:
            await self._comparing.note_absence(lost)
        said: dict[str, list[ProcessStatus]] = defaultdict(list)
        for event in batch:
            if event.status is not None:
                said[event.node].append(event.status)
        if said:
            await self._take_all(said)

    async def take(self, node: str, statuses: Sequence[ProcessStatus]) -> None:
        """Write what programs of a node report; what belongs to no present attempt is ended and forgotten."""
        await self._take_all({node: statuses})

    async def _take_all(self, said: dict[str, Any]) -> None:
        stale: list[tuple[str, ProcessStatus]] = []

        def build(draft: Draft) -> None:
            for node, statuses in said.items():
                stale.extend((node, status) for status in statuses if not self._take_one(draft, node, status))

        await self._engine.transact(build)
        for at in range(0, len(stale), DISMISSED_AT_ONCE):
            self._spawn(self._dismiss(stale[at : at + DISMISSED_AT_ONCE]))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._dismissing.add(task)
        task.add_done_callback(self._dismissing.discard)

    def _take_one(self, draft: Draft, node: str, status: ProcessStatus) -> bool:
        workload_id, index, _ = split_attempt_key(status.key)
        workload = draft.workload(workload_id)
        replica = draft.replica(workload_id, index)
        if workload is None or not is_of(replica, node, status):
            return False
        assert replica is not None  # noqa: S101 - for the type checker
        if status.phase is ProcessPhase.EXITED and status.exit is not None:
            if status.started_at is not None and replica.state is ReplicaState.STARTING:
                # Its start was not heard of before its end: it counts all the same.
                replica = draft.take(started(replica, status, draft.now))
            transitions.end(draft, workload, replica, status.exit)
            return True
        self._note_live(node, status)
        if status.phase is ProcessPhase.RUNNING and (replica.state is ReplicaState.STARTING or replica.pid is None):
            draft.take(started(replica, status, draft.now))
        return True

    def _note_live(self, node: str, status: ProcessStatus) -> None:
        workload, index, _ = split_attempt_key(status.key)
        if not is_of(self._engine.mirror.replica(workload, index), node, status):
            return
        if status.last_active_at is not None:
            self._engine.activity[status.key] = status.last_active_at
        if status.attach_path and self._engine.attach_paths.get(status.key) != status.attach_path:
            self._engine.attach_paths[status.key] = status.attach_path
            self._engine.wake(workload)

    async def _dismiss(self, stale: Sequence[tuple[str, ProcessStatus]]) -> None:
        for node, status in stale:
            with contextlib.suppress(GpupoolError):  # unreachable: compared when it is back
                link = self._engine.ports.fabric.link(node)
                if status.phase is ProcessPhase.EXITED:
                    await link.forget(status.key)
                else:
                    log.warning("stopping a program that belongs to no live replica", key=status.key, node=node)
                    await link.stop(status.key, 0.0)

    def _node_down(self, name: str) -> bool:
        """Whether that is news."""
        self._comparing.down(name)
        node = self._nodes.lost(name, self._engine.ports.clock.monotonic())
        if node is not None:
            log.warning("node does not answer", node=name)
            self._engine.demand.node_changed(node)
        return node is not None


def is_of(replica: Replica | None, node: str, status: ProcessStatus) -> bool:
    """Whether what a node says of a program is about the present attempt of a replica that is placed there."""
    if replica is None or not replica.state.placed or replica.node != node:
        return False
    return replica.attempt == split_attempt_key(status.key)[2] and status.epoch == (replica.lease or 0)


def _only_started(event: FabricEvent) -> bool:
    return event.status is not None and event.status.phase is not ProcessPhase.EXITED
