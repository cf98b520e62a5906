"""Workload service: submit, read, wait, explain, stop, suspend, restart, signal, extend and delete workloads."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from math import inf

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.units import MAX_DURATION_S, format_duration
from gpupool.domain.work import lifecycle
from gpupool.domain.work.lifecycle import POOL
from gpupool.domain.work.workload import (
    TTL_LABEL,
    GpuLease,
    Replica,
    ReplicaState,
    Workload,
    WorkloadKind,
    WorkloadState,
)
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.database_outage import UnrecordedStops, can_list_live, is_outage, list_live
from gpupool.services.control.engine import Engine
from gpupool.services.control.lookup import Lookup
from gpupool.services.explain.queue import QueueService
from gpupool.services.explain.reason_cache import WaitReasonCache
from gpupool.services.explain.wait_reason import Obstacles, WaitReasonService
from gpupool.services.lifecycle import transitions
from gpupool.services.ports.store import ChangeSet, WorkloadFilter
from gpupool.services.state.client_binding import ClientBindings
from gpupool.services.state.mirror import Draft
from gpupool.services.workloads.leases import LeaseService
from gpupool.services.workloads.output import OutputService
from gpupool.services.workloads.submission import SubmissionService
from gpupool.specs.request import WorkloadRequest

STOP_ALL_BUDGET_S = 1.0  # time for one call of ``stop_everything``
STOP_BATCH = 200  # workloads in one write
EXPIRY_INTERVAL_S = 5.0
EXPIRY_BATCH = 500  # workloads in one read
_FINAL = tuple(state for state in WorkloadState if state.final)

log = structlog.get_logger("gpupool.workloads")


class WaitFor(StrEnum):
    """The event to wait for: started (or ended), or ended."""

    STARTED = "started"
    FINISHED = "finished"


class WorkloadService:
    """Operations on workloads; each takes the actor and raises FORBIDDEN if the actor may not do it."""

    def __init__(
        self,
        engine: Engine,
        lookup: Lookup,
        permissions: Permissions,
        bound: ClientBindings,
        submission: SubmissionService,
        obstacles: Obstacles,
    ) -> None:
        self._engine = engine
        self._lookup = lookup
        self._permissions = permissions
        self._bound = bound
        self.submission = submission
        self.output = OutputService(engine, lookup, permissions)
        self.wait_reasons = WaitReasonService(engine, lookup, obstacles)
        self.reason_cache = WaitReasonCache(self.wait_reasons, lookup, engine.ports.clock.monotonic)
        self.queue = QueueService(engine)
        self.current_leases = LeaseService(engine)
        self.unrecorded_stops = UnrecordedStops(engine)

    async def submit(self, actor: Actor, request: WorkloadRequest) -> tuple[Workload, bool]:
        """Store a workload; the flag is True if it is new."""
        return await self.submission.submit(actor, request)

    async def get(self, actor: Actor, ref: str) -> Workload:
        """Return a workload by id or name; raises UNKNOWN_WORKLOAD."""
        return await self._lookup.workload(actor, ref)

    async def dependency_names(self, actor: Actor, workload: Workload) -> dict[str, str]:
        """Return the names of the workloads that must end first, by id; deleted ones are missing."""
        names = dict[str, str]()
        for dependency in workload.after:
            with contextlib.suppress(GpupoolError):
                names[dependency.workload] = (await self._lookup.workload(actor, dependency.workload)).name
        return names

    async def list(self, actor: Actor, wanted: WorkloadFilter) -> Sequence[Workload]:
        """Return one page of a listing. All users see all workloads, without private fields."""
        if can_list_live(wanted):
            return list_live(self._engine.mirror, wanted)
        try:
            return await self._engine.ports.store.list_workloads(self._for_actor(actor, wanted))
        except GpupoolError as error:
            if not is_outage(error) or wanted.search:
                raise
            return list_live(self._engine.mirror, wanted)

    async def count(self, actor: Actor, wanted: WorkloadFilter) -> int:
        """Return the number of workloads on all pages of a listing."""
        try:
            return await self._engine.ports.store.count_workloads(self._for_actor(actor, wanted))
        except GpupoolError as error:
            if not is_outage(error) or wanted.search:
                raise
            return len(
                list_live(self._engine.mirror, replace(wanted, offset=0, limit=len(self._engine.mirror.workloads)))
            )

    def _for_actor(self, actor: Actor, wanted: WorkloadFilter) -> WorkloadFilter:
        return replace(wanted, commands_of=self._permissions.commands_of(actor), now=self.now())

    def now(self) -> float:
        """Return the pool's time in seconds since the epoch, from which ages and remaining times are computed."""
        return self._engine.ports.clock.now()

    async def counts(self) -> dict[WorkloadState, int]:
        """Return the number of live workloads by state."""
        return Counter(workload.state for workload in self._engine.mirror.workloads.values())

    async def replicas_of(self, workload: Workload) -> Sequence[Replica]:
        """Return all replicas, sorted by index."""
        return await self._lookup.replicas(workload)

    async def leases_of(self, workload: Workload) -> Sequence[GpuLease]:
        """Return current leases, or all leases of a workload that has ended."""
        return await self._lookup.leases(workload)

    def can_see(self, actor: Actor, workload: Workload) -> bool:
        """Return True if the actor may see command, environment and output."""
        return self._permissions.can_see(actor, workload)

    def managed_projects(self, actor: Actor) -> tuple[str, ...]:
        """Return the projects whose workloads a manager may manage; none for other roles."""
        return self._permissions.managed_projects(actor)

    def can_manage(self, actor: Actor, workload: Workload) -> bool:
        """Return True if the actor may stop or change it."""
        return self._permissions.can_manage(actor, workload)

    def attach_path(self, workload: Workload, index: int) -> str:
        """Return the socket of a placed replica's shepherd; empty if unknown."""
        replica = self._engine.mirror.replica(workload.id, index)
        return self._engine.attach_paths.get(replica.key, "") if replica is not None else ""

    # Waiting

    async def wait(
        self, actor: Actor, ref: str, *, until: WaitFor, timeout_s: float, index: int = 0, bound: bool = False
    ) -> Workload:
        """Wait up to ``timeout_s`` until it has started or ended; return its state then.

        ``bound``: the caller is the client that a client-bound workload depends on.
        """
        workload = await self._lookup.workload(actor, ref)
        if workload.state.final:
            return workload
        reached = self._reached(workload, WaitFor(until), index)
        if bound and self.can_manage(actor, workload):
            with self._bound.waiting(workload.id):
                await self._engine.wait_for_change(workload.id, timeout_s, reached)
        else:
            await self._engine.wait_for_change(workload.id, timeout_s, reached)
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
        """Explain the state of a workload; with ``foretell`` with an estimate of its start, which can take long."""
        return await self.wait_reasons.why(await self._lookup.workload(actor, ref), index, foretell=foretell)

    # Changes

    async def stop(
        self, actor: Actor, ref: str, *, grace_s: float | None = None, force: bool = False, index: int | None = None
    ) -> Workload:
        """Stop a workload or one replica: TERM, grace period, KILL; with ``force`` KILL at once."""
        workload = await self._managed(actor, ref)
        grace = 0.0 if force else grace_s
        reason, sentence = _stop_reason(workload, actor.user)

        def build(draft: Draft) -> None:
            now = draft.workload(workload.id)
            if now is None or now.state.final:
                return
            draft.note(_requested(draft, actor, reason, workload, index))
            if index is None:
                transitions.stop_all(draft, now, reason, grace, sentence, actor.user)
                return
            replica = draft.replica(workload.id, index)
            if replica is None:
                raise GpupoolError(ErrorCode.NOT_FOUND, f"{workload.name} has no replica {index}.", "See `describe`.")
            transitions.stop(draft, now, replica, reason, grace, sentence, actor.user)

        try:
            await self._engine.transact(build)
        except GpupoolError as error:
            if not is_outage(error):
                raise
            wait = workload.limits.grace_s if grace is None else grace
            summary = await self.unrecorded_stops.stop(workload, index, wait, build)
            raise GpupoolError(error.code, f"{workload.name}: {summary}.", error.message) from error
        return await self._lookup.workload(actor, workload.id)

    async def stop_everything(self, actor: Actor, within_s: float = STOP_ALL_BUDGET_S) -> int:
        """Stop all live workloads of all users, for administrators; return the number left.

        Each write stops a batch, and no batch begins after ``within_s``: call again while workloads are left. Queued
        workloads are stopped first, so that they do not start on GPUs that others release.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        until = self._engine.ports.clock.monotonic() + within_s
        left = self._not_stopped()
        while left:
            await self._engine.transact(partial(_stop_some, left[:STOP_BATCH], actor.user))
            left = self._not_stopped()
            if self._engine.ports.clock.monotonic() >= until:
                break
        return len(left)

    def _not_stopped(self) -> Sequence[Workload]:
        live = [each for each in self._engine.mirror.workloads.values() if each.stop_reason is None]
        return sorted(live, key=lambda each: each.state is not WorkloadState.QUEUED)

    async def suspend(self, actor: Actor, ref: str) -> Workload:
        """Stop running replicas and keep the workload out of the queue until it is resumed."""
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
            draft.note(_requested(draft, actor, Reason.SUSPENDED_BY_USER, workload))
            for replica in list(draft.replicas(workload.id)):
                transitions.stop(
                    draft, now, replica, Reason.SUSPENDED_BY_USER, sentence=f"suspended by {actor.user}", by=actor.user
                )

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def restart(
        self,
        actor: Actor,
        ref: str,
        *,
        index: int | None = None,
        attempt: int | None = None,
        grace_s: float | None = None,
        force: bool = False,
    ) -> Workload:
        """Stop programs and start them again on the same GPUs, without a new wait in the queue.

        Restarts all placed replicas, or replica ``index``. With ``attempt`` a replica is restarted only if that is its
        present attempt, so a repeated request has no further effect. Other programs on the same GPUs end.
        """
        workload = await self._managed(actor, ref)
        if (obstacle := restart_obstacle(workload)) is not None:
            problem, action = obstacle
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{workload.name} cannot be restarted: it {problem}.", action)

        def build(draft: Draft) -> None:
            now = self._live(draft, workload)
            chosen = [row for row in draft.replicas(workload.id) if index in {None, row.index}]
            if not chosen:
                raise GpupoolError(ErrorCode.NOT_FOUND, f"{workload.name} has no replica {index}.", "See `describe`.")
            if attempt is not None and all(row.attempt > attempt for row in chosen):
                return
            chosen = [row for row in chosen if _may_restart(now, row) and attempt in {None, row.attempt}]
            if not chosen:
                raise GpupoolError(
                    ErrorCode.WRONG_STATE,
                    f"{workload.name} has no running program to restart: it is {now.state}.",
                    f"See `gpupool why {workload.name}`.",
                )
            draft.note(_requested(draft, actor, Reason.RESTARTED_BY_USER, workload, index))
            for row in chosen:
                transitions.restart(draft, now, row, 0.0 if force else grace_s, f"restarted by {actor.user}")

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
            draft.note(_requested(draft, actor, Reason.RESUMED_BY_USER, workload))

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
        """Extend a lease by ``seconds``."""
        workload = await self._managed(actor, ref)

        def build(draft: Draft) -> None:
            now = self._live(draft, workload)
            if now.kind is not WorkloadKind.LEASE or now.expires_at is None:
                raise GpupoolError(
                    ErrorCode.WRONG_STATE,
                    f"{workload.name} has no expiry time.",
                    "Only current leases with a lifetime can be extended.",
                )
            until = now.expires_at + seconds
            if not draft.now < until <= draft.now + MAX_DURATION_S:
                raise GpupoolError(
                    ErrorCode.INVALID_DURATION,
                    f"The new expiry of {workload.name} must be within {format_duration(MAX_DURATION_S)}.",
                    "Give another duration.",
                )
            draft.put_workload(replace(now, expires_at=until))
            sentence = f"extended by {format_duration(seconds)}"
            draft.note(Event(draft.now, actor.user, Reason.EXTENDED, sentence, workload.id))

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def set_priority(self, actor: Actor, ref: str, priority: int) -> Workload:
        """Change the priority of a waiting workload in its project; its queue time is unchanged.

        Raises OVER_LIMIT if a member chooses a priority above the limit of the project.
        """
        workload = await self._managed(actor, ref)
        self.submission.check_priority(actor, workload.project, priority)

        def build(draft: Draft) -> None:
            now = self._live(draft, workload)
            if not any(replica.state is ReplicaState.PENDING for replica in draft.replicas(workload.id)):
                raise GpupoolError(
                    ErrorCode.WRONG_STATE, f"{workload.name} is {now.state}: no replica is queued.", "See `gpupool ps`."
                )
            if now.priority == priority:
                return
            draft.put_workload(replace(now, priority=priority))
            sentence = f"priority {now.priority} -> {priority}"
            draft.note(Event(draft.now, actor.user, Reason.CHANGED, sentence, workload.id))

        await self._engine.transact(build)
        return await self._lookup.workload(actor, workload.id)

    async def delete(self, actor: Actor, ref: str) -> None:
        """Delete a workload that has ended, with its output."""
        workload = await self._managed(actor, ref)
        if not workload.state.final:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{workload.name} is {workload.state}.", f"Stop it: `gpupool stop {ref}`."
            )
        replicas = await self._lookup.replicas(workload)

        async def build(draft: Draft) -> None:
            found = await self._engine.ports.store.get_workload(workload.id)
            if found is not None and found.deleted_at is None:  # not deleted by another request
                draft.put_final(replace(found, deleted_at=draft.now, version=found.version + 1))
                draft.note(_requested(draft, actor, Reason.DELETED_BY_USER, workload))

        await self._engine.transact_slow(build)
        await self._delete_output(workload, replicas)

    async def _delete_output(self, workload: Workload, replicas: Sequence[Replica]) -> None:
        for row in replicas:
            for attempt in range(1, row.attempt + 1):
                node = await self._lookup.node_of(workload, row, attempt)
                with contextlib.suppress(GpupoolError):  # an unreachable node deletes it when it is old
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


class ExpiryLoop:
    """Deletes expired workloads; reads them from the database when one may have expired, and once after a restart."""

    def __init__(self, engine: Engine, workloads: WorkloadService) -> None:
        self._engine = engine
        self._workloads = workloads
        self._actor = Actor(POOL, Role.ADMIN, "ttl")
        self._next_at = -inf  # when the next workload expires
        engine.on_commit(self._note)

    def _note(self, changes: ChangeSet) -> None:
        ended = (each for each in changes.workloads if each.state.final and each.deleted_at is None)
        self._next_at = min([self._next_at, *map(_expires_at, ended)])

    async def run(self) -> None:
        """Run for ever."""
        while True:
            await self._engine.ports.sleep(EXPIRY_INTERVAL_S)
            try:
                await self.delete_expired()
            except GpupoolError as error:
                log.warning("could not delete ended workloads", code=error.code)

    async def delete_expired(self) -> None:
        """Delete ended workloads whose time to live has passed."""
        now = self._engine.ports.clock.now()
        if now < self._next_at:
            return
        self._next_at, left = inf, [-inf]  # if the database cannot be read, the next call reads it again
        try:
            left = [expires_at async for expires_at in self._delete_all(now)]
        finally:
            self._next_at = min([self._next_at, *left])

    async def _delete_all(self, now: float) -> AsyncIterator[float]:
        """Delete what has expired; yield when the others expire."""
        wanted = WorkloadFilter(states=_FINAL, labels=((TTL_LABEL, "yes"),), limit=EXPIRY_BATCH)
        while found := await self._engine.ports.store.list_workloads(wanted):
            for workload in found:
                if now < _expires_at(workload) or not await self._delete(workload):
                    yield _expires_at(workload)
            wanted = replace(wanted, before=(found[-1].created_at, found[-1].id))

    async def _delete(self, workload: Workload) -> bool:
        try:
            await self._workloads.delete(self._actor, workload.id)
        except GpupoolError as error:  # the others are still deleted
            log.warning("could not delete an ended workload", workload=workload.id, code=error.code)
            return False
        return True


def _expires_at(workload: Workload) -> float:
    """Return when an ended workload is deleted; infinity for one without a time to live."""
    ttl_s, ended = workload.limits.ttl_s, workload.finished_at
    return inf if ttl_s is None or ended is None else ended + ttl_s


def _stop_some(workloads: Sequence[Workload], user: str, draft: Draft) -> None:
    for workload in workloads:
        reason, sentence = _stop_reason(workload, user)
        transitions.stop_all(draft, draft.workload(workload.id) or workload, reason, sentence=sentence, by=user)


def _stop_reason(workload: Workload, user: str) -> tuple[Reason, str]:
    """Return the code and the sentence of a stop that a user requests."""
    if workload.kind is WorkloadKind.LEASE:
        return Reason.RELEASED, f"released by {user}"
    return Reason.STOPPED_BY_USER, f"stopped by {user}"


def restart_obstacle(workload: Workload) -> tuple[str, str] | None:
    """Return why the programs of a workload cannot be restarted in place, and what to do instead; None: they can."""
    if workload.kind is WorkloadKind.LEASE:
        return "is a lease without a program of its own", "Restart the program that you started on it."
    if workload.kind is WorkloadKind.EXEC:
        return "runs on the GPUs of another workload", "Run it again with `gpupool exec`."
    if workload.program.client_bound:
        return "ends with the command that started it", "Run that command again."
    if workload.gang is not None:
        return "is a gang, whose members start together", "Suspend and resume it."
    return None


def _may_restart(workload: Workload, replica: Replica) -> bool:
    stopped_otherwise = workload.stop_reason is not None or workload.suspended
    return (
        replica.state.placed
        and not stopped_otherwise
        and (replica.state is not ReplicaState.STOPPING or lifecycle.keeps_place(replica))
    )


def _requested(draft: Draft, actor: Actor, reason: Reason, workload: Workload, index: int | None = None) -> Event:
    return Event(draft.now, actor.user, reason, f"requested by {actor.user}", workload.id, index)
