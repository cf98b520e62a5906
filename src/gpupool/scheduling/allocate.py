"""Allocate: grant free GPUs in scheduling order, the most deprived project first."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from gpupool.scheduling.gang_placement import GangRefusals, find_all
from gpupool.scheduling.holds.settlement import settle_holds
from gpupool.scheduling.holds.starvation import (
    Starvation,
    affordable,
    may_backfill,
    reservations_left,
    reserve_if_starving,
    starving_shapes,
    under_reservations,
)
from gpupool.scheduling.placement.fit_table import fitting
from gpupool.scheduling.scheduling_order import SchedulingOrder, Wanted
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.state.queue_tables import DeadShapes, FirstGroups
from gpupool.scheduling.values import PendingReplica


def allocate(starvation: Starvation) -> bool:
    """Grant everything that fits, the most deprived project first; return True if interrupted with work left.

    A replica that does not fit does not block others, unless it has waited long enough for a reservation.
    """
    session, shapes = starvation.session, starvation.session.demand.first_groups().shapes
    starving = starving_shapes(starvation)
    dead = DeadShapes(shapes, _without_chance(starvation, shapes.live & ~starving))
    refused = GangRefusals()
    turns = SchedulingOrder(session, list(session.demand.project_queues), dead, _WithinLimits(session))
    known: tuple[int, int, bool] | None = None  # what ``dead`` was last found for
    while (first := turns.next()) is not None:
        if len(session.outcome.grants) >= starvation.settings.max_grants:
            return True
        group, replica, queue = first
        tried = _try(starvation, group, replica, dead, refused)
        if starvation.interrupted:
            return True
        if not tried:
            queue.drop()
            if group.shape in dead and (state := _changes(starvation)) != known:
                # earlier starts took places that other shapes needed too
                dead.add_all(_without_chance(starvation, turns.alive() & ~affordable(starvation, starving)))
                known = state
            if not _within_limit(session, group.account.project, group.shape):
                queue.bar(group.shape)
        turns.again(group.account.project)
    return False


def _without_chance(starvation: Starvation, among: Bools) -> Bools:
    """Return which of some shapes have no place and cannot be backfilled, all by number."""
    shapes = starvation.session.demand.first_groups().shapes
    without = among & ~fitting(starvation.session.cluster, shapes, among)
    return without & ~shapes.mask(may_backfill(starvation, shapes.named(without)))


def _changes(starvation: Starvation) -> tuple[int, int, bool]:
    """Return a value that changes with everything on which ``_without_chance`` depends in a cycle."""
    session = starvation.session
    return len(session.outcome.grants), len(session.holds.active), starvation.backfills_left > 0


class _WithinLimits(Wanted):
    """Selects the work that keeps its project and department within their limits."""

    def __init__(self, session: SchedulingSession) -> None:
        self._session, self._limited = session, session.ledger.limited()

    def wants(self, project: int, shape: Shape) -> bool:
        return project not in self._limited or _within_limit(self._session, project, shape)

    def wants_rows(self, firsts: FirstGroups, rows: Ints, least: Ints) -> Bools:
        return self._session.ledger.each_within_limits(firsts.project[rows], least)


def _within_limit(session: SchedulingSession, project: int, shape: Shape) -> bool:
    return session.ledger.within_limits(project, session.placer.least_permille(shape))


def _try(
    starvation: Starvation, group: Group, replica: PendingReplica, dead: DeadShapes, refused: GangRefusals
) -> bool:
    session = starvation.session
    placed = [] if refused.cover(group) else find_all(session, group, replica)
    if not placed:
        refused.add(session, group)
        placed = under_reservations(starvation, group, replica)
    for member, claim in placed:
        session.outcome.grant(member, claim, group.account)
    if placed:
        return True
    reserved = reserve_if_starving(starvation, group, replica)
    if reserved and reservations_left(starvation) > 0:
        return True  # the next replica of the same shape may be starving as well
    if not session.placer.fits_anywhere(group.shape):
        starvation.note_backfill()
        if not may_backfill(starvation, [group.shape]):
            dead.add(group.shape)
    return reserved


class SimulatedQueue:
    """The queue at simulated times, for estimates: replicas start, but only one replica may get a reservation."""

    def __init__(self, session: SchedulingSession, max_grants: int) -> None:
        self._session, settings = session, session.settings
        # the queue must not note long waits at a simulated time
        bounded = replace(settings, max_reservations=0, reserve_after_s=inf, max_grants=max_grants)
        self._others, self._one = Starvation(session, bounded), Starvation(session, settings)

    def start_waiting(self) -> None:
        """Start what fits."""
        settle_holds(self._session)
        allocate(self._others)

    def reserve(self, group: Group, replica: PendingReplica) -> None:
        """Reserve GPUs for a replica if it has waited long enough."""
        reserve_if_starving(self._one, group, replica)
