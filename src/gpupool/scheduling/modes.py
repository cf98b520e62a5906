"""Sharing modes as numbers: one GPU hosts parts in one mode only, and this says it to whole arrays at once.

A mode is a code from 0 (the node's own, whatever it is) to 4 (one that an installed package adds). ``guests`` counts
the parts on a GPU by mode, twelve bits to each: a part adds ``mark_of`` its mode, and others than a mode's are there
when anything is left after masking its bits out. ``domain.sharing.slice_mode`` is the same for one GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from gpupool.domain.gpu import Sharing
from gpupool.domain.sharing import slice_mode

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

REFUSED = -1  # no part of this GPU is given away
NO_MARK = 0
_NAMES = ("", Sharing.SHARE.value, Sharing.MPS.value, Sharing.ADVISORY.value)
_OTHER = len(_NAMES)
_ALONE = frozenset({Sharing.WHOLE.value, Sharing.MIG.value})
_BITS = 12  # a GPU has a thousand parts at most
# What of ``guests`` is not of the mode with this code; REFUSED (the last) minds nobody.
_OTHERS = np.array([~(((1 << _BITS) - 1) << (_BITS * code)) for code in range(_OTHER + 1)] + [0], dtype=np.int64)


@cache
def code_of(mode: str) -> int:
    """The code of a mode."""
    return _NAMES.index(mode) if mode in _NAMES else _OTHER


@cache
def mark_of(mode: str) -> int:
    """What one part in a mode adds to the guests of its GPU."""
    return NO_MARK if mode in _ALONE else 1 << (_BITS * code_of(mode))


def default_modes(policies: Sequence[Sharing | None], offered: Sequence[str]) -> list[int]:
    """For each GPU the code of the mode that a part of it gets which insists on none, or REFUSED."""
    modes = [slice_mode("", policy or "", offered) for policy in policies]
    return [REFUSED if mode is None else code_of(mode) for mode in modes]


def open_modes(policies: Sequence[Sharing | None], offered: Sequence[str]) -> list[int]:
    """For each GPU the modes that a part may insist on, the bit of each code."""
    asked = _NAMES[1:]
    return [
        sum(1 << code_of(mode) for mode in asked if slice_mode(mode, policy or "", offered) is not None)
        for policy in policies
    ]


def common_modes(defaults: Ints) -> int:
    """The most frequent of a node's defaults, the lowest code among equals."""
    counts = Counter(code for code in defaults.tolist() if code != REFUSED)
    return min(counts, key=lambda code: (-counts[code], code)) if counts else REFUSED


def hosts_only(guests: Ints, codes: Ints | int) -> Bools:
    """Where nobody is a guest in another mode than that of ``codes``."""
    return np.asarray((guests & _OTHERS[codes]) == 0)
