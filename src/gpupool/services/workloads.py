"""Everything users do with workloads after submitting them: look, wait, ask why, stop, suspend, resume, extend."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.logrecords import Stretch
from gpupool.domain.units import MAX_DURATION_S, format_duration
from gpupool.domain.workload import Lease, Replica, ReplicaState, Workload, WorkloadKind, WorkloadState
from gpupool.scheduling.explain import Explanation
from gpupool.services import transitions
from gpupool.services.bound import BoundClients
from gpupool.services.engine import Engine
from gpupool.services.holdings import HoldingService
from gpupool.services.lookup import Lookup
from gpupool.services.mirror import Draft
from gpupool.services.output import OutputService
from gpupool.services.permissions import Permissions
from gpupool.services.ports import AttachStream, WorkloadFilter
from gpupool.services.queue import QueueService
from gpupool.services.submission import SubmissionService
from gpupool.services.waiting import WhyService
from gpupool.specs.request import WorkloadRequest


class WaitFor(StrEnum):
    """What to wait for: that it has started (or ended), or that it has ended."""

    STARTED = "started"
    FINISHED = "finished"


class WorkloadService:
    """The use cases; each takes the actor and refuses what the actor may not do."""

    def __init__(
        self,
        engine: Engine,
        lookup: Lookup,
        permissions: Permissions,
        bound: BoundClients,
        submission: SubmissionService,
    ) -> None:
        self._engine = engine
        self._lookup = lookup
        self._permissions = permissions
        self._bound = bound
        self.submission = submission
        self.output = OutputService(engine, lookup, permissions)
        self.waiting = WhyService(engine, lookup)
        self.queue = QueueService(engine)
        self.holdings = HoldingService(engine)

    async def submit(self, actor: Actor, request: WorkloadRequest) -> tuple[Workload, bool]:
        """Write a request down; the flag says whether it is new."""
        return await self.submission.submit(actor, request)

    async def get(self, actor: Actor, ref: str) -> Workload:
        """By id or name; raises UNKNOWN_WORKLOAD."""
        return await self._lookup.workload(actor, ref)

    async def list(self, actor: Actor, wanted: WorkloadFilter) -> Sequence[Workload]:
        """Newest first; everybody sees everybody's, without what is private."""
        del actor
        return await self._engine.ports.store.list_workloads(wanted)

    def now(self) -> float:
        """The pool's time, in seconds since the epoch: what ages and remaining times are counted from."""
        return self._engine.ports.clock.now()

    async def counts(self) -> dict[WorkloadState, int]:
        """How many live workloads are in which state."""
        return Counter(workload.state for workload in self._engine.mirror.workloads.values())

    async def replicas_of(self, actor: Actor, workload: Workload) -> Sequence[Replica]:
        """All replicas by index."""
        del actor
        return await self._lookup.replicas(workload)

    async def leases_of(self, actor: Actor, workload: Workload) -> Sequence[Lease]:
        """The leases held now, or once, when it has ended."""
        del actor
        return await self._lookup.leases(workload)

    def can_see(self, actor: Actor, workload: Workload) -> bool:
        """Whether command, environment and output are the actor's to see."""
        return self._permissions.can_see(actor, workload)

    def can_manage(self, actor: Actor, workload: Workload) -> bool:
        """Whether the actor may change its course."""
        return self._permissions.can_manage(actor, workload)

    def attach_path(self, workload: Workload, index: int) -> str:
        """The socket of a placed replica's shepherd; empty while it is not known."""
        replica = self._engine.mirror.replica(workload.id, index)
        return self._engine.attach_paths.get(replica.key, "") if replica is not None else ""

    # Waiting and asking

    async def wait(
        self, actor: Actor, ref: str, *, until: WaitFor, timeout_s: float, index: int = 0, bound: bool = False
    ) -> Workload:
        """Wait until it has started or ended, at most ``timeout_s``; returns it as it is then.

        ``bound``: the caller is the client that a client-bound workload depends on.
        """
        workload = await self._lookup.workload(actor, ref)
        if workload.state.final:
            return workload
        reached = self._reached(workload, WaitFor(until), index)
        if bound and self.can_manage(actor, workload):
            with self._bound.waiting(workload.id):
                await self._engine.changed(workload.id, timeout_s, reached)
        else:
            await self._engine.changed(workload.id, timeout_s, reached)
        return await self._lookup.workload(actor, workload.id)

    def _reached(self, workload: Workload, until: WaitFor, index: int) -> Callable[[], bool]:
        def has_ended() -> bool:
            return workload.id not in self._engine.mirror.workloads

        def has_started() -> bool:
            replica = self._engine.mirror.replica(workload.id, index)
            if replica is None or replica.state.final:
                return True
            bare = workload.kind is WorkloadKind.LEASE and replica.state.placed
            return bare or bool(replica.state.placed and self._engine.attach_paths.get(replica.key))

        return has_ended if until is WaitFor.FINISHED else has_started

    async def why(self, actor: Actor, ref: str, index: int | None = None, *, foretell: bool = True) -> Explanation:
        """Why it stands where it stands; without ``foretell`` at once, and without an estimate."""
        return await self.waiting.why(await self._lookup.workload(actor, ref), index, foretell=foretell)

    # Changing its course

    async def stop(
        self, actor: Actor, ref: str, *, grace_s: float | None = None, force: bool = False, index: int | None = None
    ) -> Workload:
        """End a workload, or one replica of it: TERM, the grace, KILL; at once with ``force``."""
        workload = await self._managed(actor, ref)
        grace = 0.0 if force else grace_s
        reason = Reason.RELEASED if workload.kind is WorkloadKind.LEASE else Reason.STOPPED_BY_USER

        def build(draft: Draft) -> None:
            now = draft.workload(workload.id)
            if now is None or now.state.final:
                return
            draft.note(_asked(draft, actor, reason, workload, index))
            if index is None:
                transitions.stop_all(draft, now, reason, grace)
                return
            replica = draft.replica(workload.id, index)
            if replica is None:
                raise GpupoolError(ErrorCode.NOT_FOUND, f"{workload.name} has no replica {index}.", "See `describe`.")
            transitions.stop(draft, now, replica, reason, grace)

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def stop_everything(self, actor: Actor) -> None:
        """Ask every live workload of everybody to stop, in one write. For administrators."""
        self._permissions.need_role(actor, Role.ADMIN)

        def build(draft: Draft) -> None:
            for workload in list(self._engine.mirror.workloads.values()):
                reason = Reason.RELEASED if workload.kind is WorkloadKind.LEASE else Reason.STOPPED_BY_USER
                transitions.stop_all(draft, draft.workload(workload.id) or workload, reason)

        await self._engine.transact(build)

    async def suspend(self, actor: Actor, ref: str) -> Workload:
        """Stop what runs and keep it out of the queue until it is resumed."""
        workload = await self._managed(actor, ref)
        if workload.kind in {WorkloadKind.LEASE, WorkloadKind.EXEC} or workload.program.client_bound:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{workload.name} is a {workload.kind} and cannot be suspended.", "Stop it."
            )

        def build(draft: Draft) -> None:
            now = self._live(draft, workload)
            if now.suspended or now.stop_reason is not None:
                return
            draft.put_workload(replace(now, suspended=True))
            draft.note(_asked(draft, actor, Reason.SUSPENDED_BY_USER, workload))
            for replica in list(draft.replicas(workload.id)):
                transitions.stop(draft, now, replica, Reason.SUSPENDED_BY_USER, sentence=f"suspended by {actor.user}")

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def resume(self, actor: Actor, ref: str) -> Workload:
        """Put a suspended workload back into the queue."""
        workload = await self._managed(actor, ref)

        def build(draft: Draft) -> None:
            now = self._live(draft, workload)
            if not now.suspended:
                raise GpupoolError(ErrorCode.WRONG_STATE, f"{workload.name} is not suspended.", f"It is {now.state}.")
            draft.put_workload(replace(now, suspended=False))
            draft.note(_asked(draft, actor, Reason.RESUMED_BY_USER, workload))

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def signal(self, actor: Actor, ref: str, signum: int, *, index: int = 0) -> Workload:
        """Send a signal to a replica's foreground processes."""
        workload = await self._managed(actor, ref)
        replica = await self._lookup.replica(workload, index)
        if not replica.state.placed or workload.kind is WorkloadKind.LEASE:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{workload.name} has no running program.", "See `gpupool ps`.")
        await self._engine.ports.fabric.link(replica.node or "").signal(replica.key, signum)
        return workload

    async def extend(self, actor: Actor, ref: str, seconds: float) -> Workload:
        """Let a lease live longer."""
        workload = await self._managed(actor, ref)

        def build(draft: Draft) -> None:
            now = self._live(draft, workload)
            if now.kind is not WorkloadKind.LEASE or now.expires_at is None:
                raise GpupoolError(
                    ErrorCode.WRONG_STATE,
                    f"{workload.name} has no expiry that could be moved.",
                    "Only held leases with a lifetime can be extended.",
                )
            until = now.expires_at + seconds
            if not draft.now < until <= draft.now + MAX_DURATION_S:
                raise GpupoolError(
                    ErrorCode.INVALID_DURATION, "The new expiry would not lie ahead.", "Give another time."
                )
            draft.put_workload(replace(now, expires_at=until))
            sentence = f"extended by {format_duration(seconds)}"
            draft.note(Event(draft.now, actor.user, Reason.EXTENDED, sentence, workload.id))

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def set_priority(self, actor: Actor, ref: str, priority: int) -> Workload:
        """Let a workload that waits come earlier or later in its project; it keeps the time at which it queued."""
        workload = await self._managed(actor, ref)

        def build(draft: Draft) -> None:
            now = self._live(draft, workload)
            if not any(replica.state is ReplicaState.PENDING for replica in draft.replicas(workload.id)):
                raise GpupoolError(
                    ErrorCode.WRONG_STATE, f"{workload.name} is {now.state}: nothing of it waits.", "See `gpupool ps`."
                )
            if now.priority == priority:
                return
            draft.put_workload(replace(now, priority=priority))
            sentence = f"priority {now.priority} -> {priority}"
            draft.note(Event(draft.now, actor.user, Reason.CHANGED, sentence, workload.id))

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def delete(self, actor: Actor, ref: str) -> None:
        """Take a workload that has ended off the lists, with its output."""
        workload = await self._managed(actor, ref)
        if not workload.state.final:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{workload.name} is {workload.state}.", f"Stop it: `gpupool stop {ref}`."
            )
        replicas = await self._lookup.replicas(workload)

        async def build(draft: Draft) -> None:
            found = await self._engine.ports.store.get_workload(workload.id)
            if found is not None and found.deleted_at is None:  # else somebody was faster
                draft.put_final(replace(found, deleted_at=draft.now, version=found.version + 1))
                draft.note(_asked(draft, actor, Reason.DELETED_BY_USER, workload))

        await self._engine.transact_slow(build)
        await self._delete_output(workload, replicas)

    async def _delete_output(self, workload: Workload, replicas: Sequence[Replica]) -> None:
        for row in replicas:
            for attempt in range(1, row.attempt + 1):
                node = await self._lookup.node_of(workload, row, attempt)
                with contextlib.suppress(GpupoolError):  # a node that is away deletes it when it is old
                    await self._engine.ports.fabric.link(node or "").forget(
                        workload.key(row.index, attempt), delete_logs=True
                    )

    async def _managed(self, actor: Actor, ref: str) -> Workload:
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_manage(actor, workload)
        return workload

    def _live(self, draft: Draft, workload: Workload) -> Workload:
        now = draft.workload(workload.id)
        if now is None or now.state.final:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{workload.name} has ended.", "Submit it again.")
        return now

    # Output

    async def read_log(
        self, actor: Actor, ref: str, *, index: int, attempt: int | None, cursor: str, limit: int
    ) -> tuple[Sequence[Stretch], str, bool]:
        """Output from a cursor, the cursor after it, and whether nothing more can come."""
        return await self.output.read(actor, ref, index=index, attempt=attempt, cursor=cursor, limit=limit)

    async def tail_cursor(self, actor: Actor, ref: str, *, index: int, attempt: int | None, lines: int) -> str:
        """The cursor from which about so many lines follow."""
        return await self.output.tail_cursor(actor, ref, index=index, attempt=attempt, lines=lines)

    async def log_changed(self, ref: str, timeout_s: float) -> None:
        """Sleep until there may be more output."""
        await self.output.changed(ref, timeout_s)

    async def attach(self, actor: Actor, ref: str, index: int) -> AttachStream:
        """A stream to a running program's shepherd."""
        return await self.output.attach(actor, ref, index)


def _asked(draft: Draft, actor: Actor, reason: Reason, workload: Workload, index: int | None = None) -> Event:
    return Event(draft.now, actor.user, reason, f"{actor.user} asked for it", workload.id, index)
