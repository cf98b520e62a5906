"""Workspace service: create, start, stop, copy and delete workspaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import ID_BITS, check_name, workspace_id
from gpupool.domain.nodes.gpu import GpuRequest, NodeState
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.people.access import DEFAULT_PROJECT, Actor, Role
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.program.supervision import NODE_PROGRAM
from gpupool.domain.work.workload import Workload
from gpupool.domain.work.workspace import (
    MAX_SNAPSHOTS,
    READY,
    EnvironmentFile,
    Snapshot,
    TaskKind,
    Workspace,
    WorkspaceAction,
    WorkspaceState,
    WorkspaceTask,
    begin,
    check_action,
    check_environment,
)
from gpupool.scheduling.explain.feasibility import check_possible
from gpupool.scheduling.placement.node_filter import EMPTY, fitting_rows
from gpupool.scheduling.state.cluster import NODE, Shapes
from gpupool.services.access.permissions import forbidden
from gpupool.services.access.workspaces import DiskUse, WorkspaceAccess
from gpupool.services.control.engine import Engine
from gpupool.services.lifecycle.reserved_gpus import same_size
from gpupool.services.lifecycle.transitions import release_reservation
from gpupool.services.state.mirror import Draft
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.workloads.service import WorkloadService
from gpupool.services.workloads.submission import Prepared
from gpupool.services.workspaces.meter import WorkspaceMeter
from gpupool.services.workspaces.tasks import WorkspaceTasks
from gpupool.specs.request import parse_request
from gpupool.specs.resubmit import gpu_body

MAX_PER_USER = 100
SESSION_PROGRAM = "node/files/workspace_session.py"
IMAGE_SESSION = ["/bin/sh", "-c", 'echo "$1"; exec sleep infinity', "sh", READY]


@dataclass(frozen=True, slots=True)
class NewWorkspace:
    """A request for a workspace; without ``node`` the pool chooses one where the GPUs fit.

    ``files`` are those of its environment. ``reserved``: the GPUs stay with it while it is stopped. ``importing``: only
    the program that reads an archive may use it until ``complete_import``.
    """

    name: str
    project: str = ""
    gpus: GpuRequest = field(default_factory=GpuRequest)
    image: str = ""
    environment: str = ""
    node: str = ""
    files: tuple[EnvironmentFile, ...] = ()
    reserved: bool = False
    importing: bool = False


class WorkspaceService:
    """Operations on workspaces; each takes the actor and raises UNKNOWN_WORKSPACE if the actor may not manage it."""

    def __init__(
        self,
        engine: Engine,
        nodes: NodeRegistry,
        access: WorkspaceAccess,
        workloads: WorkloadService,
        *,
        as_user: bool,
    ) -> None:
        """Create the service; with ``as_user`` homes belong to the accounts of their users, as in a system pool."""
        self._engine = engine
        self._nodes = nodes
        self._identities = access.identities
        self._permissions = access.permissions
        self._access = access
        self._registry = access.registry
        self._workloads = workloads
        self._as_user = as_user
        engine.on_commit(access.registry.note)
        self.tasks = WorkspaceTasks(engine, access.registry)
        self.meter = WorkspaceMeter(engine, access.registry, self.tasks)

    # Reading

    def all(self, actor: Actor) -> list[Workspace]:
        """Return the workspaces that the actor may manage, the actor's own first."""
        return self._access.all(actor)

    def get(self, actor: Actor, ref: str) -> Workspace:
        """Return a workspace by name or id."""
        return self._access.find(actor, ref)

    def state(self, workspace: Workspace) -> WorkspaceState:
        """Return the present state of a workspace."""
        return self._registry.state(workspace)

    def session(self, workspace: Workspace) -> Workload | None:
        """Return the live workload that uses its home."""
        return self._engine.mirror.session_of(workspace.id)

    def reservation(self, workspace: Workspace) -> Workload | None:
        """Return the live lease for its reserved GPUs; it is suspended while a session uses them."""
        return self._engine.mirror.reservation_of(workspace.id)

    def limited_disk(self, workspace: Workspace) -> list[DiskUse]:
        """Return the sums of disk to which a workspace counts and that have a limit."""
        return [use for use in self._access.disk_uses(workspace.user, workspace.project) if use.limit_mib is not None]

    # Creation

    async def create(self, actor: Actor, wanted: NewWorkspace) -> Workspace:
        """Create a workspace; its task makes the home.

        Raises FORBIDDEN, NAME_TAKEN, INVALID_NAME, INVALID_REQUEST, UNKNOWN_PROJECT, UNKNOWN_NODE, OVER_LIMIT,
        IMPOSSIBLE_REQUEST.
        """
        check_environment(wanted.environment, wanted.files, wanted.image)
        project = self._identities.project(wanted.project or DEFAULT_PROJECT)
        self._permissions.need_project(actor, project)
        node = self._choose_node(wanted, project.rules.node_pools)
        row = self._new_row(actor, wanted.name, project.name, node)
        row = replace(row, gpus=wanted.gpus, image=wanted.image, environment=wanted.environment)
        row = replace(row, reserved=wanted.reserved, importing=wanted.importing)
        reservation = await self._prepare_reservation(actor, row) if wanted.reserved else None
        return await self._insert(actor, row, self._task(TaskKind.CREATE, files=wanted.files), reservation)

    async def clone(self, actor: Actor, ref: str, name: str, snapshot: str = "", user: str = "") -> Workspace:
        """Create a workspace with a copy of the files of another one, or of its snapshot, on the same node.

        Of a workspace of others (``user``) only a snapshot that is shared with the actor.
        """
        source, taken = self._access.find_to_clone(actor, ref, snapshot, user)
        self._permissions.need_project(actor, self._identities.project(source.project))
        if not taken:
            self._check(source, WorkspaceAction.CLONE)
        self._access.check_disk(actor.user, source.project, source.disk_bytes or 0)
        row = self._new_row(actor, name, source.project, source.node)
        row = replace(row, gpus=source.gpus, image=source.image, environment=source.environment)
        return await self._insert(actor, row, self._task(TaskKind.CLONE, source=source.id, snapshot=taken))

    async def complete_import(self, actor: Actor, ref: str) -> Workspace:
        """Release a workspace for use: its archive was read completely. Do nothing if that was done before."""

        def change(row: Workspace) -> Workspace:
            if row.importing:
                self._check(row, WorkspaceAction.IMPORT)
            return replace(row, importing=False)

        return await self._change(actor, self._access.find(actor, ref), change, "is imported")

    def _new_row(self, actor: Actor, name: str, project: str, node: str) -> Workspace:
        check_name(name, "workspace")
        if self._as_user and actor.uid is None:
            raise forbidden(f"{actor.user} has no account on the nodes to own files.")
        now = self._engine.ports.clock.now()
        uid = actor.uid if self._as_user else None
        return Workspace(self._new_id(), name, actor.user, project, node, GpuRequest(), now, now, uid)

    def _new_id(self) -> str:
        return workspace_id(self._engine.ports.random_bits(ID_BITS))

    def _task(self, kind: TaskKind, **fields: Any) -> WorkspaceTask:
        return WorkspaceTask(self._new_id(), kind, **fields)

    def _choose_node(self, wanted: NewWorkspace, pools: tuple[str, ...]) -> str:
        """Return the node for the home: with the most free GPUs, then the fewest workspaces, among those that fit."""
        placer = self._engine.feed.scheduler.placer
        gpus = wanted.gpus
        if wanted.node:
            node = self._nodes.get(wanted.node)
            gpus = pinned(gpus, node.name)
        check_possible(placer, gpus, 0.0, 0, pools)
        shape = Shapes().get(gpus, 0.0, 0, "", pools)
        found = [placer.cluster.nodes[row] for row in fitting_rows(placer.cluster, shape, EMPTY).tolist()]
        names = {node.name for node in found if node is not None}
        up = [node for node in self._nodes.all() if node.name in names and node.state is NodeState.UP]
        if not up:
            raise GpupoolError(
                ErrorCode.NO_CAPACITY,
                f"No node that is up can have this workspace; {', '.join(sorted(names))} could.",
                "Try again when such a node is up, or request other GPUs.",
            )
        free = {node.name: WHOLE_GPU * sum(node.accepts(gpu) for gpu in node.report.gpus) for node in up}
        for lease in self._engine.mirror.leases.values():
            if lease.node in free:
                free[lease.node] -= lease.permille
        homes = [row.node for row in self._registry.rows.values()]
        return min(free, key=lambda name: (-free[name], homes.count(name), name))

    async def _insert(
        self, actor: Actor, row: Workspace, task: WorkspaceTask, reservation: Prepared | None = None
    ) -> Workspace:
        row = begin(row, task)
        self._access.check_disk(row.user, row.project)

        def write(draft: Draft) -> None:
            if self._registry.find(row.user, row.name) is not None:
                raise GpupoolError(
                    ErrorCode.NAME_TAKEN, f"There is already a workspace '{row.name}'.", "Choose another name."
                )
            if sum(each.user == row.user for each in self._registry.rows.values()) >= MAX_PER_USER:
                raise GpupoolError(
                    ErrorCode.OVER_LIMIT, f"{row.user} has {MAX_PER_USER} workspaces already.", "Delete some."
                )
            if task.source:  # it may have been started since
                source = self._registry.rows.get(task.source)
                if source is None or not task.snapshot:
                    self._check(source or row, WorkspaceAction.CLONE)
            self._put(draft, actor, row, f"workspace {row.name} is being made on {row.node}")
            self._reserve(draft, actor, reservation)

        await self._engine.transact(write)
        self._engine.wake(None)
        self.tasks.wake()
        return row

    def _put(self, draft: Draft, actor: Actor, row: Workspace, what: str) -> None:
        draft.put_workspace(row)
        draft.note(self._engine.change_event(actor.user, what, f"workspace {row.id}"))

    def _reserve(self, draft: Draft, actor: Actor, reservation: Prepared | None) -> None:
        if reservation is not None:
            self._workloads.submission.put(draft, actor, reservation)

    # Sessions

    async def start(self, actor: Actor, ref: str, gpus: GpuRequest | None = None, **options: Any) -> Workload:
        """Queue the session of a workspace, with other GPUs than before if ``gpus`` is given; return its workload.

        ``options`` are other fields of the request, such as ``wait`` and ``max_time``. Raises WRONG_STATE, OVER_LIMIT.
        """
        workspace = self._access.find(actor, ref)
        self._check(workspace, WorkspaceAction.START)
        asked = workspace.gpus if gpus is None else gpus
        if asked.count and self.reservation(workspace) is not None and not same_size(asked, workspace.gpus):
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{workspace.name} has reserved GPUs of another size.",
                f"Start it with these or without GPUs, or change them: `gpupool workspace assign {workspace.name}`.",
            )
        command = [NODE_PROGRAM, SESSION_PROGRAM, *filter(None, (workspace.environment,))]
        body = {
            "name": workspace.name,
            "kind": "interactive",
            "workspace": workspace.id,
            "project": workspace.project,
            "command": IMAGE_SESSION if workspace.image else command,
            "literal": True,
            **({"image": workspace.image} if workspace.image else {}),
            **gpu_body(asked, ComputePolicy.GUARANTEE),
            **{name: value for name, value in options.items() if value is not None},
        }
        workload, _ = await self._workloads.submit(self._owner(actor, workspace), parse_request(body))
        if asked != workspace.gpus and not workspace.reserved:
            await self._change(actor, workspace, lambda row: replace(row, gpus=asked), "has other GPUs")
        return workload

    @staticmethod
    def _owner(actor: Actor, workspace: Workspace) -> Actor:
        """Return the owner of a workspace as the actor: its workloads always belong to the owner."""
        if actor.user == workspace.user:
            return actor
        return Actor(workspace.user, Role.MEMBER, actor.via, workspace.uid)

    async def stop(self, actor: Actor, ref: str, *, force: bool = False) -> Workspace:
        """Stop the session; do nothing if there is none."""
        workspace = self._access.find(actor, ref)
        self._check(workspace, WorkspaceAction.STOP)
        session = self.session(workspace)
        if session is not None:
            await self._workloads.stop(actor, session.id, force=force)
        return workspace

    async def assign(self, actor: Actor, ref: str, gpus: GpuRequest, *, reserved: bool = False) -> Workspace:
        """Set the GPUs of the next start; they stay with the workspace if they are ``reserved``.

        GPUs that were reserved before are released. Raises WRONG_STATE unless it is stopped, IMPOSSIBLE_REQUEST,
        OVER_LIMIT.
        """
        workspace = self._access.find(actor, ref)
        self._check(workspace, WorkspaceAction.ASSIGN)
        pools = self._identities.project(workspace.project).rules.node_pools
        check_possible(self._engine.feed.scheduler.placer, pinned(gpus, workspace.node), 0.0, 0, pools)

        after = replace(workspace, gpus=gpus, reserved=reserved)
        reservation = await self._prepare_reservation(actor, after) if reserved else None

        def change(row: Workspace) -> Workspace:
            self._check(row, WorkspaceAction.ASSIGN)
            return replace(row, gpus=gpus, reserved=reserved)

        def reserve(draft: Draft) -> None:
            release_reservation(draft, workspace.id, actor.user)
            self._reserve(draft, actor, reservation)

        return await self._change(actor, workspace, change, "has other GPUs", reserve)

    async def _prepare_reservation(self, actor: Actor, row: Workspace) -> Prepared:
        """Return the lease that holds the GPUs of a workspace while it is stopped. Raises ``GpupoolError``."""
        if not row.gpus.count or not row.gpus.whole:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "Only whole GPUs and MIG instances can be reserved.",
                "Request a whole GPU (`-g 1`), or leave out --reserved.",
            )
        body = {
            "name": f"{row.name}-reserved",
            "kind": "lease",
            "project": row.project,
            **gpu_body(row.gpus, ComputePolicy.GUARANTEE),
        }
        made = await self._workloads.submission.prepare(self._owner(actor, row), parse_request(body))
        workload = replace(
            made.workload,
            gpus=pinned(made.workload.gpus, row.node),
            program=replace(made.workload.program, workspace=row.id),
            limits=replace(made.workload.limits, idle_timeout_s=None),
        )
        return replace(made, workload=workload)

    # Copies

    async def snapshot(self, actor: Actor, ref: str, name: str) -> Workspace:
        """Save a copy of the home under a name."""
        workspace = self._access.find(actor, ref)
        check_name(name, "snapshot")
        self._access.check_disk(workspace.user, workspace.project, workspace.disk_bytes or 0)
        task = self._task(TaskKind.SNAPSHOT, snapshot=self._new_id(), name=name)

        def change(row: Workspace) -> Workspace:
            if any(each.name == name for each in row.snapshots):
                raise GpupoolError(
                    ErrorCode.NAME_TAKEN, f"{row.name} has a snapshot '{name}' already.", "Choose another name."
                )
            if len(row.snapshots) >= MAX_SNAPSHOTS:
                raise GpupoolError(
                    ErrorCode.OVER_LIMIT, f"{row.name} has {MAX_SNAPSHOTS} snapshots already.", "Delete some."
                )
            return begin(row, task)

        return await self._begin(actor, workspace, WorkspaceAction.SNAPSHOT, change, f"is being saved as {name}")

    async def restore(self, actor: Actor, ref: str, snapshot: str) -> Workspace:
        """Replace the home by a copy of a snapshot; the present files are lost."""
        workspace = self._access.find(actor, ref)
        found = workspace.snapshot(snapshot)
        task = self._task(TaskKind.RESTORE, snapshot=found.id)
        what = f"is being restored from {found.name}"
        return await self._begin(actor, workspace, WorkspaceAction.RESTORE, lambda row: begin(row, task), what)

    async def drop_snapshot(self, actor: Actor, ref: str, snapshot: str) -> Workspace:
        """Delete a snapshot."""
        workspace = self._access.find(actor, ref)
        found = workspace.snapshot(snapshot)
        task = self._task(TaskKind.DROP_SNAPSHOT, snapshot=found.id)
        what = f"loses its snapshot {found.name}"
        return await self._begin(actor, workspace, WorkspaceAction.SNAPSHOT, lambda row: begin(row, task), what)

    async def share(self, actor: Actor, ref: str, snapshot: str, *, shared: bool = True) -> Workspace:
        """Let all members of the project clone a snapshot, or no longer; only its owner may.

        Raises FORBIDDEN, NOT_FOUND.
        """
        workspace = self._access.find(actor, ref)
        if actor.user != workspace.user:
            raise forbidden(f"Only {workspace.user}, the owner, may share the files of {workspace.name}.")
        found = workspace.snapshot(snapshot)

        def change(row: Workspace) -> Workspace:
            row.snapshot(found.id)
            changed = (replace(each, shared=shared) if each.id == found.id else each for each in row.snapshots)
            return replace(row, snapshots=tuple(changed))

        whom = f"all members of {workspace.project}" if shared else "nobody"
        return await self._change(actor, workspace, change, f"shares its snapshot {found.name} with {whom}")

    def shared(self, actor: Actor) -> list[tuple[Workspace, Snapshot]]:
        """Return the snapshots of others that the actor may clone."""
        return self._access.shared(actor)

    async def delete(self, actor: Actor, ref: str, *, forget: bool = False) -> Workspace | None:
        """Delete a workspace with its home and snapshots; with ``forget`` without its node, which is down.

        Returns None if it is deleted already. Raises WRONG_STATE unless it is stopped.
        """
        workspace = self._access.find(actor, ref)
        if forget:
            await self._forget(actor, workspace)
            return None
        task = self._task(TaskKind.DELETE)

        def change(row: Workspace) -> Workspace:
            return row if row.task is not None else begin(row, task)

        return await self._begin(
            actor,
            workspace,
            WorkspaceAction.DELETE,
            change,
            "is being deleted",
            lambda draft: release_reservation(draft, workspace.id, actor.user),
        )

    async def _forget(self, actor: Actor, workspace: Workspace) -> None:
        node = self._nodes.find(workspace.node)
        if node is not None and node.state is not NodeState.DOWN:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{workspace.node} answers; it can delete the files.", "Delete without --forget."
            )
        event = self._engine.change_event(
            actor.user, f"workspace {workspace.name} is forgotten", f"workspace {workspace.id}"
        )

        def release(draft: Draft) -> None:
            if self._registry.session_state(workspace) is not None:
                self._check(workspace, WorkspaceAction.DELETE)
            release_reservation(draft, workspace.id, actor.user)

        await self._engine.transact(release)  # first: without its workspace, nobody would release it

        async def write() -> None:
            if workspace.id in self._registry.rows:
                if self._registry.session_state(workspace) is not None:
                    self._check(workspace, WorkspaceAction.DELETE)
                await self._engine.ports.store.workspaces.delete(workspace.id, event)
                del self._registry.rows[workspace.id]

        await self._engine.run_exclusive(write)

    async def _begin(
        self,
        actor: Actor,
        workspace: Workspace,
        action: WorkspaceAction,
        change: Callable[[Workspace], Workspace],
        what: str,
        also: Callable[[Draft], None] | None = None,
    ) -> Workspace:
        """Store a task of a workspace that is in the right state, and wake the tasks."""

        def checked(row: Workspace) -> Workspace:
            self._check(row, action)
            return change(row)

        row = await self._change(actor, workspace, checked, what, also)
        self.tasks.wake()
        return row

    async def _change(
        self,
        actor: Actor,
        workspace: Workspace,
        change: Callable[[Workspace], Workspace],
        what: str,
        also: Callable[[Draft], None] | None = None,
    ) -> Workspace:
        """Change the row as it is now; do what ``also`` drafts in the same transaction."""

        def write(draft: Draft) -> Workspace:
            row = self._registry.rows.get(workspace.id)
            if row is None:
                raise GpupoolError(ErrorCode.UNKNOWN_WORKSPACE, f"{workspace.name} was deleted.", "Create it again.")
            after = change(row)
            if after != row:
                self._put(draft, actor, after, f"workspace {row.name} {what}")
            if also is not None:
                also(draft)
            return after

        row = await self._engine.transact(write)
        self._engine.wake(None)
        return row

    def _check(self, workspace: Workspace, action: WorkspaceAction) -> None:
        check_action(workspace, self._registry.state(workspace), action)

    async def settled(self, workspace: Workspace, timeout_s: float) -> Workspace | None:
        """Wait up to ``timeout_s`` for the task of a workspace; return its row then, None if it was deleted.

        Raises the error of a task that failed.
        """
        if workspace.task is not None:
            await self.tasks.wait(workspace.task.id, timeout_s)
        return self._registry.rows.get(workspace.id)

    async def wait(self, actor: Actor, ref: str, task_id: str, timeout_s: float) -> Workspace | None:
        """Wait as ``settled`` for a task by its id. Raises UNKNOWN_WORKSPACE, also if a failure removed it before."""
        workspace = self._access.find(actor, ref)
        if workspace.failure is not None and workspace.failure.task == task_id:
            raise workspace.failure.error()
        same = workspace.task is not None and workspace.task.id == task_id
        return await self.settled(workspace, timeout_s) if same else workspace


def pinned(gpus: GpuRequest, node: str) -> GpuRequest:
    """Return the request limited to one node."""
    labels = {**dict(gpus.labels), NODE: node}
    return replace(gpus, labels=tuple(sorted(labels.items())))
