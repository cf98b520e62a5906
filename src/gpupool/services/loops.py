"""What goes on by itself: scheduling when something changed, and once a second whatever depends on time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from gpupool.domain import lifecycle
from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.lifecycle import POOL, granted
from gpupool.domain.units import format_duration
from gpupool.domain.workload import Lease, Replica, ReplicaState, Workload, WorkloadKind
from gpupool.scheduling.values import Eviction, Grant
from gpupool.services import transitions
from gpupool.services.bound import BoundClients
from gpupool.services.engine import Engine
from gpupool.services.holdings import last_active
from gpupool.services.mirror import Draft

LONGEST_PAUSE_S = 0.02  # between two cycles; events that come meanwhile are decided together
TICK_S = 1.0
LOOKS_AT_ONCE = 1_000  # workloads looked at in one tick: in a very large pool limits strike some seconds later
IDLE_WARNING_AT = 0.8  # part of the idle limit after which the holder is warned
BOUND_GRACE_S = 15.0  # a queued client-bound workload whose client is silent for so long is given up

log = structlog.get_logger("gpupool.loops")


class SchedulingLoop:
    """Asks the scheduler whenever something changed and writes what it decides; ``took`` hears the seconds of each."""

    def __init__(self, engine: Engine, took: Callable[[float], None] = lambda _seconds: None) -> None:
        self._engine = engine
        self._took = took
        self._impatient: tuple[WorkloadId, ...] = ()

    async def run(self) -> None:
        """For ever; the first event of a burst is decided at once, the rest together."""
        while True:
            await self._engine.work.wait()
            self._engine.work.clear()
            began = self._engine.ports.clock.monotonic()
            try:
                self._impatient = self._engine.demand.impatient()  # before deciding: those get their chance first
                if self._engine.demand.has_pending():
                    await self._engine.transact(self._decide)
                await self._engine.transact(self._turn_away)
            except GpupoolError as error:
                log.warning("could not write decisions", code=error.code)
                self._engine.demand.invalidate()
                self._engine.work.set()
                await asyncio.sleep(TICK_S)
            took_s = self._engine.ports.clock.monotonic() - began
            self._took(took_s)
            # As long a pause as the cycle took: a small pool answers at once, a large one is not kept busy deciding.
            await asyncio.sleep(min(LONGEST_PAUSE_S, took_s))

    def _decide(self, draft: Draft) -> None:
        decisions = self._engine.demand.decide(draft.now)
        if decisions.more:
            self._engine.work.set()
        epoch = self._engine.mirror.last_epoch
        unknown = {grant.workload for grant in decisions.grants if not _waits(draft, grant)}
        if unknown:
            self._engine.demand.invalidate()  # the scheduler and the mirror disagree: build it anew
        for grant in decisions.grants:
            workload = draft.workload(grant.workload)
            replica = draft.replica(grant.workload, grant.index)
            if workload is None or replica is None or grant.workload in unknown:
                continue  # all of it, for its members may belong together
            epoch = Epoch(epoch + 1)
            lease = _lease(epoch, workload, replica, grant, draft.now)
            fence_after_s = self._engine.demand.fence_after_s(workload, grant.node)
            draft.put_lease(replace(lease, fence_after_s=fence_after_s))
            draft.take(granted(workload, replica, epoch, grant.node, draft.now))
            lifetime_s = workload.limits.max_time_s
            if workload.kind is WorkloadKind.LEASE and lifetime_s is not None:
                draft.put_workload(replace(workload, expires_at=draft.now + lifetime_s))
        for eviction in decisions.evictions:
            self._evict(draft, eviction)

    def _evict(self, draft: Draft, eviction: Eviction) -> None:
        workload = draft.workload(eviction.workload)
        replica = draft.replica(*eviction.key)
        if workload is None or replica is None or not replica.state.placed:
            return
        transitions.stop(draft, workload, replica, Reason.PREEMPTED, sentence=eviction.reason)

    def _turn_away(self, draft: Draft) -> None:
        """End those who wanted GPUs now or not at all, and those who wait for what can never come."""
        for workload_id in self._impatient:
            workload = draft.workload(workload_id)
            if workload is not None:
                _give_up_waiting(draft, workload)
        for workload_id in list(self._engine.demand.dependencies.unmet):
            self._engine.demand.dependencies.unmet.discard(workload_id)
            workload = draft.workload(workload_id)
            if workload is not None:
                transitions.stop_all(draft, workload, Reason.DEPENDENCY_FAILED)


def _waits(draft: Draft, grant: Grant) -> bool:
    replica = draft.replica(grant.workload, grant.index)
    return draft.workload(grant.workload) is not None and replica is not None and replica.state is ReplicaState.PENDING


def _lease(epoch: Epoch, workload: Workload, replica: Replica, grant: Grant, now: float) -> Lease:
    return Lease(
        epoch=epoch,
        workload=workload.id,
        index=replica.index,
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
            sentence = f"no GPU came free for it in {waited}"
            transitions.stop(draft, workload, replica, Reason.WAIT_EXPIRED, sentence=sentence)


class Ticker:
    """Once a second: limits in time, idle holders, clients that went away."""

    def __init__(self, engine: Engine, bound: BoundClients) -> None:
        self._engine = engine
        self._bound = bound
        self._ticks = 0
        self._warned_at: dict[str, float] = {}  # of idleness, by attempt

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self._ticks += 1
            try:
                await self._engine.transact(self._check)
            except GpupoolError as error:
                log.warning("tick failed", code=error.code, message=error.message)
            if self._engine.demand.has_pending():
                self._engine.work.set()

    def _check(self, draft: Draft) -> None:
        """Look at the limits of ``LOOKS_AT_ONCE`` workloads, or of as many parts of them in turn as there are."""
        workloads = list(self._engine.mirror.workloads.values())
        parts = -(-len(workloads) // LOOKS_AT_ONCE)
        for workload in workloads[self._ticks % parts :: parts] if parts else ():
            self._check_wait(draft, workload)
            self._check_client(draft, workload)
            if workload.kind is WorkloadKind.LEASE:
                self._check_expiry(draft, workload)
            self._check_window(draft, workload)
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
        if self._bound.silent_for_s(workload.id) > BOUND_GRACE_S:
            transitions.stop_all(draft, workload, Reason.CLIENT_GONE)
            self._bound.forget(workload.id)

    def _check_expiry(self, draft: Draft, workload: Workload) -> None:
        held = workload.started_at is not None and workload.stop_reason is None
        if held and workload.expires_at is not None and draft.now > workload.expires_at:
            transitions.stop_all(draft, workload, Reason.EXPIRED)

    def _check_window(self, draft: Draft, workload: Workload) -> None:
        if not self._engine.demand.windows.may_close_on(workload):
            return
        for replica in list(draft.replicas(workload.id)):
            if replica.state not in {ReplicaState.RUNNING, ReplicaState.STARTING}:
                continue
            lease = self._engine.mirror.leases.get(replica.lease or Epoch(0))
            if lease is not None and self._engine.demand.windows.closed_on(workload, lease.granted_at, draft.now):
                sentence = f"its time window has closed; it {self._engine.demand.windows.note(workload)}"
                transitions.stop(draft, workload, replica, Reason.WINDOW_CLOSED, sentence=sentence)

    def _check_idle(self, draft: Draft, workload: Workload, limit_s: float) -> None:
        for replica in list(draft.replicas(workload.id)):
            if replica.state is not ReplicaState.RUNNING:
                continue
            idle_s = draft.now - last_active(self._engine, workload, replica, draft.now)
            if idle_s <= limit_s * IDLE_WARNING_AT:
                if replica.idle_warned:
                    self._take_back_warning(draft, replica)
            elif not replica.idle_warned:
                self._warn(draft, replica, idle_s, limit_s)
            elif idle_s > limit_s and self._warned_for_s(replica, draft.now) >= limit_s * (1 - IDLE_WARNING_AT):
                sentence = f"idle for {format_duration(idle_s)}; the limit is {format_duration(limit_s)}"
                transitions.stop(draft, workload, replica, Reason.IDLE_LIMIT, sentence=sentence)
                self._warned_at.pop(replica.key, None)

    def _warned_for_s(self, replica: Replica, now: float) -> float:
        """How long its holder has had since the warning: less than it has been idle, after a silence of ours."""
        return now - self._warned_at.setdefault(replica.key, now)

    def _warn(self, draft: Draft, replica: Replica, idle_s: float, limit_s: float) -> None:
        sentence = f"idle for {format_duration(idle_s)}; GPUs are taken back after {format_duration(limit_s)}"
        draft.note(Event(draft.now, POOL, Reason.IDLE_WARNING, sentence, replica.workload, replica.index))
        draft.put_replica(replace(replica, idle_warned=True))
        self._warned_at[replica.key] = draft.now
        until = draft.now + limit_s - min(idle_s, limit_s * IDLE_WARNING_AT)
        told = {"reason": Reason.IDLE_WARNING.value, "message": sentence, "deadline": until}
        draft.effects.append(lifecycle.NotifyProgram(replica, told))

    def _take_back_warning(self, draft: Draft, replica: Replica) -> None:
        draft.put_replica(replace(replica, idle_warned=False))
        self._warned_at.pop(replica.key, None)
        draft.effects.append(lifecycle.NotifyProgram(replica, None))
