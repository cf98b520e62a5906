"""Background loops: scheduling after each change, and checks of time limits once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.units import WHOLE_GPU, format_duration
from gpupool.domain.work import lifecycle
from gpupool.domain.work.lifecycle import POOL, grant_gpus, grant_lease
from gpupool.domain.work.workload import (
    LAZY_GPUS,
    GpuLease,
    Replica,
    ReplicaState,
    Workload,
    WorkloadKind,
    holder_index,
)
from gpupool.scheduling.values import Eviction, Grant
from gpupool.services.control.engine import Engine
from gpupool.services.lifecycle import reserved_gpus, transitions
from gpupool.services.state.client_binding import ClientBindings
from gpupool.services.state.mirror import Draft

MAX_PAUSE_S = 0.02  # between two cycles; events that arrive in between are handled by one cycle
TICK_S = 1.0
WORKLOADS_PER_TICK = 1_000  # in a very large pool limits are enforced some seconds late
IDLE_WARNING_FRACTION = 0.8  # of the idle limit, after which the user is warned
SUSPENSION_TIMEOUT_S = 150.0  # after its grace period: the memory of a large GPU is copied in a minute
CLIENT_TIMEOUT_S = 15.0  # a queued client-bound workload is stopped when its client is silent for longer

log = structlog.get_logger("gpupool.scheduling_loop")


class SchedulingLoop:
    """Runs the scheduler after each change and writes its decisions; calls ``on_cycle`` with the seconds of each.

    While ``yielding`` returns True, GPUs are about to become free, and requests that do not wait are not given up.
    """

    def __init__(self, engine: Engine, on_cycle: Callable[[float], None], yielding: Callable[[], bool]) -> None:
        self._engine = engine
        self._on_cycle = on_cycle
        self._yielding = yielding
        self._impatient: tuple[WorkloadId, ...] = ()

    async def run(self) -> None:
        """Run for ever; the first event of a burst is handled at once, the rest together."""
        while True:
            await self._engine.work.wait()
            self._engine.work.clear()
            began = self._engine.ports.clock.monotonic()
            try:
                # Read before deciding: each gets one cycle first.
                self._impatient = () if self._yielding() else self._engine.feed.impatient()
                if self._engine.mirror.reservations:
                    await self._engine.transact(self._settle_reservations)
                if self._engine.feed.has_pending():
                    await self._engine.transact(self._decide)
                await self._engine.transact(self._stop_hopeless)
            except GpupoolError as error:
                log.warning("could not write decisions", code=error.code)
                self._engine.feed.invalidate()
                self._engine.work.set()
                await asyncio.sleep(TICK_S)
            took_s = self._engine.ports.clock.monotonic() - began
            self._on_cycle(took_s)
            # Pause for as long as the cycle took: a small pool answers at once, a large one is not always scheduling.
            await asyncio.sleep(min(MAX_PAUSE_S, took_s))

    def _settle_reservations(self, draft: Draft) -> None:
        reserved_gpus.settle(draft, self._engine.mirror, self._engine.feed.may_start_on)

    def _decide(self, draft: Draft) -> None:
        decisions = self._engine.feed.decide(draft.now)
        if decisions.more:
            self._engine.work.set()
        unknown = {grant.workload for grant in decisions.grants if not _waits(draft, grant)}
        if unknown:
            self._engine.feed.invalidate()  # the scheduler and the mirror disagree: rebuild it
        for grant in decisions.grants:
            workload = draft.workload(grant.workload)
            replica = draft.replica(grant.workload, holder_index(grant.index))
            if workload is None or replica is None or grant.workload in unknown:
                continue  # skip the whole workload: its members may be a gang
            if grant.index == LAZY_GPUS:
                self._grant_gpus(draft, workload, replica, grant)
                continue
            if reserved_gpus.holds_for(draft, workload):
                self._engine.feed.invalidate()  # it was queued since: the next cycle gives it its own GPUs
                self._engine.work.set()
                continue
            self._grant(draft, workload, replica, grant)
            lifetime_s = workload.limits.max_time_s
            if workload.kind is WorkloadKind.LEASE and lifetime_s is not None:
                draft.put_workload(replace(workload, expires_at=draft.now + lifetime_s))
        for eviction in decisions.evictions:
            self._evict(draft, eviction)

    def _grant(self, draft: Draft, workload: Workload, replica: Replica, grant: Grant) -> None:
        """Write the lease of a replica that starts, and that of its GPUs if they have one of their own."""
        epoch = draft.next_epoch()
        fence_after_s = self._engine.feed.fence_after_s(workload, grant.node)
        lease = replace(lease_of(epoch, workload, replica, grant, draft.now), fence_after_s=fence_after_s)
        gpus: Epoch | None = None
        if grant.shares and workload.limits.separate_gpus:
            gpus = draft.next_epoch()
            draft.put_lease(replace(lease, epoch=gpus, index=LAZY_GPUS, cpus=0.0, memory_mib=0))
            lease = replace(lease, shares=())
        draft.put_lease(lease)
        draft.take(grant_lease(workload, replica, epoch, grant.node, draft.now, gpus))

    def _grant_gpus(self, draft: Draft, workload: Workload, replica: Replica, grant: Grant) -> None:
        """Write the lease of the GPUs that a running replica waits for, in addition to that of its place."""
        epoch, place = draft.next_epoch(), draft.lease(replica.lease)
        lease = lease_of(epoch, workload, replica, grant, draft.now)
        fence_after_s = None if place is None else place.fence_after_s
        own = replace(lease, attempt=replica.attempt, cpus=0.0, memory_mib=0, fence_after_s=fence_after_s)
        draft.put_lease(own)
        draft.take(grant_gpus(workload, replica, epoch, draft.now))

    def _evict(self, draft: Draft, eviction: Eviction) -> None:
        workload = draft.workload(eviction.workload)
        replica = draft.replica(eviction.workload, holder_index(eviction.index))
        if workload is None or replica is None or not replica.state.placed:
            return
        if eviction.index == LAZY_GPUS and workload.limits.suspendable and replica.state is ReplicaState.RUNNING:
            draft.take(lifecycle.suspend(workload, replica, eviction.reason, draft.now))
            return
        lease = self._engine.mirror.lease_of(replica)
        lost = "" if lease is None else _loss(lifecycle.unsaved_s(workload, replica, draft.now) * lease.permille)
        transitions.stop(draft, workload, replica, Reason.PREEMPTED, sentence=eviction.reason + lost)

    def _stop_hopeless(self, draft: Draft) -> None:
        """Stop workloads that wanted GPUs at once and got none, and those whose dependency has failed."""
        for workload_id in self._impatient:
            workload = draft.workload(workload_id)
            if workload is not None:
                _give_up_waiting(draft, workload)
        dependencies = self._engine.feed.dependencies
        for workload_id in list(dependencies.unmet):
            dependencies.unmet.discard(workload_id)
            workload = draft.workload(workload_id)
            if workload is not None:
                sentence = dependencies.failure(workload)
                transitions.stop_all(draft, workload, Reason.DEPENDENCY_FAILED, sentence=sentence)


def _loss(permille_s: float) -> str:
    """Return the sentence on the work that an eviction loses, if it is at least a hundredth of a GPU hour."""
    hours = permille_s / (WHOLE_GPU * 3600)
    return f" {hours:,.2f} GPU hours since its last checkpoint are lost unless it saves now." if hours >= 0.01 else ""


def _waits(draft: Draft, grant: Grant) -> bool:
    replica = draft.replica(grant.workload, holder_index(grant.index))
    if draft.workload(grant.workload) is None or replica is None:
        return False
    return replica.waits_for_gpus if grant.index == LAZY_GPUS else replica.state is ReplicaState.PENDING


def lease_of(epoch: Epoch, workload: Workload, replica: Replica, grant: Grant, now: float) -> GpuLease:
    """Return the lease of the next attempt of a replica, on the shares of its grant."""
    return GpuLease(
        epoch=epoch,
        workload=workload.id,
        index=grant.index,
        attempt=replica.attempt + 1,
        project=workload.project,
        user=workload.user,
        node=grant.node,
        shares=grant.shares,
        cpus=workload.counted_cpus(replica.index),
        memory_mib=workload.memory_of(replica.index) or 0,
        granted_at=now,
        sharing=grant.sharing,
        compute=workload.compute,
    )


def _give_up_waiting(draft: Draft, workload: Workload) -> None:
    waited = format_duration(draft.now - workload.created_at)
    for replica in list(draft.replicas(workload.id)):
        if replica.state is ReplicaState.PENDING and replica.attempt == 0:
            sentence = f"no GPU was free for it within {waited}"
            transitions.stop(draft, workload, replica, Reason.WAIT_EXPIRED, sentence=sentence)


class LimitChecker:
    """Enforces queue time limits, idle limits, lease ends, time windows and lost clients, once a second."""

    def __init__(self, engine: Engine, bound: ClientBindings) -> None:
        self._engine = engine
        self._bound = bound
        self._ticks = 0
        self._warned_at: dict[str, float] = {}  # time of the idle warning by attempt key

    async def run(self) -> None:
        """Run for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            if not self._engine.mirror.workloads:
                continue
            self._ticks += 1
            try:
                await self._engine.transact(self._check)
            except GpupoolError as error:
                log.warning("tick failed", code=error.code, message=error.message)
            if self._engine.feed.has_pending():
                self._engine.work.set()

    def _check(self, draft: Draft) -> None:
        """Check up to ``WORKLOADS_PER_TICK`` workloads; larger pools are split into parts, one for each tick."""
        workloads = list(self._engine.mirror.workloads.values())
        parts = -(-len(workloads) // WORKLOADS_PER_TICK)
        for workload in workloads[self._ticks % parts :: parts] if parts else ():
            self._check_wait(draft, workload)
            self._check_client(draft, workload)
            if workload.kind is WorkloadKind.LEASE:
                self._check_expiry(draft, workload)
            self._check_window(draft, workload)
            if workload.limits.suspendable:
                self._check_suspension(draft, workload)
            if workload.limits.idle_timeout_s is not None:
                self._check_idle(draft, workload, workload.limits.idle_timeout_s)

    def _check_wait(self, draft: Draft, workload: Workload) -> None:
        limit = workload.limits.wait_s
        waiting = self._engine.mirror.counts[workload.id][ReplicaState.PENDING]
        if waiting and limit is not None and limit > 0 and draft.now > workload.created_at + limit:
            _give_up_waiting(draft, workload)

    def _check_client(self, draft: Draft, workload: Workload) -> None:
        if not workload.program.client_bound or not self._engine.mirror.counts[workload.id][ReplicaState.PENDING]:
            return
        if self._bound.silent_for_s(workload.id) > CLIENT_TIMEOUT_S:
            sentence = "the command that started it has ended or lost its connection"
            transitions.stop_all(draft, workload, Reason.CLIENT_GONE, sentence=sentence)
            self._bound.forget(workload.id)

    def _check_expiry(self, draft: Draft, workload: Workload) -> None:
        held = workload.started_at is not None and workload.stop_reason is None
        if held and workload.expires_at is not None and draft.now > workload.expires_at:
            held_s = workload.expires_at - (workload.started_at or workload.created_at)
            sentence = f"reached the end of its lease after {format_duration(held_s)}"
            transitions.stop_all(draft, workload, Reason.EXPIRED, sentence=sentence)

    def _check_window(self, draft: Draft, workload: Workload) -> None:
        if not self._engine.feed.windows.may_close_on(workload):
            return
        for replica in list(draft.replicas(workload.id)):
            if replica.state not in {ReplicaState.RUNNING, ReplicaState.STARTING}:
                continue
            lease = self._engine.mirror.leases.get(replica.lease or Epoch(0))
            if lease is not None and self._engine.feed.windows.closed_on(workload, lease.granted_at, draft.now):
                sentence = f"its time window has closed; it {self._engine.feed.windows.note(workload)}"
                transitions.stop(draft, workload, replica, Reason.WINDOW_CLOSED, sentence=sentence)

    def _check_suspension(self, draft: Draft, workload: Workload) -> None:
        """Stop what its node has not suspended in time, so that the work for which it was preempted can start."""
        for replica in list(draft.replicas(workload.id)):
            asked_at = replica.suspend_asked_at
            if asked_at is not None and draft.now > asked_at + workload.limits.grace_s + SUSPENSION_TIMEOUT_S:
                sentence = "preempted, and its node did not suspend it in time"
                transitions.stop(draft, workload, replica, Reason.PREEMPTED, sentence=sentence)

    def _check_idle(self, draft: Draft, workload: Workload, limit_s: float) -> None:
        for replica in list(draft.replicas(workload.id)):
            if replica.state is not ReplicaState.RUNNING:
                continue
            if workload.limits.separate_gpus and replica.gpu_lease is None:
                continue
            idle_s = draft.now - self._engine.last_active(workload, replica, draft.now)
            if idle_s <= limit_s * IDLE_WARNING_FRACTION:
                if replica.idle_warned:
                    self._withdraw_warning(draft, workload, replica)
            elif not replica.idle_warned:
                self._warn(draft, workload, replica, idle_s, limit_s)
            elif idle_s > limit_s and self._warned_for_s(replica, draft.now) >= limit_s * (1 - IDLE_WARNING_FRACTION):
                sentence = f"idle for {format_duration(idle_s)}; the limit is {format_duration(limit_s)}"
                transitions.stop(draft, workload, replica, Reason.IDLE_LIMIT, sentence=sentence)
                self._warned_at.pop(replica.key, None)

    def _warned_for_s(self, replica: Replica, now: float) -> float:
        """Return the seconds since the warning; after an outage, that is less than the idle time."""
        return now - self._warned_at.setdefault(replica.key, now)

    def _warn(self, draft: Draft, workload: Workload, replica: Replica, idle_s: float, limit_s: float) -> None:
        sentence = f"idle for {format_duration(idle_s)}; GPUs are released after {format_duration(limit_s)}"
        draft.note(Event(draft.now, POOL, Reason.IDLE_WARNING, sentence, replica.workload, replica.index))
        draft.put_replica(replace(replica, idle_warned=True))
        self._warned_at[replica.key] = draft.now
        until = draft.now + limit_s - min(idle_s, limit_s * IDLE_WARNING_FRACTION)
        notice = {"reason": Reason.IDLE_WARNING.value, "message": sentence, "deadline": until}
        transitions.notify(draft, workload, replica, notice)

    def _withdraw_warning(self, draft: Draft, workload: Workload, replica: Replica) -> None:
        draft.put_replica(replace(replica, idle_warned=False))
        self._warned_at.pop(replica.key, None)
        transitions.notify(draft, workload, replica, None)
