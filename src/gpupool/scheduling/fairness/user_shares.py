"""Shares of the users of one project: the GPUs that all of them hold, divided by quota and weight.

Each user first gets its quota, or what it wants if that is less; if the quotas exceed what the project holds, each gets
a part in proportion. The rest is divided by weight, by the water-filling of ``water_filling`` with one pot per project:
a user gets at most what it holds and waits for, and what it does not use goes to the others. A user may take from
another user of the project if the victim then still holds as much as the taker by weight, both counted beyond their
quotas, or if both stay on their side of their shares. So nothing is taken back while the same users want GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.fairness.water_filling import Floats, fill
from gpupool.scheduling.state.allocation import EPSILON, Bools, Ints
from gpupool.scheduling.state.ledger import Account, Ledger
from gpupool.scheduling.state.user_division import UserDivision


@dataclass(frozen=True, slots=True, eq=False)
class UserRows:
    """The shares of some users, their weights, and the parts of the shares that their quotas guarantee."""

    share: Floats
    weight: Floats
    base: Floats


class UserShares:
    """The shares of all users in all projects, as of a division, in thousandths of a GPU.

    ``held_by_holds`` (number of the user in the project -> thousandths) is counted in the ledger but not running yet,
    so nobody can give it back.
    """

    def __init__(self, ledger: Ledger, held_by_holds: Mapping[int, int], division: UserDivision) -> None:
        self._ledger, self._holds = ledger, held_by_holds
        self._share, self._base, self._most = division.share, division.base, division.most
        self.projects = set(np.flatnonzero(division.uneven).tolist())

    def may_take(self, account: Account, extra: int) -> bool:
        """Return True if a user may take ``extra`` thousandths from some user.

        It stays within its share, or holds no more by weight than the user who held most as of construction.
        """
        if account.project not in self.projects:
            return False
        most = self.base(account) + self._most[account.project] * self.weight(account)
        return bool(self.after(account, extra) <= max(self.share(account), most) + EPSILON)

    def might_take(self, pairs: Ints, needs: Ints, smallest: Floats) -> Bools:
        """Return which users might take what they need from others of their project, for all users at once.

        False is certain, also when holds end. ``pairs`` are the takers (``Account.pair``), ``needs`` their thousandths;
        ``smallest`` is the smallest amount that each user can lose, by pair, infinite for none.
        """
        project, held, _, weight, _ = self._ledger.user_rows()
        slack = 2 * EPSILON
        at = np.flatnonzero(smallest[: len(project)] < inf)
        left = held[at] - smallest[at] + slack
        most_even = np.full(len(self._most), -inf)  # what a taker may hold by weight so that a user can lose enough
        np.maximum.at(most_even, project[at], (left - self._base[at]) / weight[at])
        above = np.bincount(project[at], left >= self._share[at], len(self._most)) > 0  # can lose and keep the share
        share, weight, base, own = self._share[pairs], weight[pairs], self._base[pairs], project[pairs]
        running = held.copy()  # without holds
        for pair, amount in self._holds.items():
            running[pair] -= amount
        after = running[pairs] + needs
        permitted = after <= np.maximum(share, base + self._most[own] * weight) + slack
        even = np.maximum(0.0, after - base) / weight <= most_even[own]
        return np.asarray(permitted & (even | (above[own] & (after <= share + slack))))

    def least(self, users: UserRows, taker: Account, extra: int) -> Floats:
        """Return the thousandths that users keep when another one takes ``extra``."""
        after = self.after(taker, extra)
        even = users.base + max(0.0, after - self.base(taker)) / self.weight(taker) * users.weight
        return np.minimum(users.share, even) if after <= self.share(taker) + EPSILON else even

    def rows(self, accounts: Sequence[Account]) -> UserRows:
        """Return the shares, weights and quotas of some users."""
        found = [(self.share(account), self.weight(account), self.base(account)) for account in accounts]
        return UserRows(*np.array(found, np.float64).reshape(-1, 3).T)

    def base(self, account: Account) -> float:
        """Return the part of a user's share that its quota guarantees."""
        return float(self._base[account.pair])

    def weight(self, account: Account) -> float:
        """Return the weight of a user in its project."""
        return float(self._ledger.pair_weight[account.pair])

    def after(self, account: Account, extra: int) -> int:
        """Return the GPUs that a user holds with ``extra`` thousandths more, including its holds."""
        return int(self._ledger.pair_used[account.pair]) + extra

    def held(self, account: Account) -> int:
        """Return the GPUs that a user's running work holds in its project."""
        return int(self._ledger.pair_used[account.pair]) - self._holds.get(account.pair, 0)

    def share(self, account: Account) -> float:
        """Return the share of a user in its project; 0 if no other user of the project holds or wants GPUs."""
        return float(self._share[account.pair])


def divide_among_users(ledger: Ledger, before: UserDivision) -> UserDivision:
    """Return the division for the ledger as it is; shares of projects whose rows have not changed come from before."""
    changed = before.outdated(ledger)
    if not changed.any() and len(changed) == len(before.most):
        return before
    project, held, waiting, weight, quota = ledger.user_rows()
    share, base = _padded(before.share, len(project)), _padded(before.base, len(project))
    most, uneven = _padded(before.most, len(changed)), _padded(before.uneven, len(changed))
    mine = np.flatnonzero(changed[project])
    share[mine], base[mine], most[changed], uneven[changed] = 0.0, 0.0, 0.0, False
    mine = mine[held[mine] + waiting[mine] > 0]
    at = mine[np.bincount(project[mine], minlength=len(changed))[project[mine]] > 1]  # users that share a project
    owner, have, parts = project[at], held[at], weight[at]
    amount = np.bincount(owner, have, len(changed)).astype(np.float64)
    wanted = (have + waiting[at]).astype(np.float64)
    base[at] = guaranteed = _within_quotas(np.minimum(quota[at], wanted), owner, amount)
    rest = np.maximum(amount - np.bincount(owner, guaranteed, len(amount)), 0.0)
    share[at] = fair = guaranteed + fill(rest, owner, wanted - guaranteed, parts)
    np.maximum.at(most, owner, (have - guaranteed) / parts)
    below = (waiting[at] > 0) & ((have + 1 <= fair + EPSILON) | (have + 1 - guaranteed <= most[owner] * parts))
    above = np.bincount(owner, have > fair + EPSILON, len(amount)) > 0
    uneven |= (np.bincount(owner, below, len(amount)) > 0) & above
    return UserDivision(held.copy(), waiting.copy(), weight.copy(), quota, share, base, most, uneven)


def _padded(values: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    return np.concatenate([values, np.zeros(length - len(values), values.dtype)])


def _within_quotas(wanted: Floats, project: Ints, amount: Floats) -> Floats:
    """Return what each user gets within its quota, in proportion if a project holds less than that."""
    total = np.bincount(project, wanted, len(amount))
    return np.asarray(wanted * np.minimum(1.0, amount / np.maximum(total, 1.0))[project])
