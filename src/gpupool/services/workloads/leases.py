"""Current leases: their workloads, their programs, and the last use of their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.domain.work.workload import GpuLease, Replica, Workload
from gpupool.services.control.engine import Engine


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """A current lease.

    ``last_active_at`` is when its GPUs were last in use, or its program started; ``programs`` counts programs of other
    workloads on it. The idle limit uses both. ``workload`` is None if it has ended and its last programs still stop.
    """

    lease: GpuLease
    workload: Workload | None
    replica: Replica | None
    last_active_at: float
    programs: int = 0


class LeaseService:
    """Lists leases from the mirror; all users may see them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def held(self) -> Sequence[LeaseUse]:
        """Return all current leases, oldest first."""
        mirror, now = self._engine.mirror, self._engine.ports.clock.now()
        found = []
        for epoch in sorted(mirror.leases):
            lease = mirror.leases[epoch]
            workload, replica = mirror.workloads.get(lease.workload), mirror.holder(lease)
            active = lease.granted_at
            if workload is not None and replica is not None:
                active = max(active, self._engine.last_active(workload, replica, now))
            found.append(LeaseUse(lease, workload, replica, active, len(mirror.execs.get(epoch, ()))))
        return found
