"""Why a replica waits: the first rule that stands in its way, what would help, and when it may start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpupool.scheduling.background import Background
from gpupool.scheduling.claims import Holding
from gpupool.scheduling.cluster import MILLI
from gpupool.scheduling.estimate import Estimate, estimate
from gpupool.scheduling.placement import Placer
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.remedies import remedies
from gpupool.scheduling.rights import Rights
from gpupool.scheduling.ripening import evicts_at
from gpupool.scheduling.runtimes import GRACE_S, Foreseen
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import Decisions, Hold, ReplicaKey, Settings
from gpupool.scheduling.wait_case import Case, Finding, Numbers, WaitCode
from gpupool.scheduling.wait_rules import RULES

__all__ = ["Explanation", "WaitCode", "explain"]

_NOTHING = Background()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why does it wait?".

    ``position`` counts from 1 within the project (0: not in the queue). ``ahead_total`` adds those of other projects
    who queued earlier. ``numbers`` are those of the sentence. ``estimate_s`` is seconds from now, None when nothing
    is known, most likely between ``estimate_low_s`` and ``estimate_high_s``; ``estimate_basis`` says what it rests
    on, or why there is none. ``foretold_s`` is the estimate before past errors were
    counted in, None where it cannot be off.
    """

    code: WaitCode
    sentence: str
    position: int = 0
    ahead_in_project: int = 0
    ahead_total: int = 0
    numbers: Numbers = field(default_factory=dict)
    would_help: tuple[str, ...] = ()
    estimate_s: float | None = None
    estimate_basis: str = ""
    estimate_low_s: float | None = None
    estimate_high_s: float | None = None
    foretold_s: float | None = None


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
    foretell: bool = True,
) -> Explanation | None:
    """Why a replica waits at ``now``; None when it does not wait. The state is left as it was.

    ``decided`` is what a cycle has decided on that state: the answer is about what is left after it. ``foretell``
    False leaves out what takes long in a large pool: the estimate, and remedies that have been tried.
    """
    placer.cluster.pass_time(now)
    demand.wake(now)
    replica = demand.pending.get(key)
    if replica is None:
        return None
    demand.account_of(replica)  # made known before the trial begins
    session = Session(placer, demand, now, settings or Settings())
    try:
        _after(session, holds, decided)
        case = Case(session, replica)
        finding = _searched(case, next(found for rule in RULES if (found := rule(case)) is not None))
        if not foretell:
            return _told(case, finding, finding.would_help, Estimate(None, ""), background)
        foreseen = Foreseen(session, background.history)
        helps = _helps(case, finding, foreseen, background)
        guess = _estimate(session, case, finding, foreseen, background)
    finally:
        session.close()
    if finding.code in _MAY_RECLAIM:
        kept = holds if decided is None else decided.holds
        guess = _sooner(guess, evicts_at(placer, demand, kept, key, now, session.settings), now)
    return _told(case, finding, helps, guess, background)


def _searched(case: Case, finding: Finding) -> Finding:
    """Adds that it is owed space and that the search for who could make room was cut short, if so."""
    session = case.session
    owed = Rights(session).may_reclaim(case.account, case.need)
    if finding.code not in _MAY_RECLAIM or not session.demand.searched or not owed:
        return finding
    sentence = f"{finding.sentence}; it is owed space, and who could make room is still being looked for"
    return replace(finding, sentence=sentence, numbers={**finding.numbers, "search": "unfinished"})


def _sooner(guess: Estimate, evicts: float | None, now: float) -> Estimate:
    """An estimate, or the moment at which others are told to make room, if that comes first."""
    wait = None if evicts is None else evicts - now + GRACE_S / 2
    if wait is None or (guess.start_in_s is not None and guess.start_in_s <= wait):
        return guess
    basis = "it is owed space by others, who make room once they have run for as long as nobody is evicted"
    return Estimate(wait, basis, wait - GRACE_S / 2, wait + GRACE_S / 2)


def _after(session: Session, holds: Sequence[Hold], decided: Decisions | None) -> None:
    """As things stand once a cycle's decisions are carried out, but for those who have been told to go."""
    if decided is None:
        session.haunt(holds)
        return
    session.haunt(decided.holds)
    session.leaving.update(eviction.key for eviction in decided.evictions)
    for grant in decided.grants:
        replica = session.demand.pending[grant.key]
        cpu = round(replica.cpus * MILLI)
        held = Holding(grant.node, grant.shares, cpu, replica.memory_mib, grant.sharing, replica.user)
        session.grant(replica, session.cluster.claim_of(held), session.demand.account_of(replica))


def _told(case: Case, finding: Finding, helps: tuple[str, ...], guess: Estimate, background: Background) -> Explanation:
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
    return _corrected(told, background, case.replica.project)


def _corrected(told: Explanation, background: Background, project: str) -> Explanation:
    """With the errors of past estimates counted in."""
    slip = background.slip(project)
    if not told.estimate_s or not slip.outcomes or told.code in _EXACT:
        return told
    low, mid, high = (told.estimate_s * ratio for ratio in (slip.low, slip.mid, slip.high))
    basis = f"{told.estimate_basis}; {slip.words()}, which is counted in" if slip.words() else told.estimate_basis
    return replace(told, estimate_s=mid, estimate_low_s=low, estimate_high_s=high, estimate_basis=basis)


_ENDLESS = {
    WaitCode.NO_SUCH_MODEL: "no node has such a GPU",
    WaitCode.TOO_LARGE: "no node is large enough",
    WaitCode.SUSPENDED: "it starts after it is resumed",
    WaitCode.DEPENDENCY: "it depends on when other work ends",
    WaitCode.PARALLELISM: "it depends on when other replicas of the workload end",
    WaitCode.WINDOW: "it starts after its time window has opened",
    WaitCode.FOLDER: "it starts after its folder has been fetched",
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


def _helps(case: Case, finding: Finding, foreseen: Foreseen, background: Background) -> tuple[str, ...]:
    """What has been tried and helps, before what may help in general."""
    if finding.code in _NEED_NOTHING:
        return finding.would_help
    ends_help = finding.code not in _BY_BOUND and case.size == 1
    tried = remedies(case, foreseen if ends_help else None, background.name)
    if tried and finding.code in _GENERAL:
        return tried
    general = [h for h in finding.would_help if not ("preemptible" in h and any("preemptible" in t for t in tried))]
    return (*tried, *general)


def _estimate(session: Session, case: Case, finding: Finding, foreseen: Foreseen, background: Background) -> Estimate:
    if finding.code in _ENDLESS:
        return Estimate(None, _ENDLESS[finding.code])
    if finding.code is WaitCode.BACK_OFF:
        return Estimate(case.replica.not_before - session.now, "the end of its back-off, if something is free then")
    if finding.code is WaitCode.STARTING_SOON and case.ghost is not None and session.leaving:
        return Estimate(GRACE_S / 2, "whoever makes room for it has to end within its grace period", 0.0, GRACE_S)
    return estimate(session, case.replica.key, background.history, foreseen)
