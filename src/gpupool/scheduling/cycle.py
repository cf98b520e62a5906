"""One cycle of the scheduler: a state in, decisions out, the state as it was."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.scheduling.allocate import allocate, settle_holds
from gpupool.scheduling.backfill import end_overruns
from gpupool.scheduling.booked import evict_booked
from gpupool.scheduling.consolidate import consolidate
from gpupool.scheduling.gang import evict_stale, evict_whole_gangs
from gpupool.scheduling.placement import Placer
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.reclaim import make_room
from gpupool.scheduling.reserve import refresh_reservations
from gpupool.scheduling.session import Session
from gpupool.scheduling.turns import take_turns
from gpupool.scheduling.values import Decisions, Hold, Settings

_DEFAULTS = Settings()


def decide(
    placer: Placer, demand: Demand, now: float, holds: Sequence[Hold] = (), settings: Settings = _DEFAULTS
) -> Decisions:
    """What to start, whom to end and which space to keep, at ``now`` (seconds since the epoch).

    ``holds`` are those of the last decisions. Everything is tried on the given cluster and ledger and taken back:
    the caller applies the decisions by the same events as any other change (``Scheduler`` does). Whoever has waited
    for ``not_before`` joins the queue.
    """
    placer.cluster.pass_time(now)
    demand.wake(now)
    session = Session(placer, demand, now, settings)
    try:
        session.haunt(holds)
        evict_booked(session)
        refresh_reservations(session)
        settle_holds(session)
        end_overruns(session)
        more = allocate(session)
        if not more:
            make_room(session)
            take_turns(session)
            consolidate(session)
        evict_stale(session)
        evict_whole_gangs(session)
        return _decisions(session, more=more)
    finally:
        session.close()


def _decisions(session: Session, *, more: bool) -> Decisions:
    return Decisions(
        grants=tuple(session.grants),
        evictions=tuple(session.evictions),
        holds=tuple(ghost.hold for ghost in session.ghosts.values()),
        more=more,
        exhausted=session.exhausted,
        wake_at=_wake_at(session),
    )


def _wake_at(session: Session) -> float | None:
    """The next end of a back-off, or the next moment somebody may be evicted or reserve, while work waits."""
    times: list[float | None] = [session.demand.next_wake(), *session.alarms]
    if len(session.gone) < len(session.demand.pending):
        times += session.later
    return min((t for t in times if t is not None and t > session.now), default=None)
