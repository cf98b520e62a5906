"""Reserved GPUs of workspaces: a lease holds them while the workspace is stopped, its session while it is started.

The GPUs change hands in one transaction with a new epoch, so at each moment exactly one of the two holds them, also
after a crash. The lease is a workload of kind lease with the workspace in its program. It is suspended while the
session has the GPUs, or waits for them in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.lifecycle import POOL, grant_lease
from gpupool.domain.work.workload import GpuLease, Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.state.mirror import Draft, Mirror

_GONE = frozenset({Reason.NODE_LOST, Reason.NODE_RESTARTED})


def is_reservation(workload: Workload) -> bool:
    """Return True for the lease that holds the GPUs of a stopped workspace."""
    return workload.kind is WorkloadKind.LEASE and bool(workload.program.workspace)


def same_size(one: GpuRequest, other: GpuRequest) -> bool:
    """Return True if two requests are for the same GPUs, wherever they are."""
    return replace(one, labels=(), placement=None) == replace(other, labels=(), placement=None)


def give_back(draft: Draft, session: Workload, ended: Replica, epoch: Epoch) -> None:
    """Give the GPUs of a session that has ended, or returned to the queue, to the reservation of its workspace."""
    found = draft.reservation_of(session.program.workspace)
    held = draft.lease(epoch)
    if found is None or is_reservation(session) or not found.suspended or not same_size(found.gpus, session.gpus):
        return
    row = draft.replica(found.id, 0)
    draft.put_workload(replace(found, suspended=False))
    if row is None or held is None or ended.node is None or ended.reason in _GONE:
        return  # it waits in the queue
    _move(draft, replace(found, suspended=False), row, held, ended.node)


def settle(draft: Draft, mirror: Mirror, ready: Callable[[Workload, Replica, GpuLease], bool]) -> None:
    """Give reserved GPUs to sessions that wait for them, and let only one of both wait in the queue.

    ``ready`` returns True if a waiting session may start on the GPUs of a lease now.
    """
    for workspace, holder in mirror.reservations.items():
        found, row, session = draft.workload(holder), draft.replica(holder, 0), mirror.session_of(workspace)
        if found is None or row is None or found.stop_reason is not None:
            continue
        user = None if session is None or not same_size(found.gpus, session.gpus) else session
        if row.state is ReplicaState.PENDING:
            if found.suspended != (user is not None):
                draft.put_workload(replace(found, suspended=user is not None))
            continue
        waiting = None if user is None else draft.replica(user.id, 0)
        held = draft.lease(row.lease)
        if user is None or waiting is None or held is None or row.state is not ReplicaState.RUNNING:
            continue
        if waiting.state is ReplicaState.PENDING and ready(user, waiting, held):
            _take_over(draft, found, row, user, waiting, held)


def holds_for(draft: Draft, session: Workload) -> bool:
    """Return True if the GPUs of a session are held by the reservation of its workspace."""
    found = draft.reservation_of(session.program.workspace)
    if found is None or is_reservation(session) or not same_size(found.gpus, session.gpus):
        return False
    row = draft.replica(found.id, 0)
    return row is not None and row.state.placed


def _take_over(
    draft: Draft, found: Workload, row: Replica, session: Workload, waiting: Replica, held: GpuLease
) -> None:
    draft.put_workload(replace(found, suspended=True, expires_at=None))
    after = replace(row, state=ReplicaState.PENDING, lease=None, reason=Reason.SUSPENDED_BY_USER, message="")
    draft.put_replica(replace(after, message=f"{session.name} uses its GPUs", queued_at=draft.now))
    draft.put_lease(replace(held, released_at=draft.now))
    draft.note(Event(draft.now, POOL, Reason.RESUMED_BY_USER, f"takes the reserved GPUs of {found.name}", session.id))
    _move(draft, session, waiting, held, held.node)


def _move(draft: Draft, to: Workload, row: Replica, held: GpuLease, node: str) -> None:
    """Give the shares of a lease to another replica, under a new epoch."""
    lease = replace(
        held,
        epoch=draft.next_epoch(),
        workload=to.id,
        index=row.index,
        attempt=row.attempt + 1,
        project=to.project,
        user=to.user,
        cpus=to.counted_cpus(row.index),
        memory_mib=to.memory_of(row.index) or 0,
        granted_at=draft.now,
        released_at=None,
        lost_s=0.0,
    )
    draft.put_lease(lease)
    draft.take(grant_lease(to, row, lease.epoch, node, draft.now))
    lifetime_s = to.limits.max_time_s
    if to.kind is WorkloadKind.LEASE and lifetime_s is not None:
        draft.put_workload(replace(draft.workload(to.id) or to, expires_at=draft.now + lifetime_s))
