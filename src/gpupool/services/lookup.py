"""Finding a workload, its replicas and leases, alive or ended."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId, is_workload_id
from gpupool.domain.workload import Lease, Replica, Workload
from gpupool.services.engine import Engine


class Lookup:
    """Reads the mirror for what is alive and the store for what has ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def workload(self, actor: Actor, ref: str) -> Workload:
        """By id or name (the actor's own first); raises ``GpupoolError(UNKNOWN_WORKLOAD)``."""
        found = self._in_memory(WorkloadId(ref)) if is_workload_id(ref) else None
        found = found or await self._engine.ports.store.get_workload(ref, actor.user)
        if found is None or found.deleted_at is not None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_WORKLOAD, f"There is no workload '{ref[:80]}'.", "See `gpupool ps --all`."
            )
        return self._engine.mirror.workloads.get(found.id, found)

    def _in_memory(self, workload: WorkloadId) -> Workload | None:
        live = self._engine.mirror.workloads.get(workload)
        ended = self._engine.mirror.ended.get(workload)
        return live or (ended.workload if ended is not None else None)

    async def replicas(self, workload: Workload) -> Sequence[Replica]:
        """All replicas by index."""
        live = self._engine.mirror.replicas.get(workload.id)
        if live is not None:
            return [live[index] for index in sorted(live)]
        ended = self._engine.mirror.ended.get(workload.id)
        if ended is not None:
            return ended.replicas
        return await self._engine.ports.store.replicas_of(workload.id)

    async def replica(self, workload: Workload, index: int) -> Replica:
        """One replica; raises ``GpupoolError(NOT_FOUND)``."""
        live = self._engine.mirror.replica(workload.id, index)
        if live is not None:
            return live
        for row in await self.replicas(workload):
            if row.index == index:
                return row
        raise GpupoolError(
            ErrorCode.NOT_FOUND,
            f"{workload.name} has no replica {index}.",
            f"Its replicas are 0 to {workload.completions - 1}.",
        )

    async def node_of(self, workload: Workload, replica: Replica, attempt: int) -> str | None:
        """Where an attempt of a replica ran; earlier ones may have run elsewhere than the last."""
        if attempt != replica.attempt:
            for lease in await self._engine.ports.store.leases_of(workload.id):
                if (lease.index, lease.attempt) == (replica.index, attempt):
                    return lease.node
        return replica.node

    async def leases(self, workload: Workload) -> Sequence[Lease]:
        """Leases held now, or, of a workload that has ended, all it has held; an EXEC shows that of its host."""
        held = self._engine.mirror.leases_by_workload.get(workload.id, ())
        if workload.id in self._engine.mirror.workloads:
            return [self._engine.mirror.leases[epoch] for epoch in sorted(held)]
        return await self._engine.ports.store.leases_of(workload.id)
