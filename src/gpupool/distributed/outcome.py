"""The effect of one member's end on the others, by framework and policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from gpupool.distributed import openmpi, tensorflow
from gpupool.domain.events import Reason
from gpupool.domain.work.lifecycle import START_FAILURES
from gpupool.domain.work.workload import (
    Framework,
    OnMemberEnd,
    Replica,
    ReplicaState,
    SuccessPolicy,
    Workload,
    WorkloadState,
)

# Roles that the others always need, because they hold shared state or coordinate.
_CRITICAL = frozenset({*tensorflow.CHIEFS, tensorflow.PARAMETER_SERVER})
_BY_ITSELF = frozenset(
    {
        Reason.EXITED,
        Reason.MEMORY_LIMIT,
        Reason.BACKOFF_EXHAUSTED,
        Reason.REPEATED_FAILURE,
        Reason.TIME_LIMIT,
        *START_FAILURES,
    }
)
_OWN_WILL = frozenset({Reason.SUSPENDED_BY_USER, Reason.GANG_RESTART})


class Verdict(Enum):
    """The action for the other members."""

    CONTINUE = "continue"
    RESTART = "restart"  # all end and start again together, including succeeded ones
    GIVE_UP = "give up"  # all end; the workload has failed
    DONE = "done"  # the remaining members are not needed: they end, and the workload has succeeded


def verdict(workload: Workload, member: Replica, members: Sequence[Replica]) -> Verdict:
    """Return the action after the end of ``member``, whose state is already updated, among all members."""
    if workload.gang is None or workload.stop_reason is not None:
        return Verdict.CONTINUE
    if member.state is ReplicaState.SUCCEEDED:
        return _after_success(workload, members)
    if member.state is not ReplicaState.PENDING or member.reason in _OWN_WILL or not _needed(workload, member.index):
        return Verdict.CONTINUE
    spent = sum(each.failures for each in members) > workload.retry.backoff_limit
    return Verdict.GIVE_UP if spent and member.reason is Reason.RETRY else Verdict.RESTART


def needs_success(workload: Workload, index: int) -> bool:
    """Return True if the workload can only succeed when this member does."""
    role = workload.role_of(index)
    name = "" if role is None else role.name.lower()
    if workload.framework is Framework.MPI:
        return name == openmpi.LAUNCHER
    if workload.framework is not Framework.TF or role is None:
        return True
    names = {each.name.lower() for each in workload.roles}
    chiefs = names & set(tensorflow.CHIEFS)
    if chiefs:
        return name in chiefs
    if tensorflow.WORKER not in names:
        return True
    if name != tensorflow.WORKER:
        return False
    return workload.success_policy is SuccessPolicy.ALL_WORKERS or workload.place_in_roles(index) == (role, 0)


def _after_success(workload: Workload, members: Sequence[Replica]) -> Verdict:
    left = [each for each in members if not each.state.final]
    needed = [each for each in members if needs_success(workload, each.index) and not _outside_round(workload, each)]
    missing = any(each.state is not ReplicaState.SUCCEEDED for each in needed)
    return Verdict.DONE if left and not missing else Verdict.CONTINUE


def _outside_round(workload: Workload, member: Replica) -> bool:
    """Return True for a member that waits to join the round: the work is done when the members of the round succeed."""
    wiring = workload.wiring
    waits = member.state in {ReplicaState.PENDING, ReplicaState.STARTING}
    return waits and wiring is not None and not wiring.has(member.index, member.attempt)


def _needed(workload: Workload, index: int) -> bool:
    if workload.on_member_end is not OnMemberEnd.CONTINUE:
        return True
    role = workload.role_of(index)
    if workload.framework is Framework.TF:
        return role is not None and role.name.lower() in _CRITICAL
    if workload.framework is Framework.TORCH:
        wiring = workload.wiring  # the member with the rendezvous
        return wiring is not None and wiring.seats[0].index == index
    return False


def exit_status(workload: Workload, members: Sequence[Replica]) -> int | None:
    """Return the exit status of an ended gang: 0, or that of the member that failed first by itself."""
    if workload.gang is None or not workload.state.final:
        return None
    if workload.state is WorkloadState.SUCCEEDED:
        return 0
    failed = [r for r in members if r.state is ReplicaState.FAILED and r.exit_status and r.reason in _BY_ITSELF]
    if not failed:
        return None
    return min(failed, key=lambda r: (not needs_success(workload, r.index), r.finished_at or 0.0)).exit_status


def rank_of(workload: Workload, member: Replica) -> int | None:
    """Return the rank of a member in its round."""
    wiring = workload.wiring
    return wiring.rank_of(member.index) if wiring is not None and wiring.has(member.index, member.attempt) else None
