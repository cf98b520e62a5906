"""Sharing modes as numbers: one GPU hosts parts in one mode only, and this says it to whole arrays at once.

A mode is a code from 0 (the node's own, whatever it is) to 4 (one that an installed package adds). Under MPS a GPU
serves one user only. ``guests`` of a GPU is the sum of the marks of its parts. A mark is a digest of the mode (and, for
MPS, of the user) above twelve bits that count: when the sum is its count times one mark, all guests have that mark.
``domain.sharing.slice_mode`` is the same for one GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import blake2b

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
_MPS = _NAMES.index(Sharing.MPS.value)
_COUNT_BITS = 12  # a GPU has a thousand parts at most
_COUNT = (1 << _COUNT_BITS) - 1
_DIGEST_BYTES = 5  # a thousand times a mark still fits into 64 bits


@cache
def code_of(mode: str) -> int:
    """The code of a mode."""
    return _NAMES.index(mode) if mode in _NAMES else _OTHER


def mark_of(mode: str, user: str) -> int:
    """What one part in a mode adds to the guests of its GPU."""
    return NO_MARK if mode in _ALONE else _mark(code_of(mode), user if mode == Sharing.MPS else "")


@lru_cache(4096)
def _mark(code: int, user: str) -> int:
    digest = blake2b(f"{code} {user}".encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest) << _COUNT_BITS | 1


@lru_cache(4096)
def marks_by_code(user: str) -> Ints:
    """The mark of each code for a user's part; the last is for REFUSED, whose guests can only be none."""
    marks = [_mark(code, user if code == _MPS else "") for code in range(_OTHER + 1)]
    return np.array([*marks, NO_MARK], dtype=np.int64)


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
    """The most frequent of a node's defaults that may span GPUs, the lowest code among equals."""
    counts = Counter(code for code in defaults.tolist() if code not in {REFUSED, _MPS})
    return min(counts, key=lambda code: (-counts[code], code)) if counts else REFUSED


def serves_users(defaults: Ints) -> bool:
    """Whether on some GPU it matters to whom a part belongs that insists on no mode."""
    return bool((defaults == _MPS).any())


def hosts_only(guests: Ints, marks: Ints | int) -> Bools:
    """Where every guest has one of these marks."""
    return np.asarray(guests == (guests & _COUNT) * marks)


def hosts_own(guests: Ints, defaults: Ints) -> Bools:
    """Where nobody, or guests in the GPU's default mode only; under MPS whoever they are."""
    own = marks_by_code("")[defaults]
    return np.asarray((guests == 0) | (defaults == _MPS) | hosts_only(guests, own))
