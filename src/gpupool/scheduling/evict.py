"""Evictions: who is told to end, and the sentence that tells the owner why."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.domain.units import format_permille
from gpupool.scheduling.ledger import Account
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import Eviction, EvictionKind, PendingReplica, ReplicaKey


def evict(
    session: Session, keys: Sequence[ReplicaKey], for_key: ReplicaKey, kind: EvictionKind, reasons: Sequence[str]
) -> None:
    """Tell running replicas to end, each for its own reason."""
    for key, reason in zip(keys, reasons, strict=True):
        session.leaving.add(key)
        session.evictions.append(Eviction(*key, *for_key, kind, reason))


def reason_of(session: Session, victim: ReplicaKey, replica: PendingReplica, kind: EvictionKind) -> str:
    """Why a replica has to go for another one, as things stand before it does."""
    ledger, account = session.ledger, session.demand.accounts[victim]
    project = ledger.projects[account.project]
    if kind is EvictionKind.PREEMPT:
        mine = session.demand.running[victim].priority
        return f"{replica.workload} of priority {replica.priority} in {project.name} needs its GPUs (priority {mine})."
    held = format_permille(int(ledger.used[account.project]) - session.promised[account.project])
    due = format_permille(int(session.shares.quota[account.project]))
    what = "fair share" if project.quota_permille is None else "quota"
    return f"{project.name} holds {held} GPUs over its {what} of {due}; {replica.project} is owed them."


def reason_of_model(session: Session, victim: ReplicaKey, replica: PendingReplica, model: str, account: Account) -> str:
    """Why a replica has to go for one of ``account`` by a quota of a model, as things stand before it does."""
    project, guarantees = session.demand.accounts[victim].project, session.guarantees()
    held, own = guarantees.held_of(project, guarantees.gpus_of(account))
    name = session.ledger.projects[project].name
    lost = "" if held > own else ", used up by protected work elsewhere"
    return (
        f"{name} holds {format_permille(held)} GPUs of model {model}, and its quota of them is {format_permille(own)}"
        f"{lost}; {replica.project} is owed them by its own."
    )
