"""Windows: the parts of a wait in which several GPUs are held although work without a time limit runs on them.

Nobody knows when such work ends, and until the last of it ends the other held GPUs are idle. They are therefore held in
the first quarter of each doubling of the wait: with ``reserve_after_s`` of 5 minutes from 5 to 6¼, from 10 to 12½, from
20 to 25 minutes and so on. In between other work may use them. The windows become longer until all work ends in one of
them, so nothing starves.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import floor, inf, log2

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Claim
from gpupool.scheduling.values import PendingReplica, ReplicaKey

_HELD_PART = 0.25  # of each doubling of the wait
_CLOCK_ERROR_S = 0.001  # a cycle at the start of a window must be inside


def waiting_since(replica: PendingReplica) -> float:
    """Return the earliest time at which a replica could have started."""
    return max(replica.queued_at, replica.not_before)


def may_hold(
    session: SchedulingSession, replica: PendingReplica, claims: Sequence[Claim], let_in: Container[ReplicaKey] = ()
) -> bool:
    """Return whether claims may be held for a replica (or its gang) now.

    One GPU always, and several ones if all other work there has a time limit, is ending, or is in ``let_in``: started
    by backfill, which ends when it has run too long.
    """
    if sum(claim.permille for claim in claims) <= WHOLE_GPU or _are_limited(session, claims, let_in):
        return True
    return in_window(session, replica)


def in_window(session: SchedulingSession, replica: PendingReplica) -> bool:
    """Return whether a window is open for a replica; request a cycle for when this changes."""
    inside, until = window(session.now - waiting_since(replica), session.settings.reserve_after_s)
    if until < inf:
        session.outcome.wake_at(waiting_since(replica) + until)
    return inside


def window(waited_s: float, after_s: float) -> tuple[bool, float]:
    """Return whether a window is open after this wait, and the wait in seconds after which this changes."""
    if after_s <= 0:
        return True, inf
    waited_s = max(waited_s + _CLOCK_ERROR_S, after_s)
    begin_s = after_s * 2.0 ** floor(log2(waited_s / after_s))
    end_s = begin_s * (1 + _HELD_PART)
    return (True, end_s) if waited_s < end_s else (False, 2 * begin_s)


def _are_limited(session: SchedulingSession, claims: Sequence[Claim], let_in: Container[ReplicaKey]) -> bool:
    for claim in claims:
        wanted = claim.gpu > 0
        for key in session.cluster.on_node(session.cluster.name_of(claim.row)):
            running = session.demand.running.get(key)
            if running is None or running.expected_end is not None or key in session.outcome.leaving or key in let_in:
                continue
            if (session.cluster.claims[key].gpu[wanted] > 0).any():
                return False
    return True
