"""The workspaces that a user may see and manage, and the limits of their disk."""

from __future__ import annotations

from dataclasses import dataclass

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import is_workspace_id
from gpupool.domain.people.access import Actor
from gpupool.domain.work.workspace import Snapshot, Workspace, check_disk
from gpupool.services.access.permissions import Permissions
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.workspace_registry import WorkspaceRegistry


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The disk that workspaces of ``owner`` use together; ``command`` changes the limit (None: there is none)."""

    owner: str
    used_bytes: int
    limit_mib: int | None
    command: str


class WorkspaceAccess:
    """Finds workspaces: others than the owner, the managers of its project and administrators do not see them."""

    def __init__(self, registry: WorkspaceRegistry, identities: IdentityCache, permissions: Permissions) -> None:
        self.registry = registry
        self.identities = identities
        self.permissions = permissions

    def all(self, actor: Actor) -> list[Workspace]:
        """Return the workspaces that the actor may manage, the actor's own first."""
        rows = [row for row in self.registry.rows.values() if self._may_manage(actor, row)]
        return sorted(rows, key=lambda row: (row.user != actor.user, row.user, row.name))

    def find(self, actor: Actor, ref: str) -> Workspace:
        """Return a workspace by name (the actor's own first) or by id.

        Raises ``GpupoolError``: UNKNOWN_WORKSPACE, INVALID_NAME if several users have one with this name.
        """
        found = [row for row in self.all(actor) if row.name == ref]
        if is_workspace_id(ref) and (row := self.registry.rows.get(ref)) is not None and self._may_manage(actor, row):
            found = [row]
        own = [row for row in found if row.user == actor.user]
        if not found:
            raise GpupoolError(
                ErrorCode.UNKNOWN_WORKSPACE, f"There is no workspace '{ref[:80]}'.", "See `gpupool workspace list`."
            )
        if not own and len(found) > 1:
            ids = ", ".join(f"{row.id} ({row.user})" for row in found[:5])
            raise GpupoolError(
                ErrorCode.INVALID_NAME, f"Several users have a workspace '{ref}'.", f"Give an id: {ids}."
            )
        return (own or found)[0]

    def shared(self, actor: Actor) -> list[tuple[Workspace, Snapshot]]:
        """Return the snapshots of others that the actor may clone but not manage, by owner and name."""
        found = [
            (row, snapshot)
            for row in self.registry.rows.values()
            if any(each.shared for each in row.snapshots)
            and not self._may_manage(actor, row)
            and self.permissions.can_submit(actor, self.identities.project(row.project))
            for snapshot in row.snapshots
            if snapshot.shared
        ]
        return sorted(found, key=lambda pair: (pair[0].user, pair[0].name, pair[1].name))

    def find_to_clone(self, actor: Actor, ref: str, snapshot: str, user: str) -> tuple[Workspace, str]:
        """Return a workspace and the id of the snapshot to clone; empty: its present files.

        ``user`` is its owner (empty: not given). Of a workspace that others share this is a shared snapshot, which need
        not be named if it is the only one. Raises ``GpupoolError`` as ``find``, and NOT_FOUND.
        """
        shared = [
            (row, each) for row, each in self.shared(actor) if ref in {row.name, row.id} and user in {"", row.user}
        ]
        own = None
        try:
            own = self.find(actor, ref)
        except GpupoolError:
            if not shared:
                raise
        if own is not None and user in {"", own.user}:
            return own, own.snapshot(snapshot).id if snapshot else ""
        wanted = [(row, each) for row, each in shared if snapshot in {"", each.name, each.id}]
        if len(wanted) == 1:
            return wanted[0][0], wanted[0][1].id
        names = ", ".join(f"`{row.user}/{row.name} --snapshot {each.name}`" for row, each in wanted or shared)
        raise GpupoolError(
            ErrorCode.NOT_FOUND,
            f"{'Several snapshots' if wanted else 'No snapshot'} of '{ref[:80]}' that others share can be meant.",
            f"You can clone {names}." if names else "See `gpupool workspace list`.",
        )

    def disk_uses(self, user: str, project: str) -> tuple[DiskUse, DiskUse]:
        """Return the disk of a user's workspaces in a project, and that of all in the project."""
        rules, command = self.identities.project(project).rules, f"gpupool project set {project}"
        of_user, of_all = self.registry.disk_bytes(project, user), self.registry.disk_bytes(project)
        return (
            DiskUse(f"{user} in {project}", of_user, rules.user_workspace_mib, f"{command} --user-workspace-disk SIZE"),
            DiskUse(f"the project {project}", of_all, rules.workspace_mib, f"{command} --workspace-disk SIZE"),
        )

    def check_disk(self, user: str, project: str, added_bytes: int = 0) -> None:
        """Raise ``GpupoolError(OVER_LIMIT)`` if the disk of a user or a project is over its limit, or would be."""
        for use in self.disk_uses(user, project):
            check_disk(use.used_bytes, added_bytes, use.limit_mib, use.owner, use.command)

    def _may_manage(self, actor: Actor, row: Workspace) -> bool:
        return self.permissions.can_manage_of(actor, row.user, row.project)
