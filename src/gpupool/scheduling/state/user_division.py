"""The division of the GPUs of projects among their users, kept from one cycle to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.ledger import Ledger

_Floats = npt.NDArray[np.float64]


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


def _no_floats() -> _Floats:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class UserDivision:
    """The shares of users, and the rows of the ledger from which they were computed, in thousandths of a GPU.

    By ``Account.pair``: ``held``, ``waiting``, ``weight`` and ``quota`` are the rows; ``share`` and ``base`` (the part
    within the quota) are the result. By project: ``most`` is the most that a user holds beyond its quota, by weight;
    ``uneven`` is whether a user below its share waits while another one is above its share.
    """

    held: Ints = field(default_factory=_no_ints)
    waiting: Ints = field(default_factory=_no_ints)
    weight: _Floats = field(default_factory=_no_floats)
    quota: Ints = field(default_factory=_no_ints)
    share: _Floats = field(default_factory=_no_floats)
    base: _Floats = field(default_factory=_no_floats)
    most: _Floats = field(default_factory=_no_floats)
    uneven: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))

    def outdated(self, ledger: Ledger) -> Bools:
        """Return by project whether a row of a user in the ledger differs from the one that was divided."""
        project, *rows = ledger.user_rows()
        known = len(self.held)
        differs = np.ones(len(project), np.bool_)
        differs[:known] = False
        for row, before in zip(rows, (self.held, self.waiting, self.weight, self.quota), strict=True):
            differs[:known] |= row[:known] != before
        found = np.zeros(len(ledger.projects), np.bool_)
        found[project[differs]] = True
        return found
