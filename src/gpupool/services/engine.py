"""The heart of the control plane: one writer that drafts, commits, and then carries out what it has written.

Everything that changes a workload goes through ``transact``. Only after the store has the change does anything happen
in the world: programs are started and stopped by an outbox per replica. What a crash swallows between the two is found
again by ``reconcile`` when the control plane or a node comes back, because both sides are idempotent by attempt key.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.lifecycle import Effect, ForgetProgram, NotifyProgram, StartProgram, StopProgram, notice_of
from gpupool.domain.supervision import ExitReason, ExitReport, ProcessPhase, ProcessStatus
from gpupool.domain.workload import Replica, ReplicaState
from gpupool.services.demand import Demand
from gpupool.services.files.bringing import Bringer
from gpupool.services.gangs import GangWiring, NotNowError, World
from gpupool.services.mirror import Draft, Mirror, ReplicaId
from gpupool.services.ports import ChangeSet, NodeLink, Ports
from gpupool.services.process_spec import ProcessSpecs

T = TypeVar("T")
MOST_SENT_AT_ONCE = 64  # to one node
AGAIN_S = 1.0

log = structlog.get_logger("gpupool.engine")


class Engine:
    """Owns the mirror, the scheduler's demand, the outboxes and everybody who waits for a change."""

    def __init__(self, ports: Ports, mirror: Mirror, demand: Demand, specs: ProcessSpecs) -> None:
        self.ports = ports
        self.mirror = mirror
        self.demand = demand
        self.attach_paths: dict[str, str] = {}
        self.activity: dict[str, float] = {}
        self.news = 0  # counts what has been told to watchers
        self.work = asyncio.Event()  # something changed that the scheduling loop should look at
        self.broken = asyncio.get_running_loop().create_future()  # set when this process must not go on
        self._specs = specs
        self._wiring = GangWiring(World(mirror, specs.nodes, ports.fabric, ports.random_bits, self.transact))
        self._bringer = Bringer(ports, as_user=specs.as_user)
        self._writing = asyncio.Lock()
        self._watchers: dict[WorkloadId | None, set[asyncio.Event]] = defaultdict(set)
        self._outboxes: dict[ReplicaId, deque[Effect]] = {}
        self._sending: dict[str, asyncio.Semaphore] = {}  # by node: one that hangs holds up nobody else
        self._senders: set[asyncio.Task[None]] = set()
        self._on_status: Callable[[str, ProcessStatus], None] = lambda _node, _status: None
        self._on_commit: list[Callable[[ChangeSet], None]] = []
        self.not_taken: Callable[[str], None] = lambda _node: None  # told of nodes (by name) that took no effect

    def deliver_to(self, on_status: Callable[[str, ProcessStatus], None]) -> None:
        """Say who handles what nodes (by name) answer to a start."""
        self._on_status = on_status

    def committing(self, on_commit: Callable[[ChangeSet], None]) -> None:
        """Have somebody told of every change that was written and is in the mirror; it must be quick."""
        self._on_commit.append(on_commit)

    async def still(self, look: Callable[[], T]) -> T:
        """Look at the mirror while nothing is half written: what it says is what the store has."""
        async with self._writing:
            return look()

    async def transact(self, build: Callable[[Draft], T]) -> T:
        """Draft, commit and publish one transition; whatever ``build`` raises leaves everything as it was."""

        async def built(draft: Draft) -> T:
            return build(draft)

        return await self.transact_slow(built)

    async def transact_slow(self, build: Callable[[Draft], Awaitable[T]]) -> T:
        """As ``transact`` for a draft that has to read the store while it is made.

        A caller that is cancelled half-way does not stop it: what the store has, the mirror must have too.
        """
        return await asyncio.shield(self._transact(build))

    async def _transact(self, build: Callable[[Draft], Awaitable[T]]) -> T:
        async with self._writing:
            draft = Draft(self.mirror, self.ports.clock.now())
            result = await build(draft)
            await self._commit(draft)
            return result

    async def alone(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run something while nothing else is written: for projects, users and nodes, which the scheduler reads."""

        async def held() -> T:
            async with self._writing:
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
            self.demand.update(changes)
            self._forget_paths(changes)
            self._tell(changes)
            self._wake_watchers(changes)
            self.work.set()
        for effect in draft.effects:
            self.send(effect)

    def _tell(self, changes: ChangeSet) -> None:
        for on_commit in self._on_commit:
            try:
                on_commit(changes)
            except Exception:  # what is written stands, whatever somebody makes of it
                log.exception("a change could not be taken in")

    def _commit_failed(self, error: GpupoolError) -> None:
        if error.code is ErrorCode.STALE_WRITE and not self.broken.done():
            # Somebody else wrote what this process believed to own: start again from the store.
            log.error("commit failed", code=error.code, message=error.message)
            self.broken.set_exception(error)

    def _forget_paths(self, changes: ChangeSet) -> None:
        for row in changes.replicas:
            if not row.state.placed and row.attempt:
                self.attach_paths.pop(row.key, None)
                self.activity.pop(row.key, None)

    # Waiting for changes

    def _wake_watchers(self, changes: ChangeSet) -> None:
        touched: set[WorkloadId | None] = {w.id for w in changes.workloads}
        touched.update(row.workload for row in changes.replicas)
        if changes.events:
            touched.add(None)
        for workload in touched:
            self.wake(workload)

    def wake(self, workload: WorkloadId | None) -> None:
        """Let everybody who watches this workload (None: the event log) look again."""
        self.news += 1
        for event in self._watchers.get(workload, ()):
            event.set()

    async def changed(self, workload: WorkloadId | None, timeout_s: float, since: Callable[[], bool]) -> bool:
        """Wait until ``since()`` holds, looking again at each change; False when the time is up."""
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

    # Telling nodes

    def send(self, effect: Effect) -> None:
        """Have an effect carried out on its node: those of one replica in order, those of others meanwhile."""
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
            async with self._sending.setdefault(outbox[0].replica.node or "", asyncio.Semaphore(MOST_SENT_AT_ONCE)):
                await self._send_one(outbox[0])
            outbox.popleft()
        del self._outboxes[replica]

    async def _send_one(self, effect: Effect) -> None:
        node, key = effect.replica.node or "", effect.replica.key
        try:
            await self._carry_out(self.ports.fabric.link(node), effect)
        except GpupoolError as error:
            # Unreachable: comparing sends it again when the node is back, or soon if it has only been slow.
            log.warning("node did not take it", node=node, key=key, code=error.code)
            self.not_taken(node)
        except Exception:
            log.exception("effect failed", node=node, key=key)

    async def _carry_out(self, link: NodeLink, effect: Effect) -> None:
        replica = effect.replica
        match effect:
            case StartProgram():
                await self._start(link, replica)
            case StopProgram(grace_s=grace_s):
                await link.stop(replica.key, grace_s, notice_of(replica))
            case NotifyProgram(notice=notice):
                await link.notify(replica.key, notice)
            case ForgetProgram():
                await link.forget(replica.key)

    async def _start(self, link: NodeLink, replica: Replica) -> None:
        now = self.mirror.replica(replica.workload, replica.index)
        workload = self.mirror.workloads.get(replica.workload)
        if workload is None or now is None or now.attempt != replica.attempt or not now.state.placed:
            return
        try:
            if not await self._wiring.ready(workload, now):
                self._not_started(link.name, replica)
                return
            if self._starts(replica) and self.demand.away(
                workload
            ):  # granted just before the lead moved: it keeps its place meanwhile
                self._soon(StartProgram(replica))
                return
            await self._bringer.bring(link, workload, lambda: self._starts(replica))
            workload = self.mirror.workloads.get(replica.workload, workload)
            now = self.mirror.replica(replica.workload, replica.index) or now
            lease = self.mirror.leases.get(now.lease) if now.lease is not None else None
            host = self.mirror.workloads.get(workload.on) if workload.on is not None else None
            status = await link.start(self._specs.build(workload, now, lease, host))
        except NotNowError as error:
            log.info("a gang's member waits for the others", key=replica.key, why=str(error))
            self._soon(StartProgram(replica))
            return
        except GpupoolError as error:
            if error.code is ErrorCode.NODE_UNREACHABLE:
                raise
            status = self._failed_start(now, error)
        self._on_status(link.name, status)
        if now.state is ReplicaState.STOPPING:
            await link.stop(now.key, workload.limits.grace_s, notice_of(now))

    def _not_started(self, node: str, replica: Replica) -> None:
        """A member of a gang that has no seat: its gang has gone on without it, or begins anew."""
        now = self.mirror.replica(replica.workload, replica.index)
        if now is None or now.attempt != replica.attempt:
            return
        if now.state is ReplicaState.STARTING:
            self._soon(StartProgram(replica))
        elif now.state is ReplicaState.STOPPING:
            report = ExitReport(ExitReason.STOPPED, None, None, "", self.ports.clock.now())
            self._on_status(node, ProcessStatus(now.key, now.lease or 0, ProcessPhase.EXITED, exit=report))

    def _soon(self, effect: Effect) -> None:
        """Try again in a moment."""
        asyncio.get_running_loop().call_later(AGAIN_S, self.send, effect)

    def _starts(self, replica: Replica) -> bool:
        now = self.mirror.replica(replica.workload, replica.index)
        return now is not None and now.attempt == replica.attempt and now.state is ReplicaState.STARTING

    def _failed_start(self, replica: Replica, error: GpupoolError) -> ProcessStatus:
        report = ExitReport(ExitReason.START_FAILED, None, None, error.message, self.ports.clock.now())
        return ProcessStatus(replica.key, replica.lease or 0, ProcessPhase.EXITED, exit=report)

    async def close(self) -> None:
        """Stop sending; what runs on nodes runs on."""
        for task in self._senders:
            task.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
