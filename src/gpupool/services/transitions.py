"""Steps of the state machine together with what follows from them for others: programs on a lease, bare leases."""

from __future__ import annotations

from dataclasses import replace

from gpupool.domain import lifecycle
from gpupool.domain.events import Reason
from gpupool.domain.supervision import ExitReport
from gpupool.domain.workload import Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services import gangs
from gpupool.services.mirror import Draft

_LOST = frozenset({ReplicaState.FAILED, ReplicaState.STOPPED})


def end(draft: Draft, workload: Workload, replica: Replica, report: ExitReport) -> Replica:
    """No process of the replica's attempt is left; programs on its lease are stopped too."""
    epoch = replica.lease
    after = draft.take(lifecycle.ended(gangs.as_member(workload, replica.index), replica, report, draft.now))
    if epoch is None or after.state.placed:
        return after
    if workload.kind is WorkloadKind.EXEC:
        _release_emptied_lease(draft, workload)
    else:
        _stop_programs_on(draft, replica)
    _end_broken_gang(draft, workload, after)
    gangs.after_end(draft, draft.workload(workload.id) or workload, after)
    return after


def stop(
    draft: Draft,
    workload: Workload,
    replica: Replica,
    reason: Reason,
    grace_s: float | None = None,
    sentence: str = "",
) -> Replica:
    """Ask one replica to end; a bare lease ends at once when no program is on it."""
    after = draft.take(lifecycle.stop(workload, replica, reason, draft.now, grace_s, sentence))
    if workload.kind is not WorkloadKind.LEASE or after.state is not ReplicaState.STOPPING:
        _end_broken_gang(draft, workload, after)
        return after
    # Nothing runs under a bare lease itself: there is nothing to tell the node.
    draft.effects[:] = [e for e in draft.effects if e.replica != after]
    _stop_programs_on(draft, after, grace_s)
    return _release_if_empty(draft, workload, after)


def stop_all(draft: Draft, workload: Workload, reason: Reason, grace_s: float | None = None) -> Workload:
    """Ask a whole workload to end: what waits ends now, what runs is told to."""
    marked = replace(workload, stop_reason=workload.stop_reason or reason)
    draft.put_workload(marked)
    for replica in list(draft.replicas(workload.id)):
        stop(draft, marked, replica, reason, grace_s)
    return marked


def _end_broken_gang(draft: Draft, workload: Workload, lost: Replica) -> None:
    """A gang of which too many members have failed or were stopped for good can never be complete again: it ends."""
    gang = workload.gang
    if gang is None or workload.stop_reason is not None or lost.state not in _LOST:
        return
    left = sum(replica.state not in _LOST for replica in draft.replicas(workload.id))
    if left >= gang.least:
        return
    sentence = f"only {left} of at least {gang.least} members of its gang are left"
    marked = replace(workload, stop_reason=Reason.GANG_INCOMPLETE)
    draft.put_workload(marked)
    for replica in list(draft.replicas(workload.id)):
        stop(draft, marked, replica, Reason.GANG_INCOMPLETE, sentence=sentence)


def _stop_programs_on(draft: Draft, holder: Replica, grace_s: float | None = None) -> None:
    if holder.lease is None:
        return
    for program in draft.execs_on(holder.lease):
        owner = draft.workload(program.workload)
        if owner is not None:
            stop(draft, owner, program, Reason.LEASE_ENDED, grace_s)


def _release_emptied_lease(draft: Draft, program: Workload) -> None:
    host = draft.workload(program.on) if program.on is not None else None
    holder = draft.replica(host.id, program.on_index) if host is not None else None
    if host is not None and holder is not None and host.kind is WorkloadKind.LEASE:
        active = replace(holder, last_active_at=draft.now)
        draft.put_replica(active)
        _release_if_empty(draft, host, active)


def _release_if_empty(draft: Draft, host: Workload, holder: Replica) -> Replica:
    if holder.lease is not None and draft.execs_on(holder.lease):
        return holder
    return draft.take(lifecycle.released(host, holder, draft.now))
