"""Steps of the state machine with their effects on other replicas: programs on a lease, bare leases, gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch
from gpupool.domain.work import lifecycle
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessStatus
from gpupool.domain.work.workload import Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.lifecycle import gangs, reserved_gpus
from gpupool.services.state.mirror import Draft

_LOST = frozenset({ReplicaState.FAILED, ReplicaState.STOPPED})


def end(draft: Draft, workload: Workload, replica: Replica, report: ExitReport) -> Replica:
    """Record that no process of the replica's attempt is left, and stop programs on its lease."""
    epoch = replica.lease
    if lifecycle.keeps_place(replica) and epoch is not None and draft.execs_on(epoch):
        return _end_programs_first(draft, replica, report)
    after = draft.take(lifecycle.end_attempt(gangs.for_member(workload, replica.index), replica, report, draft.now))
    if epoch is not None and after.reason is Reason.RESTARTED_BY_USER and after.state is ReplicaState.PENDING:
        return _start_again(draft, workload, after, epoch)
    if epoch is None or after.state.placed:
        return after
    if workload.program.workspace:
        reserved_gpus.give_back(draft, workload, after, epoch)
    if workload.kind is WorkloadKind.EXEC:
        _release_emptied_lease(draft, workload)
    else:
        _stop_programs_on(draft, replica)
    _end_broken_gang(draft, workload, after)
    gangs.after_end(draft, draft.workload(workload.id) or workload, after)
    return after


def stop(  # noqa: PLR0913, PLR0917 - the parts of a stop
    draft: Draft,
    workload: Workload,
    replica: Replica,
    reason: Reason,
    grace_s: float | None = None,
    sentence: str = "",
    by: str = "",
) -> Replica:
    """Stop one replica; a bare lease ends at once if no program is on it."""
    after = draft.take(lifecycle.stop(workload, replica, reason, draft.now, grace_s, sentence, by))
    if workload.kind is not WorkloadKind.LEASE or after.state is not ReplicaState.STOPPING:
        _end_broken_gang(draft, workload, after)
        return after
    # A bare lease has no program of its own: the node needs no message.
    draft.effects[:] = [e for e in draft.effects if e.replica != after]
    _stop_programs_on(draft, after, grace_s)
    return _release_if_empty(draft, workload, after)


def note_progress(draft: Draft, workload: Workload, replica: Replica, status: ProcessStatus) -> Replica:
    """Record what a program reported about its progress. A checkpoint of one member of a gang counts for all."""
    after = draft.take(lifecycle.note_progress(replica, status))
    if workload.gang is not None and after.saved_at is not None and after.saved_at != replica.saved_at:
        for member in list(draft.replicas(workload.id)):
            if member.state.placed and (member.saved_at or 0.0) < after.saved_at:
                draft.put_replica(replace(member, saved_at=after.saved_at))
    return after


def restart(draft: Draft, workload: Workload, replica: Replica, grace_s: float | None, sentence: str) -> Replica:
    """Restart a program on the same GPUs; other programs on its lease end, because the restart gets a new lease."""
    after = draft.take(lifecycle.restart(workload, replica, draft.now, grace_s, sentence))
    if lifecycle.keeps_place(after):
        _stop_programs_on(draft, after, grace_s)
    return after


def stop_all(
    draft: Draft, workload: Workload, reason: Reason, grace_s: float | None = None, sentence: str = "", by: str = ""
) -> Workload:
    """Stop a whole workload: queued replicas end now, running ones get a signal.

    ``sentence`` gives the reason, ``by`` the user who asked for it.
    """
    marked = replace(workload, stop_reason=workload.stop_reason or reason)
    draft.put_workload(marked)
    for replica in list(draft.replicas(workload.id)):
        stop(draft, marked, replica, reason, grace_s, sentence, by)
    return marked


def notify(draft: Draft, workload: Workload, replica: Replica, notice: dict[str, Any] | None) -> None:
    """Give a notice to a program, or to the programs on a bare lease; None withdraws it."""
    bare = workload.kind is WorkloadKind.LEASE
    programs = [replica] if not bare else [] if replica.lease is None else draft.execs_on(replica.lease)
    draft.effects += [lifecycle.NotifyProgram(program, notice) for program in programs]


def release_reservation(draft: Draft, workspace: str, by: str) -> None:
    """Release the reserved GPUs of a workspace, if it has any."""
    found = draft.reservation_of(workspace)
    if found is not None and found.stop_reason is None:
        draft.note(Event(draft.now, by, Reason.RELEASED, f"requested by {by}", found.id))
        stop_all(draft, found, Reason.RELEASED, sentence=f"released by {by}", by=by)


def _end_programs_first(draft: Draft, replica: Replica, report: ExitReport) -> Replica:
    """Keep the replica stopping until no program is left on its lease; the last one to end starts it again."""
    _stop_programs_on(draft, replica)
    seen = replace(replica, exit_status=report.status, finished_at=report.finished_at or draft.now, pid=None)
    if seen != replica:
        draft.put_replica(seen)
    return seen


def _awaits_programs(replica: Replica) -> bool:
    """Return True if its own program has ended, and only other programs on its lease delay its restart."""
    return replica.state is ReplicaState.STOPPING and replica.finished_at is not None


def _start_again(draft: Draft, workload: Workload, replica: Replica, epoch: Epoch) -> Replica:
    """Give the shares of the ended attempt's lease to the next attempt, under a new epoch."""
    held = draft.lease(epoch)
    if held is None or replica.node is None:
        return replica
    lease = replace(held, epoch=draft.next_epoch(), attempt=replica.attempt + 1, granted_at=draft.now)
    draft.put_lease(lease)
    return draft.take(lifecycle.grant_lease(workload, replica, lease.epoch, replica.node, draft.now))


def _end_broken_gang(draft: Draft, workload: Workload, lost: Replica) -> None:
    """Stop a gang if too many members have failed or were stopped, so that it can never be complete again."""
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
    why = f": {holder.message}" if holder.next_reason is not None and holder.message else ""
    for program in draft.execs_on(holder.lease):
        owner = draft.workload(program.workload)
        if owner is not None:
            sentence = f"the lease that it used has ended{why}"
            stop(draft, owner, program, Reason.LEASE_ENDED, grace_s, sentence)


def _release_emptied_lease(draft: Draft, program: Workload) -> None:
    host = draft.workload(program.on) if program.on is not None else None
    holder = draft.replica(host.id, program.on_index) if host is not None else None
    if host is not None and holder is not None and _awaits_programs(holder):
        report = ExitReport(ExitReason.STOPPED, holder.exit_status, None, "", holder.finished_at or draft.now)
        end(draft, host, holder, report)
        return
    if host is not None and holder is not None and host.kind is WorkloadKind.LEASE:
        active = replace(holder, last_active_at=draft.now)
        draft.put_replica(active)
        _release_if_empty(draft, host, active)


def _release_if_empty(draft: Draft, host: Workload, holder: Replica) -> Replica:
    if holder.lease is not None and draft.execs_on(holder.lease):
        return holder
    return draft.take(lifecycle.end_lease(host, holder, draft.now))
