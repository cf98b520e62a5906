"""The rule of reclaim: which work a project may take from another project, by fair share or by quota.

Two projects are compared one level below what they have in common: as projects in one department, else by their
departments. Either the taker stays within its fair share and the holder is above its own, or the taker stays within a
quota that was set and the holder is above its own. A project within its quota loses nothing, unless its department is
above a quota of its own and the taker stays within its quota.

A rule is a function of numbers, or of arrays with one number for each project. So it is the same for one pair, for all
projects at once, and for the question which other projects may take no more (``may_take_no_more``). Amounts are
thousandths of a GPU. The rules follow KAI's proportion plugin.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpupool.scheduling.state.allocation import EPSILON, Bools, Ints

Amount = Any  # a number, or an array of numbers
Fact = Any  # a bool, or an array of bools

# Work cannot be divided at will. This part of a job may exceed the fair share if the victim exceeds its own share by
# twice as much, and its quota as well. Otherwise the victim would reclaim its guaranteed GPUs, and so on for ever.
ROUNDING = 0.25


class ShareBounds(NamedTuple):
    """The bounds of a project and its department; ``has_quota`` and ``bounded``: whether their quotas were set."""

    fair: Amount
    quota: Amount
    has_quota: Fact
    dept_fair: Amount
    dept_quota: Amount
    bounded: Fact


class Taker(NamedTuple):
    """A project that wants ``extra`` more, as far as the rule depends on it.

    ``in_share``, ``in_quota`` and ``dept_in_share`` say whether it stays within that bound, with rounding of shares.
    ``claims`` and ``dept_claims`` say whether it may claim by a quota that was set: inside its department, and from
    other departments. ``promised``: everything that it then holds is within such a quota. A victim must exceed its fair
    share by ``margin``, and its department by ``dept_margin``; these are 0 unless the taker would exceed its own share.
    ``room`` and ``dept_room`` are what is left of the fair shares.
    """

    project: Amount
    dept: Amount
    extra: int
    in_share: Fact
    in_quota: Fact
    dept_in_share: Fact
    claims: Fact
    dept_claims: Fact
    promised: Fact
    margin: Amount
    dept_margin: Amount
    room: Amount
    dept_room: Amount


class Holding(NamedTuple):
    """A project that might lose work: what it and its department hold, without what is only promised to them."""

    project: Amount
    dept: Amount
    held: Amount
    dept_held: Amount
    bounds: ShareBounds


def within_share(claimed: Amount, fair: Amount, extra: int) -> Fact:
    """Return whether ``extra`` more stay within a fair share, which the part ``ROUNDING`` of it may exceed."""
    return claimed + extra <= fair + ROUNDING * extra + EPSILON


def within(claimed: Amount, bound: Amount, extra: int) -> Fact:
    """Return whether ``extra`` more stay within a bound."""
    return claimed + extra <= bound + EPSILON


def above(held: Amount, bound: Amount) -> Fact:
    """Return whether an amount is above a bound."""
    return held > bound + EPSILON


def budget(claimed: Amount, bounds: ShareBounds) -> Amount:
    """Return the most that a project may take from others now."""
    by_share = (bounds.fair - claimed) / (1 - ROUNDING) + EPSILON
    by_quota = bounds.quota + EPSILON - claimed
    return np.maximum(np.maximum(by_share // 1, by_quota // 1), 0)


def taker(
    project: Amount, dept: Amount, extra: int, claimed: Amount, dept_claimed: Amount, bounds: ShareBounds
) -> Taker:
    """Return a project that wants ``extra`` more than ``claimed``: what it holds and what holds will give it.

    Without a quota a project claims only its share: inside its department it may take more only from projects above
    theirs. The same holds inside a department above a quota of its own: its projects answer for that together.
    """
    fair, quota, has_quota, dept_fair, dept_quota, bounded = bounds
    in_quota, dept_in_quota = within(claimed, quota, extra), within(dept_claimed, dept_quota, extra)
    unbounded, without_quota = bounded ^ True, has_quota ^ True
    margin = 2 * ROUNDING * extra
    return Taker(
        project=project,
        dept=dept,
        extra=extra,
        in_share=within_share(claimed, fair, extra),
        in_quota=in_quota,
        dept_in_share=within_share(dept_claimed, dept_fair, extra),
        claims=in_quota & has_quota & (unbounded | within(dept_claimed, dept_quota, 0)),
        dept_claims=in_quota & (has_quota | bounded) & dept_in_quota,
        promised=(has_quota & in_quota) | (without_quota & bounded & dept_in_quota),
        margin=margin * above(claimed + extra, fair),
        dept_margin=margin * above(dept_claimed + extra, dept_fair),
        room=fair - claimed,
        dept_room=dept_fair - dept_claimed,
    )


def grounds(who: Taker, holder: Holding) -> tuple[Fact, Fact]:
    """Return whether the taker may take from the holder by fair share, and whether by a quota that was set."""
    fair, quota, _, dept_fair, dept_quota, bounded = holder.bounds
    near, far = holder.dept == who.dept, holder.dept != who.dept
    above_share, above_quota = above(holder.held, fair + who.margin), above(holder.held, quota)
    dept_above_share = above(holder.dept_held, dept_fair + who.dept_margin)
    dept_above_quota = above(holder.dept_held, dept_quota)
    outranked = bounded & dept_above_quota & who.in_quota
    victim = (holder.project != who.project) & (above_quota | outranked)
    beyond = (above_share | above_quota) & (who.in_share | who.in_quota)
    dept_beyond = dept_above_share & ((who.dept_margin == 0) | dept_above_quota)
    by_share = (near & above_share & who.in_share) | (far & dept_beyond & who.dept_in_share & beyond)
    by_quota = (near & above_quota & who.claims) | (far & dept_above_quota & who.dept_claims & beyond)
    return victim & by_share, victim & by_quota


def may_take_large(who: Taker, holder: Holding, piece: Amount) -> Fact:
    """Return whether the taker may take pieces by fair share that are larger than what it wants.

    The holder is above its share by the whole piece, or the taker could hold as much within its own share and the piece
    is not all that the holder has. Otherwise the holder would be as far below its share as it was above, and take the
    piece back.
    """
    bounds, near, far = holder.bounds, holder.dept == who.dept, holder.dept != who.dept
    inside = _lies_beyond(holder.held, bounds.fair, who.room, piece)
    outside = _lies_beyond(holder.dept_held, bounds.dept_fair, who.dept_room, piece)
    return (near & inside) | (far & outside)


def _lies_beyond(held: Amount, fair: Amount, room: Amount, piece: Amount) -> Fact:
    over = held - fair
    margin = 2 * ROUNDING * piece * above(piece, room)
    swap = within((1 - ROUNDING) * piece, room, 0) & above(over, margin) & (held > piece)
    return (over + EPSILON >= piece) | swap


def may_take_no_more(others: Taker, who: Taker, pieces: Sequence[int]) -> Bools:
    """Return which takers may take no piece of any third project that ``who`` may not take.

    Both want the same amount, and either are in the same department or have the same relation to all others (see
    ``Shares.may_take_no_more``). ``pieces`` are the sizes that exist, in order.
    """
    found = (others.margin >= who.margin) & (others.dept_margin >= who.dept_margin)
    for name in ("in_share", "in_quota", "dept_in_share", "claims", "dept_claims", "promised"):
        found &= getattr(who, name) | ~getattr(others, name)
    for theirs, ours in zip(_rooms(others), _rooms(who), strict=True):
        found &= _steps(theirs, pieces) <= _steps(ours, pieces)
    return np.asarray(found)


def stands_like(others: Taker, who: Taker, pieces: Sequence[int]) -> Bools:
    """Return which takers have the ``standing`` of ``who``."""
    found = np.ones(len(others.project), np.bool_)
    for theirs, ours in zip(others[2:-2], who[2:-2], strict=True):
        found &= theirs == ours
    for theirs, ours in zip(_rooms(others), _rooms(who), strict=True):
        found &= _steps(theirs, pieces) == _steps(ours, pieces)
    return found


def standing(who: Taker, pieces: Sequence[int]) -> tuple[object, ...]:
    """Return a key of all that the rule reads of a taker except project and department: equal keys have equal rights.

    ``pieces`` are the sizes that exist, in order: which large ones it may take depends on the room in its share.
    """
    return (*who[2:-2], *(bisect_right(pieces, room + EPSILON) for room in _rooms(who)))


def _rooms(who: Taker) -> tuple[Amount, ...]:
    return who.room, who.dept_room, who.room / (1 - ROUNDING), who.dept_room / (1 - ROUNDING)


def _steps(room: Amount, pieces: Sequence[int]) -> Ints:
    return np.asarray(np.searchsorted(pieces, room + EPSILON, "right"))
