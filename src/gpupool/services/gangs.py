"""Gangs over their nodes: where the members find each other, and what the end of one means for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from gpupool.distributed import telling
from gpupool.distributed.outcome import Verdict, verdict
from gpupool.domain import lifecycle
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.wiring import Seat, Wiring
from gpupool.domain.workload import OnMemberEnd, Replica, ReplicaState, RestartPolicy, Workload
from gpupool.services.mirror import Draft, Mirror
from gpupool.services.nodebook import NodeBook
from gpupool.services.ports import Fabric

SECRET_BITS = 128
_STARTS = frozenset({ReplicaState.STARTING, ReplicaState.RUNNING})

Transact = Callable[[Callable[[Draft], None]], Awaitable[None]]


class NotNowError(Exception):
    """A member cannot start yet: what it needs of others is not known; it is tried again soon."""


@dataclass(frozen=True, slots=True)
class World:
    """What wiring needs of the pool."""

    mirror: Mirror
    nodes: NodeBook
    fabric: Fabric
    random_bits: Callable[[int], int]
    transact: Transact


class GangWiring:
    """Gives the members of a gang their seats before they start; the database has them before anybody is told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._locks: WeakValueDictionary[WorkloadId, asyncio.Lock] = WeakValueDictionary()

    async def ready(self, workload: Workload, replica: Replica) -> bool:
        """Whether a member has its seat in the present round; False: it is not to start at all.

        Raises ``NotNowError`` when a node cannot be asked, ``GpupoolError`` when a member can never have what it needs.
        """
        if workload.framework is None:
            return True
        lock = self._locks.setdefault(workload.id, asyncio.Lock())
        async with lock:
            return await self._seat(workload.id, replica)

    async def _seat(self, workload_id: WorkloadId, replica: Replica) -> bool:
        workload = self._world.mirror.workloads.get(workload_id)
        now = self._world.mirror.replica(workload_id, replica.index)
        if workload is None or now is None or now.attempt != replica.attempt:
            return False
        if workload.wiring is not None and workload.wiring.has(now.index, now.attempt):
            return True
        if now.state is not ReplicaState.STARTING:
            return False
        return await self._form(workload, now)

    async def _form(self, workload: Workload, newcomer: Replica) -> bool:
        """Seats for all that start, in a new round or in the one that has begun."""
        old, here = workload.wiring, self._present(workload)
        seated = [r for r in here if old is not None and old.has(r.index, r.attempt)]
        fresh = [r for r in here if r not in seated]
        seats = [await self._take_seat(workload, r) for r in fresh]
        if old is not None and seated:
            if not all(telling.may_join(workload, old, s.index, s.address, s.ports) for s in seats):
                await self._world.transact(lambda draft: begin_again(draft, workload.id, newcomer, "joins"))
                return False
            kept = [old.seat_of(r.index) for r in seated]
            wiring = replace(old, seats=_ordered([*(s for s in kept if s is not None), *seats]))
        else:
            wiring = Wiring(1 if old is None else old.round + 1, _ordered(seats), self._secret())
        attempts = {seat.index: seat.attempt for seat in wiring.seats}
        await self._world.transact(lambda draft: _write(draft, workload.id, wiring, attempts))
        now = self._world.mirror.workloads.get(workload.id)
        return now is not None and now.wiring is not None and now.wiring.has(newcomer.index, newcomer.attempt)

    def _present(self, workload: Workload) -> list[Replica]:
        rows = self._world.mirror.replicas.get(workload.id, {})
        return [rows[index] for index in sorted(rows) if rows[index].state in _STARTS]

    async def _take_seat(self, workload: Workload, replica: Replica) -> Seat:
        node = self._world.nodes.find(replica.node or "")
        if node is None:
            raise NotNowError(f"node {replica.node} is not known")
        old = workload.wiring.seat_of(replica.index) if workload.wiring is not None else None
        address, wanted = node.report.address, old.ports if old is not None and old.node == replica.node else ()
        count = telling.ports_needed(workload, replica.index)
        try:
            link = self._world.fabric.link(node.name)
            ports, interface = await link.reserve_ports(replica.key, address, count, wanted)
        except GpupoolError as error:
            if error.code is ErrorCode.NODE_UNREACHABLE:
                raise NotNowError(error.message) from error
            raise
        return Seat(replica.index, replica.attempt, node.name, address, ports, interface)

    def _secret(self) -> str:
        return f"{self._world.random_bits(SECRET_BITS):032x}"


def _ordered(seats: list[Seat]) -> tuple[Seat, ...]:
    return tuple(sorted(seats, key=lambda seat: seat.index))


def _write(draft: Draft, workload_id: WorkloadId, wiring: Wiring, attempts: dict[int, int]) -> None:
    """Unless somebody has gone meanwhile: then what follows from that comes first."""
    workload = draft.workload(workload_id)
    rows = [draft.replica(workload_id, index) for index in attempts]
    there = all(r is not None and r.attempt == attempts[r.index] and r.state in _STARTS for r in rows)
    if workload is not None and there:
        draft.put_workload(replace(workload, wiring=replace(wiring, formed_at=wiring.formed_at or draft.now)))


# What the end of a member means


def as_member(workload: Workload, index: int) -> Workload:
    """The workload as it is for one member: with its role's restart policy, and none where its loss is final."""
    if workload.gang is None:
        return workload
    policy = workload.restart_of(index)
    if workload.on_member_end is OnMemberEnd.FAIL:
        policy = RestartPolicy.NEVER
    return (
        workload if policy is workload.retry.policy else replace(workload, retry=replace(workload.retry, policy=policy))
    )


def after_end(draft: Draft, workload: Workload, member: Replica) -> None:
    """Do to the other members what the end of one means for them."""
    if member.state is ReplicaState.PENDING and member.reason is Reason.GANG_RESTART:
        _wait_as_long(draft, member)
    decided = verdict(workload, member, list(draft.replicas(workload.id)))
    if decided is Verdict.RESTART:
        begin_again(draft, workload.id, member, member.message or str(member.reason).lower())
    elif decided is Verdict.GIVE_UP:
        sentence = f"{member.message}; no try is left of {workload.retry.backoff_limit}"
        draft.take(lifecycle.stop(workload, member, Reason.BACKOFF_EXHAUSTED, draft.now, sentence=sentence))
        _end_all(draft, workload, Reason.GANG_INCOMPLETE, f"{workload.member_name(member.index)}: {sentence}")
    elif decided is Verdict.DONE:
        _end_all(draft, workload, Reason.GANG_DONE, "what it was there for is done")


def _wait_as_long(draft: Draft, member: Replica) -> None:
    """As whoever failed: they start together."""
    waiting = (each for each in draft.replicas(member.workload) if each.state is ReplicaState.PENDING)
    draft.put_replica(replace(member, not_before=max(each.not_before for each in waiting)))


def _end_all(draft: Draft, workload: Workload, reason: Reason, sentence: str) -> None:
    marked = replace(workload, stop_reason=reason)
    draft.put_workload(marked)
    for each in list(draft.replicas(workload.id)):
        draft.take(lifecycle.stop(marked, each, reason, draft.now, None, sentence))


def begin_again(draft: Draft, workload_id: WorkloadId, member: Replica, what: str) -> None:
    """All members end what they do and wait to start together; those that have succeeded wait too."""
    workload = draft.workload(workload_id)
    if workload is None or workload.stop_reason is not None:
        return
    sentence = f"{workload.member_name(member.index)}: {what}; all start again together"
    for each in list(draft.replicas(workload_id)):
        if each.state is ReplicaState.SUCCEEDED:
            draft.take(lifecycle.once_more(each, sentence, draft.now))
        elif each.state in _STARTS:
            draft.take(lifecycle.stop(workload, each, Reason.GANG_RESTART, draft.now, None, sentence))
