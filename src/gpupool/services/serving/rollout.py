"""The replicas that a service starts, drains and stops next. Pure: the controller carries it out.

An update adds replicas of the target revision, at most ``surge`` above the desired number, and drains one of the others
for each that became ready. So the number of ready replicas never falls below the desired one, unless ``surge`` is 0.
Replicas on a node that is drained are replaced in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.domain.work.service import ReplicaStatus, Service

SETTLE_S = 2.0  # a draining replica gets requests until the gateway has the new table


@dataclass(frozen=True, slots=True)
class RolloutSteps:
    """The next steps: replicas to start (of the target revision), to drain, to use again, and to stop.

    ``protected`` of the started ones are protected within the quota. ``complete``: the target has replaced all others.
    """

    start: int = 0
    protected: int = 0
    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    complete: bool = False


def plan(service: Service, desired: int, replicas: Sequence[ReplicaStatus]) -> RolloutSteps:
    """Return the next steps towards ``desired`` replicas of the target revision."""
    active = [each for each in replicas if each.draining_s is None]
    draining = [each for each in replicas if each.draining_s is not None]
    stop = tuple(each.id for each in draining if _drained(each, service.update.drain_s))
    new = [each for each in active if each.revision == service.target and not each.leaving]
    old = [each for each in active if each.revision != service.target or each.leaving]
    if desired == 0:
        gone = not any(each.revision != service.target for each in replicas)
        return RolloutSteps(drain=tuple(each.id for each in active), stop=stop, complete=service.updating and gone)
    if not old:
        return _scale(service, desired, new, draining, stop)
    return _replace(service, desired, new, old, draining, stop)


def _drained(replica: ReplicaStatus, drain_s: float) -> bool:
    """Return True if a draining replica has no requests any more, or had its time."""
    waited = replica.draining_s or 0.0
    if not replica.served or waited >= drain_s:
        return True
    return replica.requests == 0 and waited >= min(SETTLE_S, drain_s)


def _scale(
    service: Service, desired: int, new: list[ReplicaStatus], draining: list[ReplicaStatus], stop: tuple[str, ...]
) -> RolloutSteps:
    """Return the steps while all active replicas have the target revision."""
    ready = sum(each.ready for each in new)
    complete = service.updating and ready >= desired and all(each.revision == service.target for each in draining)
    surplus = sorted(new, key=_worth)[: max(0, len(new) - desired)]
    missing = max(0, desired - len(new))
    usable = [each for each in draining if each.revision == service.target and each.ready and not each.leaving]
    again = [each for each in usable if each.id not in stop][:missing]
    start = missing - len(again)
    return RolloutSteps(
        start,
        min(start, _unprotected(service, [*new, *again])),
        tuple(each.id for each in surplus),
        tuple(each.id for each in again),
        stop,
        complete,
    )


def _replace(
    service: Service,
    desired: int,
    new: list[ReplicaStatus],
    old: list[ReplicaStatus],
    draining: list[ReplicaStatus],
    stop: tuple[str, ...],
) -> RolloutSteps:
    """Return the steps while replicas are active that must be replaced."""
    ready = sum(each.ready for each in new)
    room = desired + service.update.surge - len(new) - len(old) - len(draining)
    start = max(0, min(desired - len(new), room))
    leaving = len(old) - max(0, desired - ready)
    if room <= 0 and len(new) == ready and not draining and len(new) < desired:
        leaving = max(leaving, 1)
    drain = sorted(old, key=_worth)[: max(0, leaving)]
    return RolloutSteps(start, min(start, _unprotected(service, new)), tuple(each.id for each in drain), (), stop)


def _unprotected(service: Service, replicas: Sequence[ReplicaStatus]) -> int:
    """Return the number of replicas that may still be protected: the minimum of the service, at least one."""
    return max(0, max(1, service.scale.least) - sum(each.protected for each in replicas))


def _worth(replica: ReplicaStatus) -> tuple[bool, bool, bool, float]:
    """Order replicas by what is lost when they stop: the youngest that serves nobody and may be preempted first."""
    return replica.ready, replica.started, replica.protected, -replica.created_at
