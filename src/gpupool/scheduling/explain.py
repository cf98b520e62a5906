"""Why a replica waits: the first rule that stands in its way, with the numbers, and when it may start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gpupool.scheduling.estimate import Estimate, estimate
from gpupool.scheduling.placement import Placer
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.runtimes import History
from gpupool.scheduling.session import Session
from gpupool.scheduling.values import Hold, ReplicaKey, Settings
from gpupool.scheduling.wait_rules import RULES, Case, Finding, Numbers, WaitCode

__all__ = ["Explanation", "WaitCode", "explain"]

_NO_HISTORY: History = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why does it wait?".

    ``position`` counts from 1 within the project (0: not in the queue). ``ahead_total`` adds those of other projects
    who queued earlier. ``numbers`` are those of the sentence. ``estimate_s`` is seconds from now, None when nothing
    is known; ``estimate_basis`` says what it rests on, or why there is none.
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


def explain(  # noqa: PLR0913, PLR0917 - the state, the question, and what the answer may rest on
    placer: Placer,
    demand: Demand,
    holds: Sequence[Hold],
    key: ReplicaKey,
    now: float,
    history: History = _NO_HISTORY,
    settings: Settings | None = None,
) -> Explanation | None:
    """Why a replica waits at ``now``; None when it does not wait. The state is left as it was."""
    demand.wake(now)
    replica = demand.pending.get(key)
    if replica is None:
        return None
    demand.account_of(replica)  # made known before the trial begins
    session = Session(placer, demand, now, settings or Settings())
    try:
        session.haunt(holds)
        case = Case(session, replica)
        finding = next(found for rule in RULES if (found := rule(case)) is not None)
        guess = _estimate(session, case, finding, history)
    finally:
        session.close()
    queued = demand.group_of(key) is not None
    return Explanation(
        code=finding.code,
        sentence=finding.sentence,
        position=case.ahead + 1 if queued else 0,
        ahead_in_project=case.ahead,
        ahead_total=case.ahead_total,
        numbers=finding.numbers,
        would_help=finding.would_help,
        estimate_s=guess.start_in_s,
        estimate_basis=guess.basis,
    )


_ENDLESS = {
    WaitCode.NO_SUCH_MODEL: "no node has such a GPU",
    WaitCode.TOO_LARGE: "no node is large enough",
    WaitCode.SUSPENDED: "it starts after it is resumed",
    WaitCode.DEPENDENCY: "it depends on when other work ends",
    WaitCode.PARALLELISM: "it depends on when other replicas of the workload end",
}


def _estimate(session: Session, case: Case, finding: Finding, history: History) -> Estimate:
    if finding.code in _ENDLESS:
        return Estimate(None, _ENDLESS[finding.code])
    if finding.code is WaitCode.BACK_OFF:
        return Estimate(case.replica.not_before - session.now, "the end of its back-off, if something is free then")
    return estimate(session, case.replica.key, history)
