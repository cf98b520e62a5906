"""The single writer of the control plane: it drafts a change, commits it, and then sends its effects to nodes.

Every change of a workload goes through ``transact``. Programs are started and stopped only after the store has the
change, by one outbox for each replica. A crash between commit and sending can lose effects. ``reconcile`` sends them
again when the control plane or a node comes back; both sides are idempotent by attempt key.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.work.lifecycle import (
    AttachGpus,
    Effect,
    ForgetProgram,
    NotifyProgram,
    StartProgram,
    StopProgram,
    SuspendProgram,
    grace_of,
    preemption_notice,
    stop,
)
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessPhase, ProcessStatus
from gpupool.domain.work.workload import Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.control.precondition import check_precondition
from gpupool.services.control.scheduler_feed import SchedulerFeed
from gpupool.services.lifecycle.gangs import GangContext, GangRendezvous, NotReadyError
from gpupool.services.lifecycle.process_spec import ProcessSpecs
from gpupool.services.lifecycle.stage_in import FolderStager
from gpupool.services.ports.adapters import Ports
from gpupool.services.ports.fabric import NOT_SENT, NodeLink
from gpupool.services.ports.store import ChangeSet
from gpupool.services.state.mirror import Draft, Mirror, ReplicaId

T = TypeVar("T")
MAX_CONCURRENT_SENDS = 64  # to one node
RETRY_DELAY_S = 1.0

log = structlog.get_logger("gpupool.engine")


class NodeListener(Protocol):
    """The receiver of what nodes answer to effects."""

    def take_status(self, node: str, status: ProcessStatus) -> None:
        """Handle the answer of a node to a start."""

    def effect_failed(self, node: str) -> None:
        """Handle that a node did not accept an effect."""


class Engine:
    """The mirror, the scheduler feed, the outboxes, and the callers that wait for changes."""

    def __init__(self, ports: Ports, mirror: Mirror, feed: SchedulerFeed, specs: ProcessSpecs) -> None:
        self.ports = ports
        self.mirror = mirror
        self.feed = feed
        self.attach_paths: dict[str, str] = {}
        self.activity: dict[str, float] = {}
        self.news = 0  # counts the wake-ups of watchers
        self.work = asyncio.Event()  # set by changes that the scheduling loop has to consider
        self.broken = asyncio.get_running_loop().create_future()  # set when this process must stop
        self._specs = specs
        self._rendezvous = GangRendezvous(
            GangContext(mirror, specs.nodes, ports.fabric, ports.random_bits, self.transact)
        )
        self._stager = FolderStager(ports, as_user=specs.as_user)
        self._writing = asyncio.Lock()
        self._watchers: dict[WorkloadId | None, set[asyncio.Event]] = defaultdict(set)
        self._outboxes: dict[ReplicaId, deque[Effect]] = {}
        self._sending: dict[str, asyncio.Semaphore] = {}  # by node, so that one that hangs does not delay others
        self._senders: set[asyncio.Task[None]] = set()
        self._listener: NodeListener | None = None
        self._on_commit: list[Callable[[ChangeSet], None]] = []

    @property
    def listener(self) -> NodeListener:
        """Return the receiver of answers from nodes; raises ``RuntimeError`` if ``listen_with`` was not called."""
        if self._listener is None:
            raise RuntimeError("the engine has no listener")
        return self._listener

    def listen_with(self, listener: NodeListener) -> None:
        """Set the receiver of answers from nodes. It needs this engine itself, so it cannot be passed at the start."""
        self._listener = listener

    def on_commit(self, act: Callable[[ChangeSet], None]) -> None:
        """Call ``act`` after each change, when the store and the mirror have it. It must return quickly."""
        self._on_commit.append(act)

    def change_event(self, by: str, what: str, target: str, reason: Reason = Reason.CHANGED) -> Event:
        """Return the event for a change of ``target`` (for example ``node gpu1``) that is made now."""
        return Event(self.ports.clock.now(), by, reason, what, target=target)

    async def read_consistent(self, read: Callable[[], T]) -> T:
        """Read the mirror while no write is in progress, so that it equals the store."""
        async with self._writing:
            return read()

    async def transact(self, build: Callable[[Draft], T]) -> T:
        """Draft, commit and publish one transition; an error of ``build`` leaves everything unchanged."""

        async def built(draft: Draft) -> T:
            return build(draft)

        return await self.transact_slow(built)

    async def transact_slow(self, build: Callable[[Draft], Awaitable[T]]) -> T:
        """Do the same as ``transact`` for a ``build`` that reads the store.

        Cancelling the caller does not stop the write, because the mirror must always equal the store.
        """
        return await asyncio.shield(self._transact(build))

    async def _transact(self, build: Callable[[Draft], Awaitable[T]]) -> T:
        async with self._writing:
            draft = Draft(self.mirror, self.ports.clock.now())
            result = await build(draft)
            await self._commit(draft)
            return result

    async def run_exclusive(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run ``act`` while nothing else is written: for projects, users and nodes, which the scheduler reads."""

        async def held() -> T:
            async with self._writing:
                check_precondition()
                result = await act()
            self.wake(None)
            return result

        return await asyncio.shield(held())

    async def _commit(self, draft: Draft) -> None:
        changes = draft.changes()
        if changes:
            try:
                await self.ports.store.commit(changes)
            except GpupoolError as error:
                self._commit_failed(error)
                raise
            self.mirror.apply(changes)
            self.feed.update(changes)
            self._forget_paths(changes)
            self._run_commit_hooks(changes)
            self._wake_watchers(changes)
            self.work.set()
        for effect in draft.effects:
            self.send(effect)

    def _run_commit_hooks(self, changes: ChangeSet) -> None:
        for on_commit in self._on_commit:
            try:
                on_commit(changes)
            except Exception:  # the change is committed, so an error of a hook must not reach the caller
                log.exception("commit hook failed")

    def _commit_failed(self, error: GpupoolError) -> None:
        if error.code is ErrorCode.STALE_WRITE and not self.broken.done():
            # Another process wrote rows that this one believed to own: start again from the store.
            log.error("commit failed", code=error.code, message=error.message)
            self.broken.set_exception(error)

    def _forget_paths(self, changes: ChangeSet) -> None:
        for row in changes.replicas:
            if not row.state.placed and row.attempt:
                self.attach_paths.pop(row.key, None)
                self.activity.pop(row.key, None)

    def last_active(self, workload: Workload, replica: Replica, now: float) -> float:
        """Return when a running replica last used its GPUs or started; ``now`` for a lease with programs on it."""
        if workload.kind is WorkloadKind.LEASE and replica.lease in self.mirror.execs:
            return now
        return max(replica.last_active_at or 0.0, replica.started_at or 0.0, self.activity.get(replica.key, 0.0))

    # Waiting for changes

    def _wake_watchers(self, changes: ChangeSet) -> None:
        touched: set[WorkloadId | None] = {w.id for w in changes.workloads}
        touched.update(row.workload for row in changes.replicas)
        if changes.events:
            touched.add(None)
        for workload in touched:
            self.wake(workload)

    def wake(self, workload: WorkloadId | None) -> None:
        """Wake all callers that wait for a change of this workload (None: of the event log)."""
        self.news += 1
        for event in self._watchers.get(workload, ()):
            event.set()

    async def wait_for_change(self, workload: WorkloadId | None, timeout_s: float, since: Callable[[], bool]) -> bool:
        """Wait until ``since()`` is true, checked at each change; return False after ``timeout_s``."""
        event = asyncio.Event()
        self._watchers[workload].add(event)
        try:
            async with asyncio.timeout(timeout_s):
                while not since():
                    await event.wait()
                    event.clear()
        except TimeoutError:
            return False
        finally:
            self._watchers[workload].discard(event)
            if not self._watchers[workload]:
                del self._watchers[workload]
        return True

    # Effects on nodes

    def send(self, effect: Effect) -> None:
        """Send an effect to its node: in order for one replica, in parallel for different replicas."""
        if effect.replica.node is None:
            return
        replica = (effect.replica.workload, effect.replica.index)
        if replica in self._outboxes:
            self._outboxes[replica].append(effect)
            return
        self._outboxes[replica] = deque([effect])
        task = asyncio.create_task(self._send_all(replica), name=f"outbox {replica}")
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)

    async def _send_all(self, replica: ReplicaId) -> None:
        outbox = self._outboxes[replica]
        while outbox:
            async with self._sending.setdefault(outbox[0].replica.node or "", asyncio.Semaphore(MAX_CONCURRENT_SENDS)):
                await self._send_one(outbox[0])
            outbox.popleft()
        del self._outboxes[replica]

    async def _send_one(self, effect: Effect) -> None:
        node, key = effect.replica.node or "", effect.replica.key
        try:
            await self._carry_out(self.ports.fabric.link(node), effect)
        except GpupoolError as error:
            # Reconciling sends it again: when the node is back, or soon if it was only slow.
            log.warning("node did not accept an effect", node=node, key=key, code=error.code)
            self.listener.effect_failed(node)
        except Exception:
            log.exception("effect failed", node=node, key=key)

    async def _carry_out(self, link: NodeLink, effect: Effect) -> None:
        replica = effect.replica
        match effect:
            case StartProgram():
                await self._start(link, replica)
            case StopProgram(grace_s=grace_s):
                await link.stop(replica.key, grace_s, preemption_notice(replica))
            case NotifyProgram(notice=notice):
                await link.notify(replica.key, notice)
            case ForgetProgram():
                await link.forget(replica.key)
            case AttachGpus():
                await self._attach_gpus(link, replica)
            case SuspendProgram(grace_s=grace_s):
                await self._suspend(link, replica, grace_s)

    async def _attach_gpus(self, link: NodeLink, replica: Replica) -> None:
        lease = self.mirror.leases.get(replica.gpu_lease or Epoch(0))
        now = self.mirror.replica(replica.workload, replica.index)
        if lease is not None and now is not None and now.gpu_lease == lease.epoch and now.state is ReplicaState.RUNNING:
            try:
                await link.attach_gpus(replica.key, lease.epoch, lease.shares)
            except GpupoolError as error:
                if error.code in NOT_SENT | {ErrorCode.STALE_WRITE}:
                    raise
                sentence = f"its node could not give it GPUs: {error.message}"
                await self.transact(lambda draft: self._end_without_gpus(draft, now, sentence))

    async def _suspend(self, link: NodeLink, replica: Replica, grace_s: float) -> None:
        now = self.mirror.replica(replica.workload, replica.index)
        if (
            now is not None
            and now.suspend_asked_at is not None
            and now.gpu_lease is not None
            and now.key == replica.key
        ):
            await link.suspend(replica.key, now.gpu_lease, grace_s)

    @staticmethod
    def _end_without_gpus(draft: Draft, replica: Replica, sentence: str) -> None:
        """Stop a lazy program whose node cannot give it its GPUs; it would wait for ever."""
        workload, now = draft.workload(replica.workload), draft.replica(replica.workload, replica.index)
        if workload is not None and now is not None and now.key == replica.key:
            draft.take(stop(workload, now, Reason.START_FAILED, draft.now, sentence=sentence))

    async def _start(self, link: NodeLink, replica: Replica) -> None:
        now = self.mirror.replica(replica.workload, replica.index)
        workload = self.mirror.workloads.get(replica.workload)
        if workload is None or now is None or now.attempt != replica.attempt or not now.state.placed:
            return
        try:
            if not await self._rendezvous.ready(workload, now):
                self._not_started(link.name, replica)
                return
            if self._starts(replica) and self.feed.folder_missing(workload):
                self._send_later(StartProgram(replica))  # granted just before a failover: it keeps its lease
                return
            await self._stager.bring(link, workload, lambda: self._starts(replica))
            workload = self.mirror.workloads.get(replica.workload, workload)
            now = self.mirror.replica(replica.workload, replica.index) or now
            lease, gpus = (
                self.mirror.leases.get(now.lease or Epoch(0)),
                self.mirror.leases.get(now.gpu_lease or Epoch(0)),
            )
            if lease is not None and gpus is not None:
                lease = replace(lease, shares=gpus.shares)
            host = self.mirror.workloads.get(workload.on) if workload.on is not None else None
            status = await link.start(self._specs.build(workload, now, lease, host))
        except NotReadyError as error:
            log.info("gang member waits for the others", key=replica.key, why=str(error))
            self._send_later(StartProgram(replica))
            return
        except GpupoolError as error:
            if error.code in NOT_SENT:
                raise
            status = self._failed_start(now, error)
        self.listener.take_status(link.name, status)
        if now.state is ReplicaState.STOPPING:
            await link.stop(now.key, grace_of(workload, now.next_reason), preemption_notice(now))

    def _not_started(self, node: str, replica: Replica) -> None:
        """Handle a gang member without a place: its gang continues without it, or restarts."""
        now = self.mirror.replica(replica.workload, replica.index)
        if now is None or now.attempt != replica.attempt:
            return
        if now.state is ReplicaState.STARTING:
            self._send_later(StartProgram(replica))
        elif now.state is ReplicaState.STOPPING:
            report = ExitReport(ExitReason.STOPPED, None, None, "", self.ports.clock.now())
            self.listener.take_status(node, ProcessStatus(now.key, now.lease or 0, ProcessPhase.EXITED, exit=report))

    def _send_later(self, effect: Effect) -> None:
        asyncio.get_running_loop().call_later(RETRY_DELAY_S, self.send, effect)

    def _starts(self, replica: Replica) -> bool:
        now = self.mirror.replica(replica.workload, replica.index)
        return now is not None and now.attempt == replica.attempt and now.state is ReplicaState.STARTING

    def _failed_start(self, replica: Replica, error: GpupoolError) -> ProcessStatus:
        environment = error.code is ErrorCode.ENVIRONMENT_FAILED
        reason = ExitReason.ENVIRONMENT_FAILED if environment else ExitReason.START_FAILED
        report = ExitReport(reason, None, None, error.message, self.ports.clock.now())
        return ProcessStatus(replica.key, replica.lease or 0, ProcessPhase.EXITED, exit=report)

    async def close(self) -> None:
        """Stop sending; programs on nodes continue to run."""
        for task in self._senders:
            task.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
