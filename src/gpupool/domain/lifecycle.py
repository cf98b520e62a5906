"""The state machine of a replica and of its workload: values in, values out.

Each function takes a workload, one of its replicas and what happened, and returns the replica as it is afterwards,
the events to record and what the node has to be told. Nothing here acts; the services write the step to the store and
only then carry out its effects (versions are counted there too, once a write). Illegal steps return the replica
unchanged, so that a message that arrives twice, or after the end, does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch
from gpupool.domain.supervision import ExitReason, ExitReport, ProcessStatus
from gpupool.domain.workload import Replica, ReplicaState, RestartPolicy, Workload, WorkloadKind, WorkloadState

POOL = "pool"  # the actor of events that nobody asked for
RUN_AGAIN = "will be run again"  # how the event of an end begins a new wait
OF_GRACE = "s of grace"  # how the event of a stop that has begun ends

FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 300.0
MOST_INTERRUPTIONS = 100  # a replica that the pool keeps losing is given up rather than run for ever

# A stop with one of these reasons ends in the queue again instead of in the end: those of the pool, and all.
EVICTED = frozenset({Reason.PREEMPTED, Reason.WINDOW_CLOSED})
_RETURNS_TO_QUEUE = EVICTED | {Reason.SUSPENDED_BY_USER, Reason.GANG_RESTART}
_WITH_NOTICE = _RETURNS_TO_QUEUE | {Reason.IDLE_LIMIT}
_ENDS_AS_FAILURE = frozenset(
    {Reason.TIME_LIMIT, Reason.WAIT_EXPIRED, Reason.DEPENDENCY_FAILED, Reason.GANG_INCOMPLETE, Reason.BACKOFF_EXHAUSTED}
)

_REASON_OF_EXIT = {
    ExitReason.EXITED: Reason.EXITED,
    ExitReason.STOPPED: Reason.STOPPED_BY_USER,
    ExitReason.TIME_LIMIT: Reason.TIME_LIMIT,
    ExitReason.CLIENT_GONE: Reason.CLIENT_GONE,
    ExitReason.START_FAILED: Reason.START_FAILED,
    ExitReason.SHEPHERD_LOST: Reason.SHEPHERD_LOST,
    ExitReason.NODE_RESTARTED: Reason.NODE_RESTARTED,
    ExitReason.FENCED: Reason.NODE_LOST,
    ExitReason.NODE_LOST: Reason.NODE_LOST,
}
_POOLS_FAULT = frozenset({Reason.SHEPHERD_LOST, Reason.NODE_RESTARTED, Reason.NODE_LOST})


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
    """Tell the node that the end of an attempt has been written down."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class NotifyProgram:
    """Put a notice before the replica's present attempt, which runs on; None: take it away."""

    replica: Replica
    notice: dict[str, Any] | None


Effect = StartProgram | StopProgram | ForgetProgram | NotifyProgram


@dataclass(frozen=True, slots=True)
class Step:
    """What one occurrence does to one replica."""

    replica: Replica
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()


def granted(workload: Workload, replica: Replica, epoch: Epoch, node: str, now: float) -> Step:
    """A lease was written for a pending replica: it starts, or, for a bare lease, is simply held from now on."""
    if replica.state is not ReplicaState.PENDING:
        return Step(replica)
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
        reason=Reason.GRANTED,
        message="",
        notes=(),
        sharing="",
        guarantee="",
    )
    got = "GPUs" if workload.gpus_of(replica.index).count else "a place"
    event = _event(after, now, Reason.GRANTED, f"got {got} on {node}")
    return Step(after, (event,), () if bare else (StartProgram(after),))


def started(replica: Replica, status: ProcessStatus, now: float) -> Step:
    """The node says that the program runs."""
    if replica.state not in {ReplicaState.STARTING, ReplicaState.STOPPING}:
        return Step(replica)
    started_at = status.started_at or now
    seen = replace(
        replica,
        pid=status.pid,
        started_at=started_at,
        notes=status.notes,
        sharing=status.mode,
        guarantee=status.guarantee,
    )
    if replica.state is ReplicaState.STOPPING:
        return Step(seen)
    after = replace(seen, state=ReplicaState.RUNNING, reason=Reason.STARTED)
    return Step(after, (_event(after, started_at, Reason.STARTED, f"started on {replica.node}"),))


def ended(workload: Workload, replica: Replica, report: ExitReport, now: float) -> Step:
    """The node says that no process of the attempt is left: the replica ends, or waits to be run again."""
    if not replica.state.placed:
        return Step(replica)
    reason = _REASON_OF_EXIT[report.reason]
    asked = replica.next_reason if replica.state is ReplicaState.STOPPING else None
    done = _done(workload, report) and asked is not Reason.GANG_RESTART  # a member must not be missing then
    if asked is not None and reason is not Reason.TIME_LIMIT and not done:
        reason = asked
    seen = replace(replica, exit_status=report.status, finished_at=report.finished_at or now, pid=None)
    forget = ForgetProgram(replica)
    sentence = (replica.message if reason is asked else "") or _sentence(reason, report)
    if reason in _RETURNS_TO_QUEUE:
        return _again(workload, seen, reason, sentence, now, forget)
    if reason in _POOLS_FAULT and _may_run_again(workload, seen, reason):
        return _again(workload, seen, reason, sentence, now, forget)
    if reason is Reason.EXITED:
        return _exited(workload, seen, report, now, forget)
    return _finish(seen, _final_state(workload, reason), reason, sentence, now, forget)


def stop(
    workload: Workload, replica: Replica, reason: Reason, now: float, grace_s: float | None = None, sentence: str = ""
) -> Step:
    """Somebody or a limit wants the replica to end (or, by reason, to go back to the queue); ``sentence`` says why."""
    if replica.state is ReplicaState.PENDING:
        if reason in _RETURNS_TO_QUEUE:
            return Step(replica)
        return _finish(replica, _final_state(workload, reason), reason, sentence, now, None)
    if not replica.state.placed:
        return Step(replica)
    grace = workload.limits.grace_s if grace_s is None else grace_s
    if replica.state is ReplicaState.STOPPING:
        # Asked again: a final reason outranks a return to the queue, and a shorter grace counts.
        final = replica.next_reason in _RETURNS_TO_QUEUE and reason not in _RETURNS_TO_QUEUE
        after = replace(replica, next_reason=reason, message=sentence) if final else replica
        return Step(after, (), (StopProgram(after, grace),))
    after = replace(replica, state=ReplicaState.STOPPING, next_reason=reason, message=sentence)
    because = f"{sentence}; " if sentence else ""
    event = _event(after, now, reason, f"{because}asked to stop with {grace:g} {OF_GRACE}")
    return Step(after, (event,), (StopProgram(after, grace),))


def once_more(replica: Replica, sentence: str, now: float) -> Step:
    """A member that has succeeded is needed again: its gang starts anew."""
    if replica.state is not ReplicaState.SUCCEEDED:
        return Step(replica)
    after = replace(
        replica,
        state=ReplicaState.PENDING,
        reason=Reason.GANG_RESTART,
        message=sentence,
        queued_at=now,
        exit_status=None,
        finished_at=None,
    )
    return Step(after, (_event(after, now, Reason.GANG_RESTART, f"{sentence}; {RUN_AGAIN}"),))


def notice_of(replica: Replica) -> dict[str, str] | None:
    """What a program that is told to end may read of it: why, in a code and a sentence; None: only that it has to."""
    if replica.next_reason not in _WITH_NOTICE or replica.state is not ReplicaState.STOPPING:
        return None
    return {"reason": replica.next_reason.value, "message": replica.message}


def released(workload: Workload, replica: Replica, now: float) -> Step:
    """A bare lease that was asked to end has no program left on it: it ends."""
    if workload.kind is not WorkloadKind.LEASE or replica.state is not ReplicaState.STOPPING:
        return Step(replica)
    reason = replica.next_reason or Reason.RELEASED
    return _finish(replica, _final_state(workload, reason), reason, "", now, None)


def summarise(workload: Workload, counts: dict[ReplicaState, int]) -> WorkloadState:
    """The state of a workload from how many of its replicas are in which state."""
    if any(counts.get(state) for state in ReplicaState if state.placed):
        return WorkloadState.STOPPING if workload.stop_reason is not None else WorkloadState.RUNNING
    if counts.get(ReplicaState.PENDING):
        return WorkloadState.SUSPENDED if workload.suspended else WorkloadState.QUEUED
    if counts.get(ReplicaState.FAILED):
        return WorkloadState.FAILED
    if counts.get(ReplicaState.STOPPED):
        return WorkloadState.STOPPED
    return WorkloadState.SUCCEEDED


def retry_delay_s(failures: int) -> float:
    """Seconds to wait before the next try after so many failures: 2, 4, 8 … at most 300."""
    return float(min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures - 1, 16)))


def _exited(workload: Workload, replica: Replica, report: ExitReport, now: float, forget: ForgetProgram) -> Step:
    success = report.status == 0
    policy = workload.retry.policy
    if success and policy is not RestartPolicy.ALWAYS:
        return _finish(replica, ReplicaState.SUCCEEDED, Reason.EXITED, _sentence(Reason.EXITED, report), now, forget)
    failed = replica if success else replace(replica, failures=replica.failures + 1)
    if policy is RestartPolicy.NEVER:
        return _finish(failed, ReplicaState.FAILED, Reason.EXITED, _sentence(Reason.EXITED, report), now, forget)
    if failed.failures > workload.retry.backoff_limit:
        sentence = f"{_sentence(Reason.EXITED, report)}; no try is left of {workload.retry.backoff_limit}"
        return _finish(failed, ReplicaState.FAILED, Reason.BACKOFF_EXHAUSTED, sentence, now, forget)
    return _again(workload, failed, Reason.RETRY, _sentence(Reason.EXITED, report), now, forget)


def _again(
    workload: Workload, replica: Replica, reason: Reason, sentence: str, now: float, forget: ForgetProgram
) -> Step:
    if workload.stop_reason is not None:
        return _finish(
            replica, _final_state(workload, workload.stop_reason), workload.stop_reason, sentence, now, forget
        )
    delay = retry_delay_s(max(1, replica.failures)) if reason is Reason.RETRY else 0.0
    counted = 1 if reason in _POOLS_FAULT or reason in EVICTED else 0
    after = replace(
        replica,
        state=ReplicaState.PENDING,
        lease=None,
        next_reason=None,
        reason=reason,
        message=sentence,
        queued_at=now,
        not_before=now + delay,
        interruptions=replica.interruptions + counted,
    )
    return Step(after, (_event(after, now, reason, f"{sentence}; {RUN_AGAIN}"),), (forget,))


def _finish(
    replica: Replica, state: ReplicaState, reason: Reason, sentence: str, now: float, forget: ForgetProgram | None
) -> Step:
    after = replace(
        replica,
        state=state,
        lease=None,
        next_reason=None,
        reason=reason,
        message=sentence,
        finished_at=replica.finished_at or now,
    )
    return Step(after, (_event(after, now, reason, sentence or str(state)),), (forget,) if forget else ())


def _done(workload: Workload, report: ExitReport) -> bool:
    """Whether the program had come to its own end for good before the stop reached it: then nothing was stopped."""
    policy = workload.retry.policy
    succeeded = report.status == 0 and policy is not RestartPolicy.ALWAYS
    return report.reason is ExitReason.EXITED and (succeeded or policy is RestartPolicy.NEVER)


def _may_run_again(workload: Workload, replica: Replica, reason: Reason) -> bool:
    lost = reason is Reason.NODE_LOST and runs_elsewhere(workload)
    return (lost or _restarts(workload)) and replica.interruptions < MOST_INTERRUPTIONS


def _restarts(workload: Workload) -> bool:
    bound = workload.program.client_bound or workload.kind is WorkloadKind.EXEC
    return not bound and workload.retry.policy is not RestartPolicy.NEVER


def runs_elsewhere(workload: Workload) -> bool:
    """Whether its replicas are run again on other nodes when theirs are lost.

    That is batch work that is restarted after a failure, or that may be preempted and so has to bear it.
    """
    batch = workload.kind in {WorkloadKind.RUN, WorkloadKind.TRAINING}
    return batch and (_restarts(workload) or (workload.preemptible and not workload.program.client_bound))


def _final_state(workload: Workload, reason: Reason) -> ReplicaState:
    if reason is Reason.GANG_DONE:
        return ReplicaState.SUCCEEDED
    if workload.kind is WorkloadKind.LEASE and reason is Reason.RELEASED:
        return ReplicaState.SUCCEEDED
    if reason in _ENDS_AS_FAILURE or reason in _POOLS_FAULT or reason is Reason.START_FAILED:
        return ReplicaState.FAILED
    return ReplicaState.STOPPED


def _sentence(reason: Reason, report: ExitReport) -> str:
    if report.message:
        return report.message
    if report.reason is ExitReason.FENCED:
        return "its node was out of contact with the pool for too long and ended it"
    if reason is Reason.EXITED and report.signal is not None:
        return f"killed by signal {report.signal}"
    if reason is Reason.EXITED:
        return f"exited with status {report.exit_code}"
    return str(reason).lower().replace("_", " ")


def _event(replica: Replica, at: float, reason: Reason, message: str) -> Event:
    return Event(at, POOL, reason, message, replica.workload, replica.index)
