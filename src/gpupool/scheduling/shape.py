"""Shapes: everything about a request that matters for where it fits, shared by all who ask for the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np

from gpupool.domain.gpu import GpuRequest
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.bookings import Guest
from gpupool.scheduling.claims import Ints
from gpupool.scheduling.cluster import MILLI
from gpupool.scheduling.modes import code_of

UNMET = 1_000_000  # thousandths: more than any GPU has


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Shape:
    """A request for GPUs with the CPU (thousandths) and memory (MiB) that go with it; compared by identity.

    ``user`` is empty where it does not matter who asks: it does for parts of GPUs that serve one user at a time.
    ``pools``: it may be only on nodes whose label ``pool`` is one of these; empty: on any.
    ``guest``: what matters of it where nodes are booked; None while none is.
    """

    request: GpuRequest
    cpu_milli: int
    mem_mib: int
    user: str = ""
    pools: tuple[str, ...] = ()
    guest: Guest | None = None

    @property
    def picky(self) -> bool:
        """Whether not every node would do, whatever is free there."""
        return bool(self.request.labels or self.pools)

    @property
    def gpuless(self) -> bool:
        """Whether it takes CPU and memory only."""
        return self.request.count == 0

    @property
    def whole(self) -> bool:
        """Whether it takes whole GPUs by definition."""
        return self.request.whole

    @property
    def starvable(self) -> bool:
        """Whether smaller work could keep it out for ever: it needs whole GPUs, or several at once."""
        return not self.gpuless and (self.whole or self.request.count > 1)

    @property
    def mode(self) -> int | None:
        """The code of the sharing mode that it insists on; None: that of the GPU."""
        return None if self.request.sharing is None else code_of(self.request.sharing)

    @property
    def fixed_permille(self) -> int | None:
        """Thousandths over all its GPUs, or None when that depends on the model (a request by memory)."""
        return None if self.request.memory_mib is not None else self.request.permille * self.request.count

    def needs(self, gmem_total: Ints) -> tuple[Ints, Ints]:
        """Thousandths and MiB needed of GPUs with that much memory; the same as ``GpuRequest`` says for one GPU."""
        request = self.request
        if request.memory_mib is None:
            need = np.full(gmem_total.shape, request.permille)
            return need, gmem_total if request.whole else gmem_total * request.permille // WHOLE_GPU
        known = np.maximum(gmem_total, 1)
        need = np.where(gmem_total > 0, -(-request.memory_mib * WHOLE_GPU // known), UNMET)
        return need, np.full_like(gmem_total, request.memory_mib)


ShapeKey = tuple[GpuRequest, int, int, str, tuple[str, ...], Guest | None]


@dataclass(slots=True)
class Shapes:
    """The shapes in use, one object for each, as long as anybody has it."""

    _known: WeakValueDictionary[ShapeKey, Shape] = field(default_factory=WeakValueDictionary)

    def get(
        self,
        request: GpuRequest,
        cpus: float,
        memory_mib: int,
        user: str = "",
        pools: tuple[str, ...] = (),
        guest: Guest | None = None,
    ) -> Shape:
        """The shape of a request."""
        key = (request, round(cpus * MILLI), memory_mib, user, pools, guest)
        shape = self._known.get(key)
        if shape is None:
            shape = self._known[key] = Shape(*key)
        return shape
