"""Measurement of the disk that workspaces use, and of their last use."""

from __future__ import annotations

from dataclasses import replace

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.workload import WorkloadKind
from gpupool.domain.work.workspace import Workspace
from gpupool.services.control.engine import Engine
from gpupool.services.ports.store import ChangeSet
from gpupool.services.state.workspace_registry import WorkspaceRegistry
from gpupool.services.workspaces.tasks import files_link

INTERVAL_S = 300.0  # between two measurements of a running workspace
PAUSE_S = 1.0

log = structlog.get_logger("gpupool.workspaces")


class WorkspaceMeter:
    """Measures workspaces while they run and after each session, one at a time."""

    def __init__(self, engine: Engine, registry: WorkspaceRegistry) -> None:
        self._engine = engine
        self._registry = registry
        self._used: set[str] = set()  # with a session that began or ended and is not recorded
        engine.on_commit(self._note)

    def _note(self, changes: ChangeSet) -> None:
        users = (w for w in changes.workloads if w.kind is not WorkloadKind.LEASE)
        self._used.update(w.program.workspace for w in users if w.program.workspace)

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            await self._engine.ports.sleep(PAUSE_S)
            for workspace in list(self._registry.rows.values()):
                if self._due(workspace):
                    try:
                        await self._measure(workspace.id, workspace.node)
                    except GpupoolError as error:
                        log.info("workspace not measured", workspace=workspace.id, code=error.code)

    def _due(self, workspace: Workspace) -> bool:
        if workspace.task is not None:
            return False
        live = self._registry.session_state(workspace) is not None
        if workspace.id in self._used and not live:
            return True
        since = workspace.measured_at or 0.0
        return live and self._engine.ports.clock.now() - since >= INTERVAL_S

    async def _measure(self, workspace: str, node: str) -> None:
        ended = workspace in self._used and self._engine.mirror.session_of(workspace) is None
        async with files_link(self._engine, node) as link:
            used = await link.home_usage(workspace)
        now = self._engine.ports.clock.now()

        async def write() -> None:
            row = self._registry.rows.get(workspace)
            if row is None:
                return
            used_at = now if ended else row.used_at
            after = replace(row, disk_bytes=used, measured_at=now, used_at=used_at)
            await self._engine.ports.store.workspaces.update(after)
            self._registry.rows[workspace] = after

        await self._engine.run_exclusive(write)
        if ended:
            self._used.discard(workspace)
