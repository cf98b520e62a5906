"""Lookup of workloads, their replicas and leases, live or ended."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId, is_workload_id
from gpupool.domain.people.access import Actor
from gpupool.domain.work.workload import GpuLease, Replica, Workload
from gpupool.services.control.database_outage import find_live, is_outage
from gpupool.services.control.engine import Engine


class Lookup:
    """Reads live workloads from the mirror and ended ones from the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def workload(self, actor: Actor, ref: str) -> Workload:
        """Find a workload by id or name, the actor's own first; raises ``GpupoolError(UNKNOWN_WORKLOAD)``."""
        found = self._in_memory(WorkloadId(ref)) if is_workload_id(ref) else None
        found = found or await self._stored(actor, ref)
        if found is None or found.deleted_at is not None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_WORKLOAD, f"There is no workload '{ref[:80]}'.", "See `gpupool ps --all`."
            )
        return self._engine.mirror.workloads.get(found.id, found)

    async def _stored(self, actor: Actor, ref: str) -> Workload | None:
        """Read from the store; during a database outage, live workloads from memory."""
        try:
            return await self._engine.ports.store.get_workload(ref, actor.user)
        except GpupoolError as error:
            live = find_live(self._engine.mirror, ref, actor.user) if is_outage(error) else None
            if live is None:
                raise
            return live

    def _in_memory(self, workload: WorkloadId) -> Workload | None:
        live = self._engine.mirror.workloads.get(workload)
        ended = self._engine.mirror.ended.get(workload)
        return live or (ended.workload if ended is not None else None)

    async def replicas(self, workload: Workload) -> Sequence[Replica]:
        """Return all replicas, sorted by index."""
        live = self._engine.mirror.replicas.get(workload.id)
        if live is not None:
            return [live[index] for index in sorted(live)]
        ended = self._engine.mirror.ended.get(workload.id)
        if ended is not None:
            return ended.replicas
        return await self._engine.ports.store.replicas_of(workload.id)

    async def replica(self, workload: Workload, index: int) -> Replica:
        """Return one replica; raises ``GpupoolError(NOT_FOUND)``."""
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
        """Return the node of an attempt of a replica; earlier attempts may have run on other nodes."""
        if attempt != replica.attempt:
            for lease in await self._engine.ports.store.leases_of(workload.id):
                if (lease.index, lease.attempt) == (replica.index, attempt):
                    return lease.node
        return replica.node

    async def leases(self, workload: Workload) -> Sequence[GpuLease]:
        """Return current leases, or all leases of a workload that has ended. An EXEC has none; its host has."""
        held = self._engine.mirror.leases_by_workload.get(workload.id, ())
        if workload.id in self._engine.mirror.workloads:
            return [self._engine.mirror.leases[epoch] for epoch in sorted(held)]
        return await self._engine.ports.store.leases_of(workload.id)
