"""The quality of links between the GPUs of a node, and the choice of well-connected GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, islice

from gpupool.domain.nodes.gpu import Gpu

_PATHS = {"PIX": 8, "PXB": 6, "PHB": 4, "NODE": 2, "SYS": 1}  # as `nvidia-smi topo -m` names them, nearest first
_NVLINK = 16  # one NVLink is better than any path over PCIe
_BEST = 255
_MAX_SUBSETS = 20_000  # all halves of 16 GPUs are 12,870


def link_score(link: str) -> int:
    """Return the score of one link, 0 to 255: more NVLinks first, then nearer PCIe paths; 0 if unknown."""
    if link.startswith("NV") and link[2:].isdigit():
        return min(_BEST, _NVLINK * int(link[2:]))
    return _PATHS.get(link, 0)


def link_matrix(gpus: Sequence[Gpu]) -> bytes:
    """Return the scores of all pairs, row by row, one byte each; empty when no link is known."""
    if not any(gpu.links for gpu in gpus):
        return b""
    return bytes(link_score(a.links.get(b.index, "")) for a in gpus for b in gpus)


def _total(matrix: bytes, width: int, slots: Sequence[int]) -> int:
    return sum(matrix[a * width + b] for a, b in combinations(slots, 2))


@lru_cache(maxsize=65_536)
def best_subset(matrix: bytes, free: tuple[int, ...], count: int) -> tuple[tuple[int, ...], int]:
    """Return the best ``count`` of the ``free`` slots, and the mean score of their links (0 to 255).

    The best linked slots win; then those that leave the best linked rest; then the lowest slots. Checks at most 20,000
    subsets.
    """
    if not matrix or count == len(free):
        chosen = free[:count]
    else:
        width = _width(matrix)
        subsets = islice(combinations(free, count), _MAX_SUBSETS)
        chosen = max(subsets, key=lambda s: (_total(matrix, width, s), _rest(matrix, width, free, s)))
    pairs = count * (count - 1) // 2
    return chosen, _total(matrix, _width(matrix), chosen) // pairs if matrix and pairs else 0


def _rest(matrix: bytes, width: int, free: tuple[int, ...], taken: tuple[int, ...]) -> int:
    return _total(matrix, width, [slot for slot in free if slot not in taken])


def _width(matrix: bytes) -> int:
    return int(len(matrix) ** 0.5)
