"""Who holds GPUs now, since when, and for how long they have lain idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.domain.workload import Lease, Replica, Workload, WorkloadKind
from gpupool.services.engine import Engine


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease that is held.

    ``last_active_at`` is when its GPUs were last seen in use, or its program began; ``programs`` of other workloads
    run on it. Both are what the idle limit goes by. ``workload`` is None while the rest of one that ended is ending.
    """

    lease: Lease
    workload: Workload | None
    replica: Replica | None
    last_active_at: float
    programs: int = 0


class HoldingService:
    """Reads the mirror; everybody may see who holds what."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def held(self) -> Sequence[Holding]:
        """All leases that are held, the oldest first."""
        mirror, now = self._engine.mirror, self._engine.ports.clock.now()
        found = []
        for epoch in sorted(mirror.leases):
            lease = mirror.leases[epoch]
            workload, replica = mirror.workloads.get(lease.workload), mirror.replica(lease.workload, lease.index)
            active = lease.granted_at
            if workload is not None and replica is not None:
                active = max(active, last_active(self._engine, workload, replica, now))
            found.append(Holding(lease, workload, replica, active, len(mirror.execs.get(epoch, ()))))
        return found


def last_active(engine: Engine, workload: Workload, replica: Replica, now: float) -> float:
    """When a replica that runs was last seen to use its GPUs, or began; now, for a lease on which programs run."""
    if workload.kind is WorkloadKind.LEASE and replica.lease in engine.mirror.execs:
        return now
    return max(replica.last_active_at or 0.0, replica.started_at or 0.0, engine.activity.get(replica.key, 0.0))
