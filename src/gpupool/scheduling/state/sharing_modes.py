"""Sharing modes as numbers, for whole arrays. One GPU has slices of one mode only.

A mode is a code: 0 for the node's default, then the modes for parts of GPUs, last the modes of installed packages. In
some modes a GPU serves one user only (``single_user``). ``guests`` of a GPU is the sum of the marks of its slices. A
mark is a digest of the mode (and of the user, if it matters) above twelve bits that count. If the sum equals its count
times one mark, all guests have that mark.
``domain.work.sharing_policy.slice_mode`` does the same for one GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from gpupool.domain.nodes.sharing import PART_MODES, Sharing, traits_of
from gpupool.domain.work.sharing_policy import slice_mode

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

REFUSED = -1  # the GPU accepts no slices
NO_MARK = 0
_NAMES = ("", *(mode.value for mode in PART_MODES))
_OTHER = len(_NAMES)
_SINGLE_USER = np.array([*(traits_of(name).single_user for name in _NAMES), False, False])  # by code; last: REFUSED
_COUNT_BITS = 12  # a GPU has a thousand slices at most
_COUNT = (1 << _COUNT_BITS) - 1
_DIGEST_BYTES = 5  # a thousand times a mark still fits into 64 bits


@cache
def code_of(mode: str) -> int:
    """Return the code of a mode."""
    return _NAMES.index(mode) if mode in _NAMES else _OTHER


def mark_of(mode: str, user: str) -> int:
    """Return the number that one slice in a mode adds to the guests of its GPU."""
    traits = traits_of(mode)
    return _mark(code_of(mode), user if traits.single_user else "") if traits.supports_parts else NO_MARK


@lru_cache(4096)
def _mark(code: int, user: str) -> int:
    digest = blake2b(f"{code} {user}".encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest) << _COUNT_BITS | 1


@lru_cache(4096)
def marks_by_code(user: str) -> Ints:
    """Return the mark of each code for a user's slice; the last is for REFUSED, which has no guests."""
    marks = [_mark(code, user if _SINGLE_USER[code] else "") for code in range(_OTHER + 1)]
    return np.array([*marks, NO_MARK], dtype=np.int64)


def default_modes(policies: Sequence[Sharing | None], offered: Sequence[str]) -> list[int]:
    """Return for each GPU the code of its default mode, or REFUSED."""
    modes = [slice_mode("", policy or "", offered) for policy in policies]
    return [REFUSED if mode is None else code_of(mode) for mode in modes]


def open_modes(policies: Sequence[Sharing | None], offered: Sequence[str]) -> list[int]:
    """Return for each GPU a bit set of the modes that a slice may request."""
    asked = _NAMES[1:]
    return [
        sum(1 << code_of(mode) for mode in asked if slice_mode(mode, policy or "", offered) is not None)
        for policy in policies
    ]


def common_modes(defaults: Ints) -> int:
    """Return the most frequent default mode that may span GPUs; the lowest code among equals."""
    counts = Counter(code for code in defaults.tolist() if code != REFUSED and not _SINGLE_USER[code])
    return min(counts, key=lambda code: (-counts[code], code)) if counts else REFUSED


def serves_users(defaults: Ints) -> bool:
    """Return True if some GPU's default mode depends on the user."""
    return bool(_SINGLE_USER[defaults].any())


def hosts_only(guests: Ints, marks: Ints | int) -> Bools:
    """Return where all guests have one of these marks."""
    return np.asarray(guests == (guests & _COUNT) * marks)


def hosts_own(guests: Ints, defaults: Ints) -> Bools:
    """Return where there are no guests, or only guests in the default mode, of any user."""
    own = marks_by_code("")[defaults]
    return np.asarray((guests == 0) | _SINGLE_USER[defaults] | hosts_only(guests, own))
