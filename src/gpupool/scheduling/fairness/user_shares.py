"""Shares of the users of one project: what all of them hold, divided equally.

The division is the water-filling of ``water_filling``, with one pot per project: a user gets at most what it holds and
waits for, and what it does not use goes to the others. A user may take from another user of the project if the victim
then still holds as much as the taker, or if both stay on their side of their shares. So what was taken is never taken
back while the same users want GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpupool.scheduling.fairness.water_filling import EPSILON, Floats, fill
from gpupool.scheduling.state.ledger import Account, Ledger


class UserShares:
    """The shares of all users in all projects, as of construction, in thousandths of a GPU.

    ``held_by_holds`` (number of the user in the project -> thousandths) is counted in the ledger but not running yet,
    so nobody can give it back.
    """

    def __init__(self, ledger: Ledger, held_by_holds: Mapping[int, int]) -> None:
        self._ledger, self._holds = ledger, held_by_holds
        project, held, waiting = ledger.user_rows()
        active = held + waiting > 0
        at = np.flatnonzero(active & (np.bincount(project, active, len(ledger.projects)) > 1)[project])
        project, held, waiting = project[at], held[at], waiting[at]
        amount = np.bincount(project, held, len(ledger.projects)).astype(np.float64)
        share = fill(amount, project, (held + waiting).astype(np.float64), np.ones(len(at)))
        self._most = np.zeros(len(amount), np.int64)
        np.maximum.at(self._most, project, held)
        below = (waiting > 0) & ((held + 1 <= share + EPSILON) | (held + 2 <= self._most[project]))
        above = np.bincount(project, held > share + EPSILON, len(amount)) > 0
        self.projects = set(np.flatnonzero((np.bincount(project, below, len(amount)) > 0) & above).tolist())
        self._share: dict[int, float] = dict(zip(at.tolist(), share.tolist(), strict=True))

    def may_take(self, account: Account, extra: int) -> bool:
        """Return True if a user may take ``extra`` thousandths from some user.

        It stays within its share, or the user who held most as of construction can give as much and still hold more.
        """
        if account.project not in self.projects:
            return False
        after = self.after(account, extra)
        return after <= self.share(account) + EPSILON or after + extra <= self._most[account.project]

    def least(self, shares: Floats, taker: Account, extra: int) -> Floats:
        """Return the thousandths that users with these shares must keep when another user takes ``extra``."""
        after = self.after(taker, extra)
        return np.minimum(shares, after) if after <= self.share(taker) + EPSILON else np.full(len(shares), after, float)

    def after(self, account: Account, extra: int) -> int:
        """Return what a user holds with ``extra`` thousandths more, its holds included."""
        return int(self._ledger.pair_used[account.pair]) + extra

    def held(self, account: Account) -> int:
        """Return what a user's running work holds in its project."""
        return int(self._ledger.pair_used[account.pair]) - self._holds.get(account.pair, 0)

    def share(self, account: Account) -> float:
        """Return the share of a user in its project; 0 if no other user of the project holds or wants GPUs."""
        return self._share.get(account.pair, 0.0)
