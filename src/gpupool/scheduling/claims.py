"""What somebody holds, or would take, of one node: as it is known outside, and in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpupool.domain.gpu import GpuShare
from gpupool.scheduling.modes import mark_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What somebody takes of one node: ``gpu`` (thousandths) and ``gmem`` (MiB) per GPU slot, CPU and memory.

    ``row`` is -1 when the node is not known (any more): the claim then weighs on nothing. ``mode`` names how its GPUs
    are shared, ``user`` whose they are, ``permille`` the thousandths over all slots.
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

    def marks(self) -> Ints:
        """What it adds to ``ClusterState.guests``."""
        return np.asarray((self.gpu > 0) * mark_of(self.mode, self.user))


@dataclass(frozen=True, slots=True)
class Holding:
    """What a replica holds, in the terms of the outside: resolved again whenever its node changes."""

    node: str
    shares: tuple[GpuShare, ...]
    cpu_milli: int
    mem_mib: int
    mode: str = ""
    user: str = ""
