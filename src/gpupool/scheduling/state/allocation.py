"""Allocations of one node: ``HeldAllocation`` in domain terms, ``Claim`` in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpupool.domain.nodes.gpu import GpuShare

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

EPSILON = 1e-3  # thousandths of a GPU: less than any request, more than the rounding errors of sums


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """An amount of one node: ``gpu`` (thousandths) and ``gmem`` (MiB) per GPU slot, CPU and memory.

    ``row`` is -1 when the node is unknown or removed; the claim then counts for nothing. ``mode`` is the sharing mode
    of its GPUs, ``user`` the owner, ``permille`` the sum of the thousandths over all slots.
    """

    row: int
    gpu: Ints
    gmem: Ints
    cpu_milli: int
    mem_mib: int
    mode: str = ""
    user: str = ""
    permille: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "permille", int(self.gpu.sum()))


@dataclass(frozen=True, slots=True)
class HeldAllocation:
    """An allocation of a replica in domain terms. It is converted to a claim again whenever its node changes."""

    node: str
    shares: tuple[GpuShare, ...]
    cpu_milli: int
    mem_mib: int
    mode: str = ""
    user: str = ""
