"""Eviction notices: the decision to evict a replica, and the sentence that explains it to the owner."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.domain.units import format_permille
from gpupool.scheduling.fairness.user_shares import UserShares
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.running import Floats
from gpupool.scheduling.values import Eviction, EvictionKind, PendingReplica, ReplicaKey


def evict(
    session: SchedulingSession,
    keys: Sequence[ReplicaKey],
    for_key: ReplicaKey,
    kind: EvictionKind,
    reasons: Sequence[str],
) -> None:
    """Evict running replicas, each with its own reason."""
    for key, reason in zip(keys, reasons, strict=True):
        session.outcome.evict(Eviction(*key, *for_key, kind, reason))


def reason_of(session: SchedulingSession, victim: ReplicaKey, replica: PendingReplica, kind: EvictionKind) -> str:
    """Return the reason why a replica is evicted for another one, given the state before the eviction."""
    ledger, account = session.ledger, session.demand.accounts[victim]
    project = ledger.projects[account.project]
    if kind is EvictionKind.PREEMPT:
        mine = session.demand.running[victim].priority
        return f"{replica.workload} of priority {replica.priority} in {project.name} preempts it (priority {mine})."
    held = format_permille(int(ledger.used[account.project]) - session.holds.promised.of_project(account.project))
    due = format_permille(int(session.shares.quota[account.project]))
    what = "fair share" if project.quota_permille is None else "quota"
    return f"{project.name} has {held} GPUs allocated, above its {what} of {due}; {replica.project} reclaims its share."


def reason_of_model(
    session: SchedulingSession, victim: ReplicaKey, replica: PendingReplica, model: str, account: Account
) -> str:
    """Return the reason of an eviction by a GPU model quota of ``account``, given the state before the eviction."""
    project, guarantees = session.demand.accounts[victim].project, session.guarantees()
    held, own = guarantees.held_of(project, guarantees.gpus_of(account))
    name = session.ledger.projects[project].name
    lost = "" if held > own else ", which protected workloads use"
    return (
        f"{name} has {format_permille(held)} GPUs of model {model}; its quota for this model is {format_permille(own)}"
        f"{lost}; {replica.project} reclaims its quota."
    )


def reason_of_parts(
    session: SchedulingSession, victim: ReplicaKey, replica: PendingReplica, used: Floats, due: Floats
) -> str:
    """Return the reason of an eviction for whole-GPU work, given the footprints and bounds of projects."""
    number = session.demand.accounts[victim].project
    project = session.ledger.projects[number]
    what = "fair share" if project.quota_permille is None else "quota"
    bound = f"above its {what} of {format_permille(int(due[number]))}"
    if project.quota_permille is None and not due[number]:
        bound = "without a quota"
    return (
        f"{project.name} occupies {format_permille(round(used[number]))} GPUs (a partly used GPU counts as one), "
        f"{bound}; {replica.project} reclaims whole GPUs."
    )


def reason_of_user(session: SchedulingSession, victim: ReplicaKey, replica: PendingReplica, shares: UserShares) -> str:
    """Return the reason of an eviction for another user of the project, given the state before the eviction."""
    ledger, account = session.ledger, session.demand.accounts[victim]
    user, project = ledger.users[account.user].name, ledger.projects[account.project].name
    held, due = format_permille(shares.held(account)), format_permille(round(shares.share(account)))
    return (
        f"{user} has {held} GPUs allocated in {project}, above a share of {due} among its users; "
        f"{replica.user} reclaims a share."
    )
