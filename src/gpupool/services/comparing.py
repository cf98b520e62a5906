"""After a silence both sides of a node are compared, before anything new is placed there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.gpu import Node, NodeReport
from gpupool.domain.ids import split_attempt_key
from gpupool.domain.lifecycle import POOL, StartProgram, StopProgram
from gpupool.domain.supervision import ExitReason, ExitReport, ProcessPhase, ProcessStatus
from gpupool.domain.workload import Replica, ReplicaState, WorkloadKind
from gpupool.services.engine import Engine
from gpupool.services.mirror import Draft
from gpupool.services.nodebook import NodeBook
from gpupool.services.ports import NodeLink

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 30.0
SOON_S = 5.0

Take = Callable[[str, Sequence[ProcessStatus]], Awaitable[None]]

log = structlog.get_logger("gpupool.comparing")


class Comparing:
    """One task for each node that has come up and is not in use yet; ``take`` writes what programs report."""

    def __init__(self, engine: Engine, nodes: NodeBook, take: Take) -> None:
        self._engine = engine
        self._nodes = nodes
        self._take = take
        self._connected: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, asyncio.TimerHandle] = {}
        self._unsaved: dict[str, NodeReport] = {}
        self._saving = asyncio.Lock()
        self._missed: set[str] = set()  # nodes of which an event says that they do not answer

    @property
    def busy(self) -> bool:
        """Whether a comparison is under way."""
        return any(not task.done() for task in self._tasks.values())

    def up(self, name: str) -> None:
        """A node's agent answers."""
        self._connected.add(name)
        self._nodes.in_contact(name)
        self.again(name)

    def down(self, name: str) -> None:
        """It does not any more."""
        self._connected.discard(name)
        self._cancel(name)

    def again(self, name: str) -> None:
        """Compare with a node, from the beginning, if it can be reached."""
        self._cancel(name)
        if name in self._connected:
            self._tasks[name] = asyncio.create_task(self._until_done(name), name=f"compare {name}")

    async def note_absence(self, names: Sequence[str]) -> None:
        """Write events: nodes that were in use do not answer."""
        self._missed.update(names)
        await self._note(names, "does not answer")

    async def _note(self, names: Sequence[str], what: str) -> None:
        def build(draft: Draft) -> None:
            for name in names:
                draft.note(Event(draft.now, POOL, Reason.CHANGED, what, target=f"node {name}"))

        with contextlib.suppress(GpupoolError):  # it is in the log, too
            await self._engine.transact(build)

    def soon(self, name: str) -> None:
        """Something was not taken by a node that can be reached: compare in a while."""
        if name in self._connected and name not in self._due:
            self._due[name] = asyncio.get_running_loop().call_later(SOON_S, self._now_due, name)

    def _now_due(self, name: str) -> None:
        del self._due[name]
        self.again(name)

    def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop comparing."""
        for timer in self._due.values():
            timer.cancel()
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_done(self, name: str) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._compare(name)
            except GpupoolError as error:
                log.warning("not compared yet", node=name, code=error.code, message=error.message)
            except Exception:
                log.exception("comparing failed", node=name)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _compare(self, name: str) -> None:
        """Take in what was missed, see that nothing runs that should not, use the node, send what was not heard."""
        link = self._engine.ports.fabric.link(name)
        report = await link.report()
        if report.name != name:
            raise _misnamed(name, report)
        expected = self._expected(name)
        statuses = await link.list()
        await self._take(name, statuses)
        await self._end_strangers(link, statuses)
        await self._use(report)
        await self._send_missing(name, {status.key for status in statuses}, expected)

    def _expected(self, name: str) -> set[str]:
        """Programs that have started there as far as is known: the node must know them when it is asked now."""
        rows = (self._engine.mirror.replica(*key) for key in self._engine.mirror.placed.get(name, ()))
        return {row.key for row in rows if row is not None and (row.pid is not None or row.state is _RUNNING)}

    async def _end_strangers(self, link: NodeLink, statuses: Sequence[ProcessStatus]) -> None:
        """Nothing is placed beside programs of before: they are ended first, whatever they ran for."""
        pause_s = FIRST_PAUSE_S
        while strangers := [s for s in statuses if s.phase is not ProcessPhase.EXITED and self._strange(link.name, s)]:
            for status in strangers:
                log.warning("ending a program of before", node=link.name, key=status.key)
                await link.stop(status.key, 0.0)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)
            statuses = await link.list()

    def _strange(self, node: str, status: ProcessStatus) -> bool:
        workload, index, attempt = split_attempt_key(status.key)
        row = self._engine.mirror.replica(workload, index)
        if row is None or not row.state.placed:
            return True
        return (row.node, row.attempt, row.lease or 0) != (node, attempt, status.epoch)

    async def _use(self, report: NodeReport) -> None:
        """From here on the API shows the node as up, and work is placed there."""
        node, news = self._nodes.seen(report)
        if news:
            await self._save(report)
            node, _ = self._nodes.seen(report)  # an administrator may have cordoned it meanwhile
        self._nodes.put(node)
        self._engine.demand.node_changed(node)
        self._engine.work.set()
        self._engine.wake(None)
        if node.name in self._missed:
            self._missed.discard(node.name)
            await self._note([node.name], "answers again")

    async def _save(self, report: NodeReport) -> None:
        """Nodes that come up together are one write."""
        self._unsaved[report.name] = report
        async with self._saving:
            reports, self._unsaved = self._unsaved, {}
            if not reports:  # whoever held the lock before has taken this one along
                return
            try:
                await self._engine.alone(lambda: self._write(reports.values()))
            except BaseException:
                self._unsaved = reports | self._unsaved
                raise

    async def _write(self, reports: Iterable[NodeReport]) -> None:
        """As administrators have nodes at this moment, for they may have changed them meanwhile."""
        now, nodes = self._engine.ports.clock.now(), [self._nodes.seen(report)[0] for report in reports]
        await self._engine.ports.store.save_nodes(nodes, [_reported(node, now) for node in nodes])

    async def _send_missing(self, name: str, known: set[str], expected: set[str]) -> None:
        """What this side has and the node has not, and stops that it may not have heard."""
        for key in list(self._engine.mirror.placed.get(name, ())):
            replica = self._engine.mirror.replica(*key)
            workload = self._engine.mirror.workloads.get(key[0])
            if replica is None or workload is None or workload.kind is WorkloadKind.LEASE:
                continue
            if replica.key not in known:
                await self._missing(name, replica, gone=replica.key in expected)
            elif replica.state is ReplicaState.STOPPING:
                self._engine.send(StopProgram(replica, workload.limits.grace_s))

    async def _missing(self, name: str, replica: Replica, *, gone: bool) -> None:
        """The node did not know of a program when it was asked; ``gone``: although it had started before."""
        if gone:
            why, at = "the node no longer knows the program", self._engine.ports.clock.now()
            lost = ExitReport(ExitReason.NODE_RESTARTED, None, None, why, at)
            await self._take(name, [ProcessStatus(replica.key, replica.lease or 0, ProcessPhase.EXITED, exit=lost)])
        elif replica.state is ReplicaState.STARTING or (replica.state is ReplicaState.STOPPING and replica.pid is None):
            # The start was written but perhaps never sent; a start is harmless when it was.
            self._engine.send(StartProgram(replica))


def _reported(node: Node, now: float) -> Event:
    return Event(now, POOL, Reason.CHANGED, f"{len(node.report.gpus)} GPUs reported", target=f"node {node.name}")


_RUNNING = ReplicaState.RUNNING


def _misnamed(name: str, report: NodeReport) -> GpupoolError:
    return GpupoolError(
        ErrorCode.WRONG_STATE,
        f"What is reached as node {name} says that it is {report.name}.",
        "Give each machine a name of its own, and start its agent with that name.",
    )
