"""Hearing the nodes: what programs report, nodes that come and go, and comparing both sides after a silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.gpu import Node
from gpupool.domain.ids import split_attempt_key
from gpupool.domain.lifecycle import StartProgram, StopProgram, started
from gpupool.domain.supervision import ExitReason, ExitReport, ProcessPhase, ProcessStatus
from gpupool.domain.workload import Event, Reason, Replica, ReplicaState, WorkloadKind
from gpupool.services import transitions
from gpupool.services.engine import Engine
from gpupool.services.mirror import Draft
from gpupool.services.nodebook import NodeBook
from gpupool.services.ports import FabricEvent

BATCH = 256  # statuses written in one transaction
RETRY_S = 1.0
STARTS_TOGETHER_S = 0.015

log = structlog.get_logger("gpupool.observer")


class Observer:
    """Turns what the fabric says into transitions.

    Statuses are handled in batches, one transaction each. When a write fails (a full disk) nothing is acknowledged to
    the node, so the same statuses are learnt again by comparing.
    """

    def __init__(self, engine: Engine, nodes: NodeBook) -> None:
        self._engine = engine
        self._nodes = nodes
        self._inbox: asyncio.Queue[FabricEvent] = asyncio.Queue()
        self._urgent = asyncio.Event()  # something waits that is more than a start
        self.busy = False  # something has been heard and not been dealt with yet
        engine.deliver_to(lambda status: self._put(FabricEvent("", status=status)))

    async def listen(self) -> None:
        """Move the fabric's events to the inbox, for ever."""
        async for event in self._engine.ports.fabric.events():
            self._put(event)

    def _put(self, event: FabricEvent) -> None:
        """Queue an event; a live program's socket is known at once, for a client may be waiting for it."""
        if event.status is not None and event.status.phase is not ProcessPhase.EXITED:
            self._note_live(event.status)
        else:
            self._urgent.set()
        self._inbox.put_nowait(event)

    async def work(self) -> None:
        """Handle the inbox, for ever."""
        while True:
            self.busy = not self._inbox.empty()
            if not self.busy:
                self._urgent.clear()
            batch = [await self._inbox.get()]
            self.busy = True
            if all(_only_started(event) for event in batch):
                await self._nap()
            while len(batch) < BATCH and not self._inbox.empty():
                batch.append(self._inbox.get_nowait())
            try:
                await self._handle(batch)
            except GpupoolError as error:
                log.warning("could not take in what nodes said; will compare again", code=error.code)
                self.busy = False
                await asyncio.sleep(RETRY_S)
                for node in {e.node for e in batch if e.node} or {n.name for n in self._nodes.all()}:
                    self._inbox.put_nowait(FabricEvent(node, up=True))

    async def _nap(self) -> None:
        """Nobody waits for starts to be written: those that come together, and a quick end, are one write."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STARTS_TOGETHER_S):
                await self._urgent.wait()

    async def _handle(self, batch: list[FabricEvent]) -> None:
        statuses = [event.status for event in batch if event.status is not None]
        if statuses:
            await self.take(statuses)
        for event in batch:
            if event.up is True:
                await self._node_up(event.node)
            elif event.up is False:
                await self._node_down(event.node)

    async def take(self, statuses: Sequence[ProcessStatus]) -> None:
        """Write what programs report; what belongs to no present attempt is ended and forgotten."""
        stale: list[ProcessStatus] = []

        def build(draft: Draft) -> None:
            stale.extend(status for status in statuses if not self._take_one(draft, status))

        await self._engine.transact(build)
        for status in stale:
            await self._dismiss(status)

    def _take_one(self, draft: Draft, status: ProcessStatus) -> bool:
        workload_id, index, attempt = split_attempt_key(status.key)
        workload = draft.workload(workload_id)
        replica = draft.replica(workload_id, index)
        if workload is None or replica is None or replica.attempt != attempt or not replica.state.placed:
            return False
        if status.phase is ProcessPhase.EXITED and status.exit is not None:
            if status.started_at is not None and replica.state is ReplicaState.STARTING:
                # Its start was not heard of before its end: it counts all the same.
                replica = draft.take(started(replica, status, draft.now))
            transitions.end(draft, workload, replica, status.exit)
            return True
        self._note_live(status)
        if status.phase is ProcessPhase.RUNNING and (replica.state is ReplicaState.STARTING or replica.pid is None):
            draft.take(started(replica, status, draft.now))
        return True

    def _note_live(self, status: ProcessStatus) -> None:
        workload, index, attempt = split_attempt_key(status.key)
        replica = self._engine.mirror.replica(workload, index)
        if replica is None or replica.attempt != attempt or not replica.state.placed:
            return
        if status.last_active_at is not None:
            self._engine.activity[status.key] = status.last_active_at
        if status.attach_path and self._engine.attach_paths.get(status.key) != status.attach_path:
            self._engine.attach_paths[status.key] = status.attach_path
            self._engine.wake(workload)

    async def _dismiss(self, status: ProcessStatus) -> None:
        if status.phase is not ProcessPhase.EXITED:
            log.warning("stopping a program that belongs to no live replica", key=status.key)
        for node in self._nodes.all():
            with contextlib.suppress(GpupoolError):  # unreachable: compared when it is back
                link = self._engine.ports.fabric.link(node.name)
                if status.phase is ProcessPhase.EXITED:
                    await link.forget(status.key)
                else:
                    await link.stop(status.key, 0.0)

    async def _node_down(self, name: str) -> None:
        node = self._nodes.lost(name)
        if node is not None:
            log.warning("node does not answer", node=name)
            self._engine.demand.node_changed(node)

    async def _node_up(self, name: str) -> None:
        try:
            link = self._engine.ports.fabric.link(name)
            report = await link.report()
            statuses = await link.list()
        except GpupoolError as error:
            log.warning("node came up but did not answer", node=name, code=error.code)
            return
        node, news = self._nodes.seen(report)
        if news:
            await self._save(node)
        self._nodes.put(node)  # from here on the API shows it: whoever waits for it may submit
        self._engine.demand.node_changed(node)
        self._engine.work.set()
        await self._compare(name, statuses)

    async def _save(self, node: Node) -> None:
        now = self._engine.ports.clock.now()
        event = Event(now, "pool", Reason.CHANGED, f"{len(node.report.gpus)} GPUs reported", target=f"node {node.name}")
        await self._engine.alone(lambda: self._engine.ports.store.save_node(node, event))

    async def _compare(self, name: str, statuses: Sequence[ProcessStatus]) -> None:
        """Both sides after a silence: take in what was missed, send again what was not heard."""
        known = {status.key for status in statuses}
        await self.take(statuses)
        for key in list(self._engine.mirror.placed.get(name, ())):
            replica = self._engine.mirror.replica(*key)
            workload = self._engine.mirror.workloads.get(key[0])
            if replica is None or workload is None or workload.kind is WorkloadKind.LEASE:
                continue
            if replica.key not in known:
                await self._missing(replica)
            elif replica.state is ReplicaState.STOPPING:
                self._engine.send(StopProgram(replica, workload.limits.grace_s))

    async def _missing(self, replica: Replica) -> None:
        """The node does not know a program that should be there."""
        if replica.state is ReplicaState.STARTING or (replica.state is ReplicaState.STOPPING and replica.pid is None):
            # The start was written but perhaps never sent; a start is harmless when it was.
            self._engine.send(StartProgram(replica))
            return
        lost = ExitReport(
            ExitReason.NODE_RESTARTED,
            None,
            None,
            "the node no longer knows the program",
            self._engine.ports.clock.now(),
        )
        await self.take([ProcessStatus(replica.key, replica.lease or 0, ProcessPhase.EXITED, exit=lost)])


def _only_started(event: FabricEvent) -> bool:
    return event.status is not None and event.status.phase is not ProcessPhase.EXITED
