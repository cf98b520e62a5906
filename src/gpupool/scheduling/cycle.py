"""One cycle of the scheduler: a state in, decisions out, the state as it was."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gpupool.scheduling.allocate import allocate
from gpupool.scheduling.backfill import end_overruns
from gpupool.scheduling.booked import evict_booked
from gpupool.scheduling.consolidate import consolidate
from gpupool.scheduling.gang import evict_stale, evict_whole_gangs
from gpupool.scheduling.placement import Placer
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.reclaim import make_room
from gpupool.scheduling.reserve import refresh_reservations
from gpupool.scheduling.session import Session
from gpupool.scheduling.settling import settle_holds
from gpupool.scheduling.turns import take_turns
from gpupool.scheduling.values import Decisions, Hold, Settings

_DEFAULTS = Settings()


def decide(
    placer: Placer,
    demand: Demand,
    now: float,
    holds: Sequence[Hold] = (),
    settings: Settings = _DEFAULTS,
    *,
    whole: bool = False,
) -> Decisions:
    """What to start, whom to end and which space to keep, at ``now`` (seconds since the epoch).

    ``holds`` are those of the last decisions. Everything is tried on the given cluster and ledger and taken back:
    the caller applies the decisions by the same events as any other change (``Scheduler`` does). Whoever has waited
    for ``not_before`` joins the queue. Room for others is made by a cycle that grants nothing, or by each second one;
    a ``whole`` one does all, and knows nothing of the one before.
    """
    placer.cluster.pass_time(now)
    demand.wake(now)
    session = Session(placer, demand, now, settings)
    session.hasty = not (whole or demand.room_wanted)
    try:
        session.haunt(holds)
        evict_booked(session)
        refresh_reservations(session)
        settle_holds(session)
        end_overruns(session)
        cut_short = allocate(session)
        granted = bool(session.grants) and session.others_wait()
        make_room_now = not cut_short and (whole or demand.room_wanted or not granted)
        if make_room_now:
            make_room(session)
            take_turns(session)
            consolidate(session)
        if not whole:
            demand.room_wanted = not make_room_now  # whoever got something hears of it first
        evict_stale(session)
        evict_whole_gangs(session)
        return _decisions(session, more=cut_short or granted)
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
    if session.others_wait():
        times += session.later
    return min((t for t in times if t is not None and session.now < t < inf), default=None)
