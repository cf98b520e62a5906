"""Shares of the users of one project: what all of them hold, divided by weight.

The division is the water-filling of ``water_filling``, with one pot per project: a user gets at most what it holds and
waits for, and what it does not use goes to the others. A user may take from another user of the project if the victim
then still holds as much as the taker by weight, or if both stay on their side of their shares. So nothing is taken back
while the same users want GPUs.
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
        project, held, waiting, weight = ledger.user_rows()
        active = held + waiting > 0
        at = np.flatnonzero(active & (np.bincount(project, active, len(ledger.projects)) > 1)[project])
        project, held, waiting, weight = project[at], held[at], waiting[at], weight[at]
        amount = np.bincount(project, held, len(ledger.projects)).astype(np.float64)
        share = fill(amount, project, (held + waiting).astype(np.float64), weight)
        self._most = np.zeros(len(amount))  # of a user, by weight
        np.maximum.at(self._most, project, held / weight)
        below = (waiting > 0) & ((held + 1 <= share + EPSILON) | (held + 1 <= self._most[project] * weight))
        above = np.bincount(project, held > share + EPSILON, len(amount)) > 0
        self.projects = set(np.flatnonzero((np.bincount(project, below, len(amount)) > 0) & above).tolist())
        self._share: dict[int, float] = dict(zip(at.tolist(), share.tolist(), strict=True))

    def may_take(self, account: Account, extra: int) -> bool:
        """Return True if a user may take ``extra`` thousandths from some user.

        It stays within its share, or holds no more by weight than the user who held most as of construction.
        """
        if account.project not in self.projects:
            return False
        after, most = self.after(account, extra), self._most[account.project] * self.weight(account)
        return bool(after <= max(self.share(account), most) + EPSILON)

    def least(self, shares: Floats, weights: Floats, taker: Account, extra: int) -> Floats:
        """Return the thousandths that users with these shares and weights keep when another one takes ``extra``."""
        after = self.after(taker, extra)
        even = after / self.weight(taker) * weights
        return np.minimum(shares, even) if after <= self.share(taker) + EPSILON else even

    def weight(self, account: Account) -> float:
        """Return the weight of a user in its project."""
        return float(self._ledger.pair_weight[account.pair])

    def after(self, account: Account, extra: int) -> int:
        """Return what a user holds with ``extra`` thousandths more, its holds included."""
        return int(self._ledger.pair_used[account.pair]) + extra

    def held(self, account: Account) -> int:
        """Return what a user's running work holds in its project."""
        return int(self._ledger.pair_used[account.pair]) - self._holds.get(account.pair, 0)

    def share(self, account: Account) -> float:
        """Return the share of a user in its project; 0 if no other user of the project holds or wants GPUs."""
        return self._share.get(account.pair, 0.0)
