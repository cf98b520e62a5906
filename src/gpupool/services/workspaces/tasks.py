"""Tasks of workspaces: the changes of files on nodes, repeated until each has succeeded or failed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.workspace import MAKING, TaskKind, Workspace, WorkspaceTask, complete, fail
from gpupool.services.control.engine import Engine
from gpupool.services.lifecycle.transitions import release_reservation
from gpupool.services.ports.fabric import NOT_SENT
from gpupool.services.ports.files import FilesLink
from gpupool.services.state.workspace_registry import WorkspaceRegistry

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
TRIES_IN_USE = 20  # while the programs of the last session end
MAX_OUTCOMES = 1_000
_DONE = {
    TaskKind.CREATE: "created",
    TaskKind.CLONE: "created as a clone",
    TaskKind.SNAPSHOT: "saved as a snapshot",
    TaskKind.DROP_SNAPSHOT: "without a snapshot",
    TaskKind.RESTORE: "restored",
    TaskKind.DELETE: "deleted",
}

log = structlog.get_logger("gpupool.workspaces")


@asynccontextmanager
async def files_link(engine: Engine, node: str) -> AsyncIterator[FilesLink]:
    """Open a connection for files to a node; close it at the end."""
    link = await engine.ports.fabric.link(node).files()
    try:
        yield link
    finally:
        await link.close()


class WorkspaceTasks:
    """Performs the stored tasks, each once at a time, and keeps their outcomes for those who wait."""

    def __init__(self, engine: Engine, registry: WorkspaceRegistry) -> None:
        self._engine = engine
        self._registry = registry
        self._running: dict[str, asyncio.Task[None]] = {}
        self._outcomes: OrderedDict[str, GpupoolError | None] = OrderedDict()
        self._changed = asyncio.Event()
        self._ended = asyncio.Condition()

    def wake(self) -> None:
        """Look for new tasks."""
        self._changed.set()

    async def run(self) -> None:
        """Perform tasks for ever."""
        try:
            while True:
                self._changed.clear()
                for workspace in list(self._registry.rows.values()):
                    if workspace.task is not None and workspace.task.id not in self._running:
                        self._begin(workspace.id, workspace.task)
                await self._changed.wait()
        finally:
            for running in self._running.values():
                running.cancel()

    def _begin(self, workspace: str, task: WorkspaceTask) -> None:
        running = asyncio.create_task(self._perform(workspace, task), name=f"workspace {task.kind} {workspace}")
        self._running[task.id] = running
        running.add_done_callback(lambda _: self._running.pop(task.id, None))

    async def wait(self, task_id: str, timeout_s: float) -> bool:
        """Wait until a task has ended; return False after ``timeout_s``. Raises the error of a failed task."""
        try:
            async with asyncio.timeout(timeout_s), self._ended:
                await self._ended.wait_for(lambda: task_id in self._outcomes)
        except TimeoutError:
            return False
        error = self._outcomes[task_id]
        if error is not None:
            raise error
        return True

    async def _perform(self, workspace: str, task: WorkspaceTask) -> None:
        pause_s, tries = FIRST_PAUSE_S, TRIES_IN_USE
        while (row := self._registry.rows.get(workspace)) is not None and row.task == task:
            try:
                async with files_link(self._engine, row.node) as link:
                    used = await link.home_task(task, workspace, row.uid)
                if used is not None:
                    await self._end(row, task, used, None)
            except GpupoolError as error:
                tries -= error.code is ErrorCode.WRONG_STATE
                repeat = error.code in NOT_SENT or (error.code is ErrorCode.WRONG_STATE and tries > 0)
                if not repeat and not str(error.code).startswith("DATABASE"):
                    await self._give_up(row, task, error)
                log.info("workspace task repeated", workspace=workspace, kind=task.kind, code=error.code)
            except Exception:
                log.exception("workspace task failed", workspace=workspace, kind=task.kind)
            await self._engine.ports.sleep(pause_s)
            pause_s = min(pause_s * 1.5, MAX_PAUSE_S)

    async def _give_up(self, row: Workspace, task: WorkspaceTask, error: GpupoolError) -> None:
        try:
            await self._end(row, task, None, error)
        except GpupoolError as refused:
            log.warning("the failure of a workspace task was not stored", workspace=row.id, code=refused.code)

    async def _end(self, row: Workspace, task: WorkspaceTask, used: int | None, error: GpupoolError | None) -> None:
        now = self._engine.ports.clock.now()
        what = _DONE[task.kind] if error is None else f"not changed ({task.kind}): {error.message}"
        event = self._engine.change_event(row.user, f"workspace {row.name} is {what}", f"workspace {row.id}")

        async def write() -> None:
            current = self._registry.rows.get(row.id)
            if current is None or current.task != task:
                return
            after = complete(current, task.id, used, now) if error is None else fail(current, task.id, error)
            if after is None:
                await self._engine.ports.store.workspaces.delete(row.id, event)
                self._registry.rows.pop(row.id, None)
            else:
                await self._engine.ports.store.workspaces.save(after, event)
                self._registry.rows[row.id] = after

        if error is not None and task.kind in MAKING:
            await self._engine.transact(lambda draft: release_reservation(draft, row.id, row.user))
        await self._engine.run_exclusive(write)
        self._outcomes[task.id] = error
        while len(self._outcomes) > MAX_OUTCOMES:
            self._outcomes.popitem(last=False)
        async with self._ended:
            self._ended.notify_all()
