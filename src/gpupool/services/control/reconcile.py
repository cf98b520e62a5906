"""Reconciling: after a silence the database and a node are compared, before anything new is placed there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import attempt_key, split_attempt_key
from gpupool.domain.nodes.gpu import Node, NodeReport, NodeState
from gpupool.domain.work.lifecycle import POOL, AttachGpus, StartProgram, StopProgram, SuspendProgram, grace_of
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessPhase, ProcessStatus
from gpupool.domain.work.workload import Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.control.adoption import Adoption
from gpupool.services.control.engine import Engine
from gpupool.services.ports.fabric import NodeLink
from gpupool.services.state.mirror import Draft
from gpupool.services.state.node_registry import NodeRegistry

MIN_RETRY_DELAY_S = 0.05
MAX_RETRY_DELAY_S = 30.0
RECONCILE_DELAY_S = 5.0
CORDON_REASON_PREFIX = "runs a program that is not in this database:"

StatusWriter = Callable[[str, Sequence[ProcessStatus]], Awaitable[None]]

log = structlog.get_logger("gpupool.reconcile")


class Reconciler:
    """Runs one task for each node that has connected and is not used yet; ``take`` writes statuses of programs."""

    def __init__(self, engine: Engine, nodes: NodeRegistry, adoption: Adoption, take: StatusWriter) -> None:
        self._engine = engine
        self._nodes = nodes
        self._adoption = adoption
        self._take = take
        self._connected: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, asyncio.TimerHandle] = {}
        self._unsaved: dict[str, NodeReport] = {}
        self._saving = asyncio.Lock()
        self._missed: set[str] = set()  # nodes with a recorded event that they do not answer

    @property
    def busy(self) -> bool:
        """Return True while a node is being reconciled."""
        return any(not task.done() for task in self._tasks.values())

    def up(self, name: str) -> None:
        """Handle a node that has connected."""
        self._connected.add(name)
        self._nodes.in_contact(name)
        self.again(name)

    def down(self, name: str) -> None:
        """Handle a node that has disconnected."""
        self._connected.discard(name)
        self._cancel(name)

    def again(self, name: str) -> None:
        """Reconcile with a node from the beginning, if it is connected."""
        self._cancel(name)
        if name in self._connected:
            self._tasks[name] = asyncio.create_task(self._until_done(name), name=f"compare {name}")

    async def note_absence(self, names: Sequence[str]) -> None:
        """Write an event for each node that was in use and does not answer."""
        self._missed.update(names)
        await self._note(names, "does not answer")

    async def _note(self, names: Sequence[str], what: str) -> None:
        def build(draft: Draft) -> None:
            for name in names:
                draft.note(Event(draft.now, POOL, Reason.CHANGED, what, target=f"node {name}"))

        with contextlib.suppress(GpupoolError):  # it is also in the log
            await self._engine.transact(build)

    def reconcile_soon(self, name: str) -> None:
        """Reconcile after ``RECONCILE_DELAY_S`` with a connected node that did not accept an effect."""
        if name in self._connected and name not in self._due:
            self._due[name] = asyncio.get_running_loop().call_later(RECONCILE_DELAY_S, self._now_due, name)

    def _now_due(self, name: str) -> None:
        del self._due[name]
        self.again(name)

    def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop reconciling."""
        for timer in self._due.values():
            timer.cancel()
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_done(self, name: str) -> None:
        pause_s = MIN_RETRY_DELAY_S
        while True:
            try:
                await self._compare(name)
            except GpupoolError as error:
                log.warning("not reconciled yet", node=name, code=error.code, message=error.message)
            except Exception:
                log.exception("reconciling failed", node=name)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RETRY_DELAY_S)

    async def _compare(self, name: str) -> None:
        """Record missed statuses, stop programs that must not run, use the node, and send lost effects again."""
        link = self._engine.ports.fabric.link(name)
        report = await link.report()
        if report.name != name:
            raise _misnamed(name, report)
        expected = self._expected(name)
        statuses = await link.list()
        lost = await self._adoption.unknown(statuses)
        await self._adoption.keep_epochs_ahead(report, statuses)
        unknown = {status.key for status in lost}
        await self._take(name, [status for status in statuses if status.key not in unknown])
        await self._take_gone(name, {status.key for status in statuses}, expected - _older(unknown))
        await self._adopt(link, report, lost)
        await self._stop_unexpected(link, statuses)
        await self._use(report)
        await self._send_missing(name, {status.key for status in statuses})
        if self._adoption.left_alone.get(name):
            self.reconcile_soon(name)  # to use the node's GPUs when those programs have ended

    async def _adopt(self, link: NodeLink, report: NodeReport, lost: Sequence[ProcessStatus]) -> None:
        """Adopt programs that this database has lost. Others are not stopped, and their node gets no new work."""
        if lost and self._nodes.find(report.name) is None:
            self._nodes.put(replace(self._nodes.seen(report)[0], state=NodeState.DOWN))  # known but not used yet
        outcome = await self._adoption.adopt(link, report, lost)
        await self._take(link.name, outcome.adopted)
        for key in outcome.forget:
            await link.forget(key)

    def _expected(self, name: str) -> set[str]:
        """Return the keys of programs that have started on the node, so that the node must know them."""
        rows = (self._engine.mirror.replica(*key) for key in self._engine.mirror.placed.get(name, ()))
        return {
            row.key for row in rows if row is not None and (row.pid is not None or row.state is ReplicaState.RUNNING)
        }

    async def _stop_unexpected(self, link: NodeLink, statuses: Sequence[ProcessStatus]) -> None:
        """Stop programs of earlier attempts and wait for their end, because their GPUs may be given to others.

        A program can have returned its GPUs, and the database know it, since ``statuses`` were listed. So only a
        program that is listed again with the same GPUs is stopped.
        """
        pause_s = MIN_RETRY_DELAY_S
        unexpected = self._unexpected(link.name, statuses)
        while unexpected:
            before, unexpected = unexpected, self._unexpected(link.name, await link.list())
            for key, _ in before & unexpected:
                log.warning("stopping a program of an earlier attempt", node=link.name, key=key)
                await link.stop(key, 0.0)
            if unexpected:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)

    def _unexpected(self, node: str, statuses: Sequence[ProcessStatus]) -> set[tuple[str, int]]:
        """Return the keys of programs that must not run, each with the epoch of its separate GPUs."""
        running = (status for status in statuses if status.phase is not ProcessPhase.EXITED)
        return {(status.key, status.gpu_epoch) for status in running if self._is_unexpected(node, status)}

    def _is_unexpected(self, node: str, status: ProcessStatus) -> bool:
        workload, index, attempt = split_attempt_key(status.key)
        row = self._engine.mirror.replica(workload, index)
        if status.key in self._adoption.left_alone.get(node, {}):
            return False
        if row is None or not row.state.placed:
            return True
        if status.gpu_epoch not in {0, row.gpu_lease}:  # the database is older than the grant of its GPUs
            return True
        return (row.node, row.attempt, row.lease or 0) != (node, attempt, status.epoch)

    async def _use(self, report: NodeReport) -> None:
        """Show the node as up, and place work there unless a program was left alone."""
        self._lift_cordon(report.name)
        node, news = self._nodes.seen(report)
        if news:
            await self._save(report)
            node, _ = self._nodes.seen(report)  # an administrator may have cordoned it during the write
        left_alone = self._adoption.left_alone.get(node.name)
        if left_alone:
            warnings = (f"{key} is not in the database and was not changed: {why}" for key, why in left_alone.items())
            node = replace(node, report=replace(node.report, warnings=(*node.report.warnings, *warnings)))
            if not node.cordon_reason:
                node = replace(node, state=NodeState.CORDONED, cordon_reason=_cordon_reason(left_alone))
        self._nodes.put(node)
        self._engine.feed.node_changed(node)
        self._engine.work.set()
        self._engine.wake(None)
        if node.name in self._missed:
            self._missed.discard(node.name)
            await self._note([node.name], "answers again")

    def _lift_cordon(self, name: str) -> None:
        """Remove a cordon for programs that were left alone; ``_use`` sets it again if they still run."""
        node = self._nodes.find(name)
        if node is not None and node.cordon_reason.startswith(CORDON_REASON_PREFIX):
            self._nodes.put(replace(node, state=NodeState.UP, cordon_reason=""))

    async def _save(self, report: NodeReport) -> None:
        """Save the report; nodes that connect together are saved in one write."""
        self._unsaved[report.name] = report
        async with self._saving:
            reports, self._unsaved = self._unsaved, {}
            if not reports:  # the previous holder of the lock has written this one too
                return
            try:
                await self._engine.run_exclusive(lambda: self._write(reports.values()))
            except BaseException:
                self._unsaved = reports | self._unsaved
                raise

    async def _write(self, reports: Iterable[NodeReport]) -> None:
        """Write nodes with the current changes of administrators."""
        now, nodes = self._engine.ports.clock.now(), [self._nodes.seen(report)[0] for report in reports]
        await self._engine.ports.store.save_nodes(nodes, [_reported(node, now) for node in nodes])

    async def _take_gone(self, name: str, known: set[str], expected: set[str]) -> None:
        """Record the end of started programs that the node no longer knows."""
        why, at = "the node no longer knows the program", self._engine.ports.clock.now()
        lost = ExitReport(ExitReason.NODE_RESTARTED, None, None, why, at)
        for replica, workload in self._placed(name):
            if workload.kind is not WorkloadKind.LEASE and replica.key in expected - known:
                gone = ProcessStatus(replica.key, replica.lease or 0, ProcessPhase.EXITED, exit=lost)
                await self._take(name, [gone])

    async def _send_missing(self, name: str, known: set[str]) -> None:
        """Send starts that the node does not know, and stops and grants of GPUs that it may have missed."""
        for replica, workload in self._placed(name):
            if workload.kind is WorkloadKind.LEASE:
                continue
            if replica.key not in known:
                self._start_missing(replica)
            elif replica.state is ReplicaState.STOPPING:
                self._engine.send(StopProgram(replica, grace_of(workload, replica.next_reason)))
            elif replica.suspend_asked_at is not None:
                self._engine.send(SuspendProgram(replica, workload.limits.grace_s))
            elif replica.gpu_lease is not None:
                self._engine.send(AttachGpus(replica))

    def _placed(self, name: str) -> Iterator[tuple[Replica, Workload]]:
        for key in list(self._engine.mirror.placed.get(name, ())):
            replica = self._engine.mirror.replica(*key)
            workload = self._engine.mirror.workloads.get(key[0])
            if replica is not None and workload is not None:
                yield replica, workload

    def _start_missing(self, replica: Replica) -> None:
        """Send a start that was written and possibly never sent; a second start is harmless."""
        stopped_early = replica.state is ReplicaState.STOPPING and replica.pid is None and replica.finished_at is None
        if replica.state is ReplicaState.STARTING or stopped_early:
            self._engine.send(StartProgram(replica))


def _older(keys: Iterable[str]) -> set[str]:
    """Return the keys of all earlier attempts of the same replicas."""
    parts = (split_attempt_key(key) for key in keys)
    return {attempt_key(workload, index, at) for workload, index, attempt in parts for at in range(attempt)}


def _cordon_reason(left_alone: Mapping[str, str]) -> str:
    key, why = next(iter(left_alone.items()))
    more = f" and {len(left_alone) - 1} more" if len(left_alone) > 1 else ""
    return f"{CORDON_REASON_PREFIX} {key}{more} ({why}); see docs/database.md"


def _reported(node: Node, now: float) -> Event:
    return Event(now, POOL, Reason.CHANGED, f"{len(node.report.gpus)} GPUs reported", target=f"node {node.name}")


def _misnamed(name: str, report: NodeReport) -> GpupoolError:
    return GpupoolError(
        ErrorCode.WRONG_STATE,
        f"The agent at the address of node {name} reports the name {report.name}.",
        "Give each machine its own name, and start its agent with that name.",
    )
