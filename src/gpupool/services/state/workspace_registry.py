"""The workspaces in memory; the store is authoritative."""

from __future__ import annotations

from collections.abc import Iterable

from gpupool.domain.work.workload import WorkloadState
from gpupool.domain.work.workspace import Workspace, WorkspaceState, state_of
from gpupool.services.ports.store import ChangeSet
from gpupool.services.state.mirror import Mirror


class WorkspaceRegistry:
    """Workspaces by id, with their states and their use of disk."""

    def __init__(self, mirror: Mirror) -> None:
        self.rows: dict[str, Workspace] = {}
        self._mirror = mirror

    def load(self, rows: Iterable[Workspace]) -> None:
        """Load the rows of the store."""
        self.rows = {row.id: row for row in rows}

    def note(self, changes: ChangeSet) -> None:
        """Apply committed changes."""
        self.rows.update((row.id, row) for row in changes.workspaces)

    def session_state(self, workspace: Workspace) -> WorkloadState | None:
        """Return the state of the live workload that uses its home; None if there is none."""
        session = self._mirror.session_of(workspace.id)
        return None if session is None else session.state

    def state(self, workspace: Workspace) -> WorkspaceState:
        """Return the present state of a workspace."""
        return state_of(workspace, self.session_state(workspace))

    def find(self, user: str, name: str) -> Workspace | None:
        """Return a user's workspace by name."""
        return next((row for row in self.rows.values() if (row.user, row.name) == (user, name)), None)

    def image(self, workspace: str) -> str:
        """Return the image of a workspace by id; empty without one."""
        row = self.rows.get(workspace)
        return "" if row is None else row.image

    def disk_bytes(self, project: str, user: str | None = None) -> int:
        """Return the bytes that the workspaces of a project, or of a user in it, used when they were measured."""
        rows = (row for row in self.rows.values() if row.project == project and user in {None, row.user})
        return sum(row.disk_bytes or 0 for row in rows)
