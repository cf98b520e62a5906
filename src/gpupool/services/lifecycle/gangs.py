"""Gangs: the rendezvous of the members, and the effect of the end of one member on the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from gpupool.distributed import environment
from gpupool.distributed.outcome import Verdict, verdict
from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.work import lifecycle
from gpupool.domain.work.gang import MemberAddress, Rendezvous
from gpupool.domain.work.workload import OnMemberEnd, Replica, ReplicaState, RestartPolicy, Workload
from gpupool.services.ports.fabric import NOT_SENT, Fabric
from gpupool.services.state.mirror import Draft, Mirror
from gpupool.services.state.node_registry import NodeRegistry

SECRET_BITS = 128
_STARTS = frozenset({ReplicaState.STARTING, ReplicaState.RUNNING})

Transact = Callable[[Callable[[Draft], None]], Awaitable[None]]


class NotReadyError(Exception):
    """A member cannot start yet because addresses of other members are unknown; its start is retried."""


@dataclass(frozen=True, slots=True)
class GangContext:
    """The parts of the pool that forming a gang needs."""

    mirror: Mirror
    nodes: NodeRegistry
    fabric: Fabric
    random_bits: Callable[[int], int]
    transact: Transact


class GangRendezvous:
    """Assigns ranks, addresses and ports to the members of a gang; they are in the database before a member starts.

    The replica of a service is a gang of one: it gets its port in the same way.
    """

    def __init__(self, context: GangContext) -> None:
        self._context = context
        self._locks: WeakValueDictionary[WorkloadId, asyncio.Lock] = WeakValueDictionary()

    async def ready(self, workload: Workload, replica: Replica) -> bool:
        """Return True if a member has its place in the present round; with False it must not start at all.

        Raises ``NotReadyError`` if a node does not answer, ``GpupoolError`` if a member can never get what it needs.
        """
        if workload.framework is None and workload.program.serving is None:
            return True
        lock = self._locks.setdefault(workload.id, asyncio.Lock())
        async with lock:
            return await self._seat(workload.id, replica)

    async def _seat(self, workload_id: WorkloadId, replica: Replica) -> bool:
        workload = self._context.mirror.workloads.get(workload_id)
        now = self._context.mirror.replica(workload_id, replica.index)
        if workload is None or now is None or now.attempt != replica.attempt:
            return False
        if workload.wiring is not None and workload.wiring.has(now.index, now.attempt):
            return True
        if now.state is not ReplicaState.STARTING:
            return False
        return await self._form(workload, now)

    async def _form(self, workload: Workload, newcomer: Replica) -> bool:
        """Assign seats to all members that start, in a new round or in the current one."""
        old, here = workload.wiring, self._present(workload)
        seated = [r for r in here if old is not None and old.has(r.index, r.attempt)]
        fresh = [r for r in here if r not in seated]
        seats = [await self._take_seat(workload, r) for r in fresh]
        if old is not None and seated:
            if not all(environment.may_join(workload, old, s.index, s.address, s.ports) for s in seats):
                await self._context.transact(lambda draft: restart_all(draft, workload.id, newcomer, "joins"))
                return False
            kept = [old.seat_of(r.index) for r in seated]
            wiring = replace(old, seats=_ordered([*(s for s in kept if s is not None), *seats]))
        else:
            wiring = Rendezvous(1 if old is None else old.round + 1, _ordered(seats), self._secret())
        attempts = {seat.index: seat.attempt for seat in wiring.seats}
        await self._context.transact(lambda draft: _write(draft, workload.id, wiring, attempts))
        now = self._context.mirror.workloads.get(workload.id)
        return now is not None and now.wiring is not None and now.wiring.has(newcomer.index, newcomer.attempt)

    def _present(self, workload: Workload) -> list[Replica]:
        rows = self._context.mirror.replicas.get(workload.id, {})
        return [rows[index] for index in sorted(rows) if rows[index].state in _STARTS]

    async def _take_seat(self, workload: Workload, replica: Replica) -> MemberAddress:
        node = self._context.nodes.find(replica.node or "")
        if node is None:
            raise NotReadyError(f"node {replica.node} is not known")
        old = workload.wiring.seat_of(replica.index) if workload.wiring is not None else None
        address, wanted = node.report.address, old.ports if old is not None and old.node == replica.node else ()
        if workload.program.serving is not None and workload.program.serving.port:
            wanted = (workload.program.serving.port,)
        count = environment.ports_needed(workload, replica.index)
        try:
            link = self._context.fabric.link(node.name)
            ports, interface = await link.reserve_ports(replica.key, address, count, wanted)
        except GpupoolError as error:
            if error.code in NOT_SENT:
                raise NotReadyError(error.message) from error
            raise
        return MemberAddress(replica.index, replica.attempt, node.name, address, ports, interface)

    def _secret(self) -> str:
        return f"{self._context.random_bits(SECRET_BITS):032x}"


def _ordered(seats: list[MemberAddress]) -> tuple[MemberAddress, ...]:
    return tuple(sorted(seats, key=lambda seat: seat.index))


def _write(draft: Draft, workload_id: WorkloadId, wiring: Rendezvous, attempts: dict[int, int]) -> None:
    """Write the round, unless a member has ended since: then its end is handled first."""
    workload = draft.workload(workload_id)
    rows = [draft.replica(workload_id, index) for index in attempts]
    there = all(r is not None and r.attempt == attempts[r.index] and r.state in _STARTS for r in rows)
    if workload is not None and there:
        draft.put_workload(replace(workload, wiring=replace(wiring, formed_at=wiring.formed_at or draft.now)))


# The end of a member


def for_member(workload: Workload, index: int) -> Workload:
    """Return the workload with the restart policy of one member's role; never restart where its loss is final."""
    if workload.gang is None:
        return workload
    policy = workload.restart_of(index)
    if workload.on_member_end is OnMemberEnd.FAIL:
        policy = RestartPolicy.NEVER
    return (
        workload if policy is workload.retry.policy else replace(workload, retry=replace(workload.retry, policy=policy))
    )


def after_end(draft: Draft, workload: Workload, member: Replica) -> None:
    """Apply the end of one member to the others."""
    if member.state is ReplicaState.PENDING and member.reason is Reason.GANG_RESTART:
        _wait_as_long(draft, member)
    decided = verdict(workload, member, list(draft.replicas(workload.id)))
    if decided is Verdict.RESTART:
        restart_all(draft, workload.id, member, member.message or str(member.reason).lower())
    elif decided is Verdict.GIVE_UP:
        sentence = lifecycle.join_clauses(member.message, f"all {workload.retry.backoff_limit} retries are used")
        draft.take(lifecycle.stop(workload, member, Reason.BACKOFF_EXHAUSTED, draft.now, sentence=sentence))
        _end_all(draft, workload, Reason.GANG_INCOMPLETE, f"{workload.member_name(member.index)}: {sentence}")
    elif decided is Verdict.DONE:
        _end_all(draft, workload, Reason.GANG_DONE, "the members that its gang needs have succeeded")


def _wait_as_long(draft: Draft, member: Replica) -> None:
    """Delay the member like the one that failed, so that all start together."""
    waiting = (each for each in draft.replicas(member.workload) if each.state is ReplicaState.PENDING)
    draft.put_replica(replace(member, not_before=max(each.not_before for each in waiting)))


def _end_all(draft: Draft, workload: Workload, reason: Reason, sentence: str) -> None:
    marked = replace(workload, stop_reason=reason)
    draft.put_workload(marked)
    for each in list(draft.replicas(workload.id)):
        draft.take(lifecycle.stop(marked, each, reason, draft.now, None, sentence))


def restart_all(draft: Draft, workload_id: WorkloadId, member: Replica, what: str) -> None:
    """Stop all members and queue them to start together; also those that have succeeded."""
    workload = draft.workload(workload_id)
    if workload is None or workload.stop_reason is not None:
        return
    lost = f"{workload.member_name(member.index)}: {what}"
    sentence = lifecycle.join_clauses(lost, "all members restart together")
    for each in list(draft.replicas(workload_id)):
        if each.state is ReplicaState.SUCCEEDED:
            draft.take(lifecycle.restart_member(each, sentence, draft.now))
        elif each.state in _STARTS:
            draft.take(lifecycle.stop(workload, each, Reason.GANG_RESTART, draft.now, None, sentence))
