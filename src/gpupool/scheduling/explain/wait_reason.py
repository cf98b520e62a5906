"""Explanation of a wait: the first rule that keeps a replica waiting, what would help, and when it may start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpupool.scheduling.eviction.reclaim_policy import ReclaimPolicy
from gpupool.scheduling.explain.background import Background
from gpupool.scheduling.explain.estimate import Estimate, MakeQueue, estimate
from gpupool.scheduling.explain.share_report import project_order
from gpupool.scheduling.explain.suggestions import suggestions
from gpupool.scheduling.explain.wait_case import Case, Explanation, WaitCode, WaitFinding
from gpupool.scheduling.explain.wait_rules import RULES
from gpupool.scheduling.gang_placement import place
from gpupool.scheduling.holds.runtime_model import GRACE_S, Foreseen
from gpupool.scheduling.placement.replica import Placer
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import HeldAllocation
from gpupool.scheduling.state.cluster import MILLI
from gpupool.scheduling.state.queue import Demand
from gpupool.scheduling.values import Decisions, Hold, HoldKind, ReplicaKey

__all__ = ["Explanation", "WaitCode", "explain"]

_NOTHING = Background()
MAX_MOMENTS = 3  # times to try
MAX_RUNNING = 2_000  # in larger pools the forecast would take too long


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions of a cycle that an explanation tries: evictions for work that does not fit, and starts."""

    make_room: Callable[[SchedulingSession], bool]
    make_queue: MakeQueue


def explain(  # noqa: PLR0913, PLR0917 - the state, the question, and what the answer may rest on
    placer: Placer,
    demand: Demand,
    holds: Sequence[Hold],
    key: ReplicaKey,
    now: float,
    background: Background = _NOTHING,
    settings: Settings | None = None,
    decided: Decisions | None = None,
    *,
    actions: Actions,
    foretell: bool = True,
) -> Explanation | None:
    """Return why a replica waits at ``now``; None if it does not wait. The state is left unchanged.

    ``decided`` are the decisions of a cycle on that state: the answer is about the remaining resources. ``foretell``
    False omits the expensive parts in a large pool: the estimate, and suggestions that have been tried.
    """
    placer.cluster.pass_time(now)
    demand.wake(now)
    replica = demand.pending.get(key)
    if replica is None:
        return None
    demand.account_of(replica)  # registered before the trial begins
    session = SchedulingSession(placer, demand, now, settings or Settings())
    try:
        _after(session, holds, decided)
        case = Case(session, replica, project_order(session), place)
        finding = _searched(case, next(found for rule in RULES if (found := rule(case)) is not None))
        if not foretell:
            return _told(case, finding, finding.would_help, Estimate(None, ""), background)
        foreseen = Foreseen(demand, session.cluster, session.outcome, session.now, background.history)
        helps = _helps(case, finding, foreseen, background)
        guess = _estimate(case, finding, foreseen, background, actions.make_queue)
    finally:
        session.close()
    if finding.code in _MAY_RECLAIM:
        kept = holds if decided is None else decided.holds
        guess = _sooner(guess, evicts_at(session, kept, key, actions.make_room), now)
    return _told(case, finding, helps, guess, background)


def _searched(case: Case, finding: WaitFinding) -> WaitFinding:
    """Add that the replica may reclaim GPUs and that the victim search was interrupted, if so."""
    session = case.session
    owed = ReclaimPolicy(session).may_reclaim(case.account, case.need)
    if finding.code not in _MAY_RECLAIM or not session.demand.searched or not owed:
        return finding
    sentence = f"{finding.sentence}; it may reclaim GPUs, and the search for victims continues"
    return replace(finding, sentence=sentence, numbers={**finding.numbers, "search": "unfinished"})


def _sooner(guess: Estimate, evicts: float | None, now: float) -> Estimate:
    """Return an estimate, or the moment at which evictions for the replica make room, if that comes first."""
    wait = None if evicts is None else evicts - now + GRACE_S / 2
    if wait is None or (guess.start_in_s is not None and guess.start_in_s <= wait):
        return guess
    basis = "it reclaims GPUs from replicas whose min-runtime ends then"
    return Estimate(wait, basis, wait - GRACE_S / 2, wait + GRACE_S / 2)


def _after(session: SchedulingSession, holds: Sequence[Hold], decided: Decisions | None) -> None:
    """Apply holds and a cycle's decisions to the session; replicas that are evicted count as leaving."""
    if decided is None:
        session.holds.apply(holds)
        return
    session.holds.apply(decided.holds)
    session.outcome.mark_leaving(eviction.key for eviction in decided.evictions)
    for grant in decided.grants:
        replica = session.demand.pending[grant.key]
        cpu = round(replica.cpus * MILLI)
        held = HeldAllocation(grant.node, grant.shares, cpu, replica.memory_mib, grant.sharing, replica.user)
        claim, account = session.cluster.claim_of(held), session.demand.account_of(replica)
        session.charge(claim, account)
        session.outcome.grant(replica, claim, account)


def _told(
    case: Case, finding: WaitFinding, helps: tuple[str, ...], guess: Estimate, background: Background
) -> Explanation:
    queued = case.session.demand.group_of(case.replica.key) is not None
    told = Explanation(
        code=finding.code,
        sentence=finding.sentence,
        position=case.ahead + 1 if queued else 0,
        ahead_in_project=case.ahead,
        ahead_total=case.ahead_total,
        numbers=finding.numbers,
        would_help=helps,
        estimate_s=guess.start_in_s,
        estimate_basis=guess.basis,
        estimate_low_s=guess.low_s,
        estimate_high_s=guess.high_s,
        foretold_s=None if finding.code in _EXACT else guess.start_in_s,
    )
    return _corrected(told, background)


def _corrected(told: Explanation, background: Background) -> Explanation:
    """Return the explanation with the errors of past estimates counted in."""
    slip = background.slip
    if not told.estimate_s or not slip.outcomes or told.code in _EXACT:
        return told
    least, low, mid, high, most = slip.corrected(told.estimate_s)
    basis = f"{told.estimate_basis}; corrected, because {slip.words()}" if slip.words() else told.estimate_basis
    return replace(
        told,
        estimate_s=mid,
        estimate_low_s=low,
        estimate_high_s=high,
        estimate_least_s=least,
        estimate_most_s=most,
        estimate_basis=basis,
    )


_ENDLESS = {
    WaitCode.NO_SUCH_MODEL: "no node has such a GPU",
    WaitCode.TOO_LARGE: "no node is large enough",
    WaitCode.SUSPENDED: "it starts after it is resumed",
    WaitCode.DEPENDENCY: "it depends on when other work ends",
    WaitCode.PARALLELISM: "it depends on when other replicas of the workload end",
    WaitCode.WINDOW: "it starts after its time window has opened",
    WaitCode.FOLDER: "it starts after its folder has been fetched",
    WaitCode.MANY_REQUESTS: "it depends on when its turn comes",
    WaitCode.GPU_HOURS: "it starts when there are GPU hours again",
    WaitCode.MIG_INSTANCE: "it depends on when its MIG instance is created",
}
_EXACT = frozenset({*_ENDLESS, WaitCode.BACK_OFF, WaitCode.STARTING_SOON})
_MAY_RECLAIM = frozenset(
    {WaitCode.WAITING_FOR_GPU, WaitCode.GANG, WaitCode.RESERVED_FOR_OTHERS, WaitCode.CPU_OR_MEMORY}
)
_NEED_NOTHING = frozenset({*_EXACT} - {WaitCode.NO_SUCH_MODEL, WaitCode.TOO_LARGE})
_BY_BOUND = frozenset(
    {
        WaitCode.PROJECT_QUOTA,
        WaitCode.PROJECT_LIMIT,
        WaitCode.DEPARTMENT_QUOTA,
        WaitCode.DEPARTMENT_LIMIT,
        WaitCode.USER_LIMIT,
    }
)
_GENERAL = frozenset({WaitCode.WAITING_FOR_GPU, WaitCode.RESERVED_FOR_OTHERS, WaitCode.CPU_OR_MEMORY})


def _helps(case: Case, finding: WaitFinding, foreseen: Foreseen, background: Background) -> tuple[str, ...]:
    """Return the suggestions that have been tried and help, before those that may help in general."""
    if finding.code in _NEED_NOTHING:
        return finding.would_help
    ends_help = finding.code not in _BY_BOUND and case.size == 1
    tried = suggestions(case, foreseen if ends_help else None, background.name)
    if tried and finding.code in _GENERAL:
        return tried
    general = [h for h in finding.would_help if not ("preemptible" in h and any("preemptible" in t for t in tried))]
    return (*tried, *general)


def _estimate(
    case: Case, finding: WaitFinding, foreseen: Foreseen, background: Background, make_queue: MakeQueue
) -> Estimate:
    session = case.session
    if finding.code in _ENDLESS:
        return Estimate(None, _ENDLESS[finding.code])
    if finding.code is WaitCode.BACK_OFF:
        return Estimate(case.replica.not_before - session.now, "the end of its back-off, if GPUs are free then")
    if finding.code is WaitCode.STARTING_SOON and case.active is not None and session.outcome.leaving:
        return Estimate(GRACE_S / 2, "the replicas that are evicted for it end within their grace period", 0.0, GRACE_S)
    return estimate(session, case.replica.key, background.history, foreseen, make_queue)


def evicts_at(
    closed: SchedulingSession, holds: Sequence[Hold], key: ReplicaKey, make_room: Callable[[SchedulingSession], bool]
) -> float | None:
    """Return the first of a few times at which others would be evicted for ``key``; None if they never are.

    ``closed`` is the session of the explanation. The state stays unchanged.
    """
    demand, now, settings = closed.demand, closed.now, closed.settings
    group = demand.group_of(key)
    if group is None or len(demand.running) > MAX_RUNNING:
        return None
    for moment in _moments(demand, now, settings):
        with demand.with_pending((), now):
            session = SchedulingSession(closed.placer, demand, moment, settings)
            try:
                session.holds.apply(holds)
                if key not in session.holds.active and ReclaimPolicy(session).may_reclaim(group.account, 1):
                    make_room(session)
                active = session.holds.active.get(key)
            finally:
                session.close()
        if active is not None and active.hold.kind is HoldKind.NOMINATED:
            return moment
    return None


def _moments(demand: Demand, now: float, settings: Settings) -> list[float]:
    """Return the first, the middle and the last end of a min-runtime."""
    holders = demand.holders
    slots, least_s = np.flatnonzero(holders.evictable), settings.min_runtime_s
    evictable = np.concatenate([holders.evictable_at(slots, least_s), holders.shielded_until(slots, least_s)])
    later = np.unique(evictable[evictable > now])
    if not len(later):
        return []
    picked = np.linspace(0, len(later) - 1, min(MAX_MOMENTS, len(later))).astype(np.int64)
    return [float(later[at]) for at in picked]
