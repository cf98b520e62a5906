"""Measurement of the disk that workspaces use, and of their last use; unused ones and abandoned imports."""

from __future__ import annotations

from dataclasses import replace

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import ID_BITS, workspace_id
from gpupool.domain.work.lifecycle import POOL
from gpupool.domain.work.workload import WorkloadKind
from gpupool.domain.work.workspace import (
    IMPORT_GRACE_S,
    TaskKind,
    Workspace,
    WorkspaceState,
    WorkspaceTask,
    begin,
)
from gpupool.services.control.engine import Engine
from gpupool.services.ports.store import ChangeSet
from gpupool.services.state.mirror import Draft
from gpupool.services.state.workspace_registry import WorkspaceRegistry
from gpupool.services.workspaces.tasks import WorkspaceTasks, files_link

INTERVAL_S = 300.0  # between two measurements of a running workspace
PAUSE_S = 1.0

log = structlog.get_logger("gpupool.workspaces")


class WorkspaceMeter:
    """Measures workspaces while they run and after each session, one at a time, and warns about unused ones.

    Deletes workspaces whose import was abandoned.
    """

    def __init__(self, engine: Engine, registry: WorkspaceRegistry, tasks: WorkspaceTasks) -> None:
        self._engine = engine
        self._registry = registry
        self._tasks = tasks
        self._began = engine.ports.clock.now()
        self._used: set[str] = set()  # with a session that began or ended and is not recorded
        engine.on_commit(self._note)

    def _note(self, changes: ChangeSet) -> None:
        users = (w for w in changes.workloads if w.kind is not WorkloadKind.LEASE)
        self._used.update(w.program.workspace for w in users if w.program.workspace)

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            await self._engine.ports.sleep(PAUSE_S)
            await self.warn()
            await self.delete_abandoned()
            for workspace in list(self._registry.rows.values()):
                if self._due(workspace):
                    try:
                        await self._measure(workspace.id, workspace.node)
                    except GpupoolError as error:
                        log.info("workspace not measured", workspace=workspace.id, code=error.code)

    async def warn(self) -> None:
        """Write an event for each stopped workspace that has become unused."""
        now = self._engine.ports.clock.now()
        unused = [row.id for row in self._registry.rows.values() if row.needs_warning(now) and self._stopped(row)]
        if not unused:
            return

        def write(draft: Draft) -> None:
            for row in map(self._registry.rows.get, unused):
                if row is not None and row.needs_warning(now) and self._stopped(row):
                    draft.put_workspace(replace(row, warned_at=now))
                    sentence = row.unused_warning(now)
                    draft.note(Event(now, POOL, Reason.WORKSPACE_UNUSED, sentence, target=f"workspace {row.id}"))

        try:
            await self._engine.transact(write)
        except GpupoolError as error:
            log.warning("could not warn about unused workspaces", code=error.code)

    async def delete_abandoned(self) -> None:
        """Begin to delete each workspace whose import was not completed and has had no program for a while."""
        if not any(map(self._abandoned, self._registry.rows.values())):
            return

        def write(draft: Draft) -> None:
            for row in filter(self._abandoned, list(self._registry.rows.values())):
                task = workspace_id(self._engine.ports.random_bits(ID_BITS))
                draft.put_workspace(begin(row, WorkspaceTask(task, TaskKind.DELETE)))
                sentence = f"workspace {row.name} is being deleted: its import was not completed"
                draft.note(self._engine.change_event(POOL, sentence, f"workspace {row.id}"))

        try:
            await self._engine.transact(write)
        except GpupoolError as error:
            log.warning("abandoned imports were not deleted", code=error.code)
        self._tasks.wake()

    def _abandoned(self, row: Workspace) -> bool:
        if not row.importing or row.task is not None or row.id in self._used:
            return False
        since = max(row.created_at, row.used_at, self._began)
        live = self._registry.session_state(row) is not None
        return not live and self._engine.ports.clock.now() - since > IMPORT_GRACE_S

    def _stopped(self, workspace: Workspace) -> bool:
        return self._registry.state(workspace) is WorkspaceState.STOPPED and workspace.id not in self._used

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
