"""Work that is not to be kept when it has ended: deleted with its output, so long after its end as it asked for."""

from __future__ import annotations

from dataclasses import replace

import structlog

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import GpupoolError
from gpupool.domain.lifecycle import POOL
from gpupool.domain.workload import TTL_LABEL, Workload, WorkloadState
from gpupool.services.engine import Engine
from gpupool.services.ports import WorkloadFilter
from gpupool.services.workloads import WorkloadService

LOOK_EVERY_S = 5.0
PAGE = 500
_FINAL = tuple(state for state in WorkloadState if state.final)

log = structlog.get_logger("gpupool.expiring")


class Expiring:
    """A background task; what it looks at is in the database, so nothing is forgotten by a restart."""

    def __init__(self, engine: Engine, workloads: WorkloadService) -> None:
        self._engine = engine
        self._workloads = workloads
        self._actor = Actor(POOL, Role.ADMIN, "ttl")

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self._engine.ports.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except GpupoolError as error:
                log.warning("could not delete what has ended", code=error.code)

    async def look(self) -> None:
        """Delete what has been kept for long enough."""
        now = self._engine.ports.clock.now()
        wanted = WorkloadFilter(states=_FINAL, labels=((TTL_LABEL, "yes"),), limit=PAGE)
        while found := await self._engine.ports.store.list_workloads(wanted):
            for workload in found:
                await self._delete_if_due(workload, now)
            wanted = replace(wanted, before=(found[-1].created_at, found[-1].id))

    async def _delete_if_due(self, workload: Workload, now: float) -> None:
        ttl, ended = workload.limits.ttl_s, workload.finished_at
        if ttl is not None and ended is not None and now - ended >= ttl:
            await self._workloads.delete(self._actor, workload.id)
