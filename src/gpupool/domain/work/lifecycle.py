"""The state machine of a replica and of its workload: values in, values out.

Each function takes a workload, one of its replicas and an occurrence. It returns the new replica, the events to record
and the commands for the node. Nothing here acts: the services first write the transition to the store and then carry
out its effects (the store also counts versions). Illegal transitions return the replica unchanged, so a message that
arrives twice, or after the end, has no effect.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch
from gpupool.domain.units import format_duration
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessStatus
from gpupool.domain.work.workload import (
    Replica,
    ReplicaState,
    RestartPolicy,
    Workload,
    WorkloadKind,
    WorkloadState,
)

POOL = "pool"  # the actor of events without a user
RETRY_SUFFIX = "will be run again"  # the end of an event's sentence when the replica is queued again
PLACE_KEPT_SUFFIX = "starts again on the same GPUs"  # the same for a restart in place
GRACE_SUFFIX = "s of grace"  # the end of an event's sentence when a stop has begun

FIRST_RETRY_S = 2.0
MAX_RETRY_DELAY_S = 300.0
IMMEDIATE_S = 5.0  # a program that fails within this time of its start has failed immediately
MAX_INTERRUPTIONS = 100  # a replica that the pool interrupts this often fails instead of running for ever

# Evictions by the pool, and all reasons whose stop puts the replica back into the queue.
EVICTED = frozenset({Reason.PREEMPTED, Reason.WINDOW_CLOSED})
_RETURNS_TO_QUEUE = EVICTED | {Reason.SUSPENDED_BY_USER, Reason.GANG_RESTART}
_WITH_NOTICE = _RETURNS_TO_QUEUE | {Reason.IDLE_LIMIT, Reason.RESTARTED_BY_USER}
# Stops after which the program must run again, also if it ended by itself before the stop reached it.
_RUNS_AGAIN = frozenset({Reason.GANG_RESTART, Reason.RESTARTED_BY_USER})
START_FAILURES = frozenset({Reason.START_FAILED, Reason.IMAGE_FAILED, Reason.ENVIRONMENT_FAILED})
_ENDS_AS_FAILURE = START_FAILURES | {
    Reason.TIME_LIMIT,
    Reason.WAIT_EXPIRED,
    Reason.DEPENDENCY_FAILED,
    Reason.GANG_INCOMPLETE,
    Reason.BACKOFF_EXHAUSTED,
}

_REASON_OF_EXIT = {
    ExitReason.EXITED: Reason.EXITED,
    ExitReason.STOPPED: Reason.STOPPED_BY_USER,
    ExitReason.TIME_LIMIT: Reason.TIME_LIMIT,
    ExitReason.CLIENT_GONE: Reason.CLIENT_GONE,
    ExitReason.START_FAILED: Reason.START_FAILED,
    ExitReason.IMAGE_FAILED: Reason.IMAGE_FAILED,
    ExitReason.ENVIRONMENT_FAILED: Reason.ENVIRONMENT_FAILED,
    ExitReason.SHEPHERD_LOST: Reason.SHEPHERD_LOST,
    ExitReason.NODE_RESTARTED: Reason.NODE_RESTARTED,
    ExitReason.FENCED: Reason.NODE_LOST,
    ExitReason.NODE_LOST: Reason.NODE_LOST,
}
_SENTENCES = {
    Reason.CLIENT_GONE: "the command that started it has ended or lost its connection",
    Reason.LEASE_ENDED: "the lease that it used has ended",
    Reason.TIME_LIMIT: "reached its time limit",
}
_INTERRUPTIONS = frozenset({Reason.SHEPHERD_LOST, Reason.NODE_RESTARTED, Reason.NODE_LOST})
_LOSES_WORK = EVICTED | _INTERRUPTIONS | {Reason.GANG_RESTART}
_PLACE_LOST = frozenset({Reason.NODE_RESTARTED, Reason.NODE_LOST})


@dataclass(frozen=True, slots=True)
class StartProgram:
    """Tell the node to start the replica's present attempt."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class StopProgram:
    """Tell the node to end the replica's present attempt; ``grace_s`` 0 kills at once."""

    replica: Replica
    grace_s: float


@dataclass(frozen=True, slots=True)
class ForgetProgram:
    """Tell the node that the end of an attempt is stored."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class NotifyProgram:
    """Show a notice to the replica's present attempt, which continues to run; None: remove the notice."""

    replica: Replica
    notice: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AttachGpus:
    """Tell the node to give the GPUs of the replica's GPU lease to the lazy program that waits for them."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class SuspendProgram:
    """Tell the node to suspend the replica's processes within a time, and to take its GPUs from it."""

    replica: Replica
    grace_s: float


Effect = StartProgram | StopProgram | ForgetProgram | NotifyProgram | AttachGpus | SuspendProgram


@dataclass(frozen=True, slots=True)
class Transition:
    """The result of one occurrence for one replica."""

    replica: Replica
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()


def grant_lease(
    workload: Workload, replica: Replica, epoch: Epoch, node: str, now: float, gpus: Epoch | None = None
) -> Transition:
    """Apply the grant of a lease to a pending replica: it starts; a lease without a program counts as running.

    ``gpus`` is the lease of its GPUs if they have one of their own and it starts with them.
    """
    if replica.state is not ReplicaState.PENDING:
        return Transition(replica)
    bare = workload.kind is WorkloadKind.LEASE
    after = replace(
        replica,
        state=ReplicaState.RUNNING if bare else ReplicaState.STARTING,
        attempt=replica.attempt + 1,
        node=node,
        lease=epoch,
        pid=None,
        exit_status=None,
        started_at=now if bare else None,
        finished_at=None,
        last_active_at=now,
        idle_warned=False,
        ended_by="",
        reason=Reason.GRANTED,
        message="",
        notes=(),
        sharing="",
        guarantee="",
        gpu_wanted_at=None if gpus is None else now,
        gpu_lease=gpus,
        suspend_asked_at=None,
        suspended_gpu="",
    )
    got = "GPUs" if workload.gpus_of(replica.index).count and not workload.limits.lazy else "a place"
    event = _event(after, now, Reason.GRANTED, f"got {got} on {node}")
    return Transition(after, (event,), () if bare else (StartProgram(after),))


def want_gpus(workload: Workload, replica: Replica, at: float) -> Transition:
    """Apply the report that the program of a replica without GPUs uses CUDA: from now on it waits for them."""
    if (
        not workload.limits.separate_gpus
        or replica.state is not ReplicaState.RUNNING
        or replica.gpu_wanted_at is not None
    ):
        return Transition(replica)
    after = replace(replica, gpu_wanted_at=at)
    return Transition(after, (_event(after, at, Reason.GPUS_WANTED, "its program uses CUDA: it waits for GPUs"),))


def grant_gpus(workload: Workload, replica: Replica, epoch: Epoch, now: float) -> Transition:
    """Apply the grant of the GPUs that the program of a replica waits for."""
    if not workload.limits.separate_gpus or not replica.waits_for_gpus:
        return Transition(replica)
    after = replace(replica, gpu_lease=epoch, last_active_at=now, idle_warned=False)
    waited = format_duration(now - (replica.gpu_wanted_at or now))
    event = _event(after, now, Reason.GRANTED, f"got GPUs on {replica.node}, {waited} after it needed them")
    return Transition(after, (event,), (AttachGpus(after),))


def return_gpus(replica: Replica, epoch: int, suspended_gpu: str, now: float) -> Transition:
    """Apply the report that a program has returned the GPUs of a lease; its next use of CUDA waits again.

    ``suspended_gpu`` is the GPU whose memory is now in the memory of the node; empty: no process used CUDA any more.
    """
    if replica.gpu_lease is None or replica.gpu_lease != epoch:
        return Transition(replica)
    after = replace(replica, gpu_lease=None, gpu_wanted_at=None, suspend_asked_at=None, suspended_gpu=suspended_gpu)
    if suspended_gpu:
        sentence = "suspended: the content of its GPU memory is in the memory of its node"
        return Transition(after, (_event(after, now, Reason.GPUS_SUSPENDED, sentence),))
    sentence = "returned its GPUs: none of its processes uses CUDA any more"
    return Transition(after, (_event(after, now, Reason.GPUS_RETURNED, sentence),))


def note_suspended_gpu(replica: Replica, status: ProcessStatus) -> Transition:
    """Apply the report which GPU's memory a program has in the memory of its node.

    It changes when its processes are resumed, and when those that were suspended have ended.
    """
    known = replica.suspended_gpu == status.suspended_gpu or status.gpu_epoch != (replica.gpu_lease or 0)
    return Transition(replica if known else replace(replica, suspended_gpu=status.suspended_gpu))


def suspend(workload: Workload, replica: Replica, sentence: str, now: float) -> Transition:
    """Begin to suspend a running replica, to take its GPUs; it is not stopped, and loses no work."""
    if replica.state is not ReplicaState.RUNNING or replica.gpu_lease is None or replica.suspend_asked_at is not None:
        return Transition(replica)
    after = replace(replica, suspend_asked_at=now)
    event = _event(after, now, Reason.PREEMPTED, join_clauses(sentence, "it is being suspended"))
    return Transition(after, (event,), (SuspendProgram(after, workload.limits.grace_s),))


def mark_started(replica: Replica, status: ProcessStatus, now: float) -> Transition:
    """Apply the node's report that the program runs."""
    if replica.state not in {ReplicaState.STARTING, ReplicaState.STOPPING}:
        return Transition(replica)
    started_at = min(status.started_at or now, now)
    seen = replace(
        replica,
        pid=status.pid,
        started_at=started_at,
        notes=status.notes,
        sharing=status.mode,
        guarantee=status.guarantee,
    )
    if replica.state is ReplicaState.STOPPING:
        return Transition(seen)
    after = replace(seen, state=ReplicaState.RUNNING, reason=Reason.STARTED)
    return Transition(after, (_event(after, started_at, Reason.STARTED, f"started on {replica.node}"),))


def note_progress(replica: Replica, status: ProcessStatus) -> Transition:
    """Apply the progress that the program has reported; it never goes back to "unknown"."""
    saved_at = replica.saved_at if status.saved_at is None else status.saved_at
    step = replica.step if status.step is None else status.step
    if not replica.state.placed:
        return Transition(replica)
    return Transition(replace(replica, saved_at=saved_at, step=step, metrics=status.metrics or replica.metrics))


def unsaved_s(workload: Workload, replica: Replica, now: float) -> float:
    """Return the seconds of work that the end of the present or last attempt at ``now`` loses.

    The work since the checkpoint that the program reported last counts. Without a report in this attempt it is the work
    since the last multiple of its declared interval, and all of it if nothing was declared.
    """
    started_at, every_s = replica.started_at, workload.limits.saved_every_s
    if started_at is None or now <= started_at or every_s == 0:
        return 0.0
    if replica.saved_at is not None and replica.saved_at >= started_at:
        return max(0.0, now - replica.saved_at)
    return now - started_at if every_s is None else (now - started_at) % every_s


def lost_s(workload: Workload, replica: Replica) -> float:
    """Return the seconds of work that an ended attempt has lost; 0 unless the pool or a failed node ended it."""
    if replica.reason not in _LOSES_WORK or workload.kind in {WorkloadKind.LEASE, WorkloadKind.EXEC}:
        return 0.0
    return 0.0 if replica.finished_at is None else unsaved_s(workload, replica, replica.finished_at)


def add_notes(replica: Replica, status: ProcessStatus, now: float) -> Transition:
    """Apply the node's additional notes about the program; each new note becomes an event."""
    added = tuple(note for note in status.notes if note not in replica.notes)
    if replica.state not in {ReplicaState.RUNNING, ReplicaState.STOPPING} or not added:
        return Transition(replica)
    after = replace(replica, notes=(*replica.notes, *added))
    return Transition(after, tuple(_event(after, now, Reason.NODE_WARNING, note) for note in added))


def end_attempt(workload: Workload, replica: Replica, report: ExitReport, now: float) -> Transition:
    """Apply the node's report that no process of the attempt is left: the replica ends or is queued again."""
    if not replica.state.placed:
        return Transition(replica)
    reason = _REASON_OF_EXIT[report.reason]
    asked = replica.next_reason if replica.state is ReplicaState.STOPPING else None
    done = _completed(workload, report) and asked not in _RUNS_AGAIN
    lost = asked is Reason.RESTARTED_BY_USER and reason in _PLACE_LOST
    if asked is not None and reason is not Reason.TIME_LIMIT and not done and not lost:
        reason = asked
    finished_at = max(min(report.finished_at or now, now), replica.started_at or 0.0)
    seen = replace(replica, exit_status=report.status, finished_at=finished_at, pid=None)
    forget = ForgetProgram(replica)
    sentence = (replica.message if reason is asked else "") or _sentence(workload, reason, report)
    if reason is not asked:
        seen = replace(seen, ended_by="")
    if reason in _RETURNS_TO_QUEUE or reason is Reason.RESTARTED_BY_USER:
        return _queue_again(workload, seen, reason, sentence, now, forget)
    if reason in _INTERRUPTIONS and _may_run_again(workload, seen, reason):
        return _queue_again(workload, seen, reason, sentence, now, forget)
    if reason is Reason.EXITED:
        return _end_by_exit(workload, seen, report, now, forget)
    return _finish(seen, _final_state(workload, reason), reason, sentence, now, forget)


def stop(  # noqa: PLR0913, PLR0917 - the parts of a stop
    workload: Workload,
    replica: Replica,
    reason: Reason,
    now: float,
    grace_s: float | None = None,
    sentence: str = "",
    by: str = "",
) -> Transition:
    """Begin to stop a replica, or, depending on the reason, to queue it again.

    ``sentence`` says why, ``by`` is the user who asked for it.
    """
    if replica.state is ReplicaState.PENDING:
        if reason in _RETURNS_TO_QUEUE:
            return Transition(replica)
        ended = replace(replica, ended_by=by)
        return _finish(ended, _final_state(workload, reason), reason, sentence, now, None)
    if not replica.state.placed:
        return Transition(replica)
    grace = grace_of(workload, reason) if grace_s is None else grace_s
    if replica.state is ReplicaState.STOPPING:
        # Asked again: a return to the queue overrides a restart in place, a final reason overrides both, and a shorter
        # grace period applies.
        if not _overrides(reason, replica):
            return Transition(replica, (), (StopProgram(replica, grace),))
        after = replace(replica, next_reason=reason, message=sentence, ended_by=by)
        return Transition(after, (), (StopProgram(after, grace),))
    after = replace(replica, state=ReplicaState.STOPPING, next_reason=reason, message=sentence, ended_by=by)
    event = _event(after, now, reason, join_clauses(sentence, f"asked to stop with {grace:g} {GRACE_SUFFIX}"))
    return Transition(after, (event,), (StopProgram(after, grace),))


def grace_of(workload: Workload, reason: Reason | None) -> float:
    """Return the grace period of a stop for a reason."""
    return workload.limits.preemption_grace_s if reason in EVICTED else workload.limits.grace_s


def _overrides(reason: Reason, stopping: Replica) -> bool:
    """Return whether another stop replaces the reason of the stop that has begun."""
    if stopping.next_reason is Reason.RESTARTED_BY_USER:
        return reason is not Reason.RESTARTED_BY_USER
    return stopping.next_reason in _RETURNS_TO_QUEUE and reason not in _RETURNS_TO_QUEUE


def restart(workload: Workload, replica: Replica, now: float, grace_s: float | None, sentence: str) -> Transition:
    """Begin to restart a program in place: it ends and starts again on the same GPUs.

    A replica that is not placed, or whose stop has another reason, stays unchanged.
    """
    if not replica.state.placed or replica.next_reason not in {None, Reason.RESTARTED_BY_USER}:
        return Transition(replica)
    return stop(workload, replica, Reason.RESTARTED_BY_USER, now, grace_s, sentence)


def keeps_place(replica: Replica) -> bool:
    """Return True if a stopping replica starts again on the same GPUs, so that nothing else may get them."""
    return replica.state is ReplicaState.STOPPING and replica.next_reason is Reason.RESTARTED_BY_USER


def restart_member(replica: Replica, sentence: str, now: float) -> Transition:
    """Queue a member again that has succeeded, because its gang restarts."""
    if replica.state is not ReplicaState.SUCCEEDED:
        return Transition(replica)
    after = replace(
        replica,
        state=ReplicaState.PENDING,
        reason=Reason.GANG_RESTART,
        message=sentence,
        queued_at=now,
        exit_status=None,
        finished_at=None,
    )
    return Transition(after, (_event(after, now, Reason.GANG_RESTART, join_clauses(sentence, RETRY_SUFFIX)),))


def preemption_notice(replica: Replica) -> dict[str, str] | None:
    """Return the code and sentence for a program that must end; None if there is only a signal."""
    if replica.next_reason not in _WITH_NOTICE or replica.state is not ReplicaState.STOPPING:
        return None
    return {"reason": replica.next_reason.value, "message": replica.message}


def end_lease(workload: Workload, replica: Replica, now: float) -> Transition:
    """End a lease that was asked to stop and has no program left."""
    if workload.kind is not WorkloadKind.LEASE or replica.state is not ReplicaState.STOPPING:
        return Transition(replica)
    reason = replica.next_reason or Reason.RELEASED
    return _finish(replica, _final_state(workload, reason), reason, replica.message, now, None)


def workload_state(workload: Workload, counts: dict[ReplicaState, int]) -> WorkloadState:
    """Return the state of a workload from the number of replicas in each state."""
    if any(counts.get(state) for state in ReplicaState if state.placed):
        active = counts.get(ReplicaState.STARTING) or counts.get(ReplicaState.RUNNING)
        ending = workload.stop_reason is not None or (workload.suspended and not active)
        return WorkloadState.STOPPING if ending else WorkloadState.RUNNING
    if counts.get(ReplicaState.PENDING):
        return WorkloadState.SUSPENDED if workload.suspended else WorkloadState.QUEUED
    if counts.get(ReplicaState.FAILED):
        return WorkloadState.FAILED
    if counts.get(ReplicaState.STOPPED):
        return WorkloadState.STOPPED
    return WorkloadState.SUCCEEDED


def join_clauses(sentence: str, clause: str) -> str:
    """Return a sentence with a clause after a semicolon, instead of after the full stop of some sentences."""
    return f"{sentence.removesuffix('.')}; {clause}" if sentence else clause


def signal_text(number: int) -> str:
    """Return a signal with its name: ``9 (SIGKILL)``."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def retry_delay_s(failures: int) -> float:
    """Return the seconds until the next attempt after a number of failures: 2, 4, 8 … at most 300."""
    return float(min(MAX_RETRY_DELAY_S, FIRST_RETRY_S * 2 ** min(failures - 1, 16)))


def _end_by_exit(
    workload: Workload, replica: Replica, report: ExitReport, now: float, forget: ForgetProgram
) -> Transition:
    success, sentence = report.status == 0, _sentence(workload, Reason.EXITED, report)
    policy = workload.retry.policy
    ended = Reason.MEMORY_LIMIT if report.memory_limited else Reason.EXITED
    if success and policy is not RestartPolicy.ALWAYS:
        return _finish(replica, ReplicaState.SUCCEEDED, Reason.EXITED, sentence, now, forget)
    failed = replica if success else _count_failure(replica, report)
    if policy is RestartPolicy.NEVER:
        return _finish(failed, ReplicaState.FAILED, ended, sentence, now, forget)
    if failed.failures > workload.retry.backoff_limit:
        sentence = join_clauses(sentence, f"all {workload.retry.backoff_limit} retries are used")
        return _finish(failed, ReplicaState.FAILED, Reason.BACKOFF_EXHAUSTED, sentence, now, forget)
    if 0 < workload.retry.same_limit <= failed.same_failures:
        sentence = join_clauses(
            sentence, f"{failed.same_failures} times in a row within {IMMEDIATE_S:g} s of its start"
        )
        return _finish(failed, ReplicaState.FAILED, Reason.REPEATED_FAILURE, sentence, now, forget)
    return _queue_again(workload, failed, Reason.RETRY, sentence, now, forget)


def _count_failure(replica: Replica, report: ExitReport) -> Replica:
    """Count a failure of the program, and immediate failures in a row with the same status."""
    ran_s = (replica.finished_at or 0.0) - (replica.started_at or 0.0)
    immediate = replica.started_at is not None and ran_s < IMMEDIATE_S
    same = replica.same_failures if replica.failed_status == report.status else 0
    return replace(
        replica,
        failures=replica.failures + 1,
        same_failures=same + 1 if immediate else 0,
        failed_status=report.status,
    )


def _queue_again(
    workload: Workload, replica: Replica, reason: Reason, sentence: str, now: float, forget: ForgetProgram
) -> Transition:
    if workload.stop_reason is not None:
        return _finish(
            replica, _final_state(workload, workload.stop_reason), workload.stop_reason, sentence, now, forget
        )
    delay = retry_delay_s(max(1, replica.failures)) if reason is Reason.RETRY else 0.0
    counted = 1 if reason in _INTERRUPTIONS or reason in EVICTED else 0
    after = replace(
        replica,
        state=ReplicaState.PENDING,
        lease=None,
        gpu_lease=None,
        gpu_wanted_at=None,
        suspend_asked_at=None,
        suspended_gpu="",
        next_reason=None,
        reason=reason,
        message=sentence,
        queued_at=now,
        not_before=now + delay,
        interruptions=replica.interruptions + counted,
    )
    suffix = PLACE_KEPT_SUFFIX if reason is Reason.RESTARTED_BY_USER else RETRY_SUFFIX
    return Transition(after, (_event(after, now, reason, join_clauses(sentence, suffix)),), (forget,))


def _finish(
    replica: Replica, state: ReplicaState, reason: Reason, sentence: str, now: float, forget: ForgetProgram | None
) -> Transition:
    after = replace(
        replica,
        state=state,
        lease=None,
        gpu_lease=None,
        gpu_wanted_at=None,
        suspend_asked_at=None,
        suspended_gpu="",
        next_reason=None,
        reason=reason,
        message=sentence,
        finished_at=replica.finished_at or now,
    )
    return Transition(after, (_event(after, now, reason, sentence or str(state)),), (forget,) if forget else ())


def _completed(workload: Workload, report: ExitReport) -> bool:
    """Return whether the program had ended by itself for good before the stop reached it."""
    policy = workload.retry.policy
    succeeded = report.status == 0 and policy is not RestartPolicy.ALWAYS
    return report.reason is ExitReason.EXITED and (succeeded or policy is RestartPolicy.NEVER)


def _may_run_again(workload: Workload, replica: Replica, reason: Reason) -> bool:
    lost = reason is Reason.NODE_LOST and restarts_after_loss(workload)
    return (lost or _restarts(workload)) and replica.interruptions < MAX_INTERRUPTIONS


def _restarts(workload: Workload) -> bool:
    bound = workload.program.client_bound or workload.kind is WorkloadKind.EXEC
    return not bound and workload.retry.policy is not RestartPolicy.NEVER


def restarts_after_loss(workload: Workload) -> bool:
    """Return whether its replicas are queued again when their node is lost.

    This is batch work that is restarted after a failure, or that can be preempted and so must tolerate it.
    """
    batch = workload.kind in {WorkloadKind.RUN, WorkloadKind.TRAINING, WorkloadKind.SERVICE}
    return batch and (_restarts(workload) or (workload.preemptible and not workload.program.client_bound))


def _final_state(workload: Workload, reason: Reason) -> ReplicaState:
    if reason is Reason.GANG_DONE:
        return ReplicaState.SUCCEEDED
    if workload.kind is WorkloadKind.LEASE and reason is Reason.RELEASED:
        return ReplicaState.SUCCEEDED
    if reason in _ENDS_AS_FAILURE or reason in _INTERRUPTIONS:
        return ReplicaState.FAILED
    return ReplicaState.STOPPED


def _sentence(workload: Workload, reason: Reason, report: ExitReport) -> str:
    if report.message:
        return report.message
    if report.reason is ExitReason.FENCED:
        return "its node had no contact with the pool for too long and ended it"
    if reason is Reason.EXITED and report.signal is not None:
        return f"killed by signal {signal_text(report.signal)}"
    if reason is Reason.EXITED:
        return f"exited with status {report.exit_code}"
    if reason is Reason.TIME_LIMIT and workload.limits.max_time_s is not None:
        return f"reached its time limit of {format_duration(workload.limits.max_time_s)}"
    return _SENTENCES.get(reason) or str(reason).lower().replace("_", " ")


def _event(replica: Replica, at: float, reason: Reason, message: str) -> Event:
    return Event(at, POOL, reason, message, replica.workload, replica.index)
