"""Workspaces: named homes that are interactive sessions while started."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Caller, Member, Ref, Services, TimeoutS, Word, answer
from gpupool.api.paging import Paged, matches
from gpupool.api.schemas import name_patterns
from gpupool.api.schemas.work.workloads import ReasonView
from gpupool.api.schemas.work.workspaces import (
    AssignBody,
    CloneBody,
    ShareBody,
    SharedSnapshotView,
    SnapshotBody,
    SnapshotView,
    StartBody,
    StopWorkspaceBody,
    TaskView,
    WorkspaceBody,
    WorkspaceList,
    WorkspaceView,
)
from gpupool.api.views.mapping import gpu_request_view
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.work.workspace import UNUSED_AFTER_S, EnvironmentFile, Workspace, WorkspaceState
from gpupool.scheduling.state.cluster import NODE
from gpupool.services.pool import PoolServices
from gpupool.services.workspaces.service import NewWorkspace
from gpupool.specs.build import gpu_request

router = APIRouter(prefix="/v1/workspaces", tags=["workspaces"])

ANSWER_AFTER_S = 20.0  # a longer change continues, and the client asks again
TaskId = Annotated[str, Query(pattern=r"^h[0-9a-z]{10}$", description="Wait for this change of files.")]
Forget = Annotated[bool, Query(description="Delete without its node, which is down: its files stay there.")]
InPath = Annotated[str, Path(pattern=name_patterns.NAME, description="A snapshot's name or id.")]


@router.get("", response_model=WorkspaceList)
async def list_workspaces(
    *,
    services: Services,
    caller: Caller,
    page: Paged,
    state: WorkspaceState | None = None,
    user: Word | None = None,
    project: Word | None = None,
) -> Response:
    """List the caller's workspaces and those that the caller manages, as far as they match all filters.

    ``shared`` has the snapshots that others share, on each page.
    """
    found = [
        row
        for row in services.workspaces.all(caller)
        if matches(user, row.user)
        and matches(project, row.project)
        and (state is None or services.workspaces.state(row) is state)
    ]
    part, following = page.cut(found)
    rows = [workspace_view(services, row) for row in part]
    shared = [
        SharedSnapshotView(
            id=row.id,
            workspace=row.name,
            user=row.user,
            project=row.project,
            node=row.node,
            snapshot=snapshot.name,
            created_at=snapshot.created_at,
            gpus=gpu_request_view(row.gpus, ComputePolicy.GUARANTEE),
            image=row.image,
            environment=row.environment,
        )
        for row, snapshot in services.workspaces.shared(caller)
    ]
    return answer(WorkspaceList(workspaces=rows, shared=shared, next_cursor=following))


@router.post("", status_code=201, response_model=WorkspaceView)
async def create_workspace(services: Services, caller: Member, body: WorkspaceBody) -> Response:
    """Create a stopped workspace. A change of files that takes long continues after the answer: see ``task``."""
    wanted = NewWorkspace(
        body.name,
        body.project or "",
        GpuRequest() if body.gpus is None else gpu_request(body.gpus),
        body.image or "",
        body.environment.replace(":", ""),
        body.node or "",
        tuple(EnvironmentFile(name, text) for name, text in sorted(body.environment_files.items())),
        body.reserved,
        body.importing,
    )
    return await _settled(services, await services.workspaces.create(caller, wanted), 201)


@router.get("/{workspace}", response_model=WorkspaceView)
async def get_workspace(
    services: Services, caller: Caller, workspace: Ref, task: TaskId | None = None, timeout_s: TimeoutS = 0
) -> Response:
    """Return a workspace; with ``task``, wait for the end of that change of files, and raise its error."""
    row = services.workspaces.get(caller, workspace)
    if task is not None:
        row = await services.workspaces.wait(caller, workspace, task, timeout_s) or row
    return answer(workspace_view(services, row))


@router.post("/{workspace}/start", response_model=WorkspaceView)
async def start_workspace(services: Services, caller: Member, workspace: Ref, body: StartBody) -> Response:
    """Queue the session of a workspace; ``session`` of the answer is the workload."""
    gpus = None if body.gpus is None else gpu_request(body.gpus)
    options: dict[str, Any] = body.model_dump(exclude={"gpus"}, exclude_none=True)
    session = await services.workspaces.start(caller, workspace, gpus, **options)
    view = workspace_view(services, services.workspaces.get(caller, session.program.workspace))
    return answer(view.model_copy(update={"session": session.id}))


@router.post("/{workspace}/stop", response_model=WorkspaceView)
async def stop_workspace(services: Services, caller: Member, workspace: Ref, body: StopWorkspaceBody) -> Response:
    """Stop the session of a workspace; its files stay."""
    row = await services.workspaces.stop(caller, workspace, force=body.force)
    return answer(workspace_view(services, row))


@router.post("/{workspace}/gpus", response_model=WorkspaceView)
async def assign_workspace_gpus(services: Services, caller: Member, workspace: Ref, body: AssignBody) -> Response:
    """Set the GPUs of the next start; the workspace must be stopped."""
    row = await services.workspaces.assign(caller, workspace, gpu_request(body.gpus), reserved=body.reserved)
    return answer(workspace_view(services, row))


@router.post("/{workspace}/imported", response_model=WorkspaceView)
async def complete_workspace_import(services: Services, caller: Member, workspace: Ref) -> Response:
    """Complete an import: the files of its archive are in its home, and it is stopped from now on."""
    return answer(workspace_view(services, await services.workspaces.complete_import(caller, workspace)))


@router.post("/{workspace}/clone", status_code=201, response_model=WorkspaceView)
async def clone_workspace(services: Services, caller: Member, workspace: Ref, body: CloneBody) -> Response:
    """Create a workspace with a copy of the files of another one or of a snapshot, also of a shared one."""
    made = await services.workspaces.clone(caller, workspace, body.name, body.snapshot or "", body.user or "")
    return await _settled(services, made, 201)


@router.post("/{workspace}/snapshots", status_code=201, response_model=WorkspaceView)
async def create_snapshot(services: Services, caller: Member, workspace: Ref, body: SnapshotBody) -> Response:
    """Save a copy of the home as a snapshot."""
    return await _settled(services, await services.workspaces.snapshot(caller, workspace, body.name), 201)


@router.delete("/{workspace}/snapshots/{snapshot}", response_model=WorkspaceView)
async def delete_snapshot(services: Services, caller: Member, workspace: Ref, snapshot: InPath) -> Response:
    """Delete a snapshot."""
    return await _settled(services, await services.workspaces.drop_snapshot(caller, workspace, snapshot))


@router.post("/{workspace}/snapshots/{snapshot}/share", response_model=WorkspaceView)
async def share_snapshot(
    services: Services, caller: Member, workspace: Ref, snapshot: InPath, body: ShareBody
) -> Response:
    """Let all members of its project clone a snapshot, or no longer."""
    row = await services.workspaces.share(caller, workspace, snapshot, shared=body.shared)
    return answer(workspace_view(services, row))


@router.post("/{workspace}/restore", response_model=WorkspaceView)
async def restore_workspace(services: Services, caller: Member, workspace: Ref, body: SnapshotBody) -> Response:
    """Replace the home by a copy of a snapshot."""
    return await _settled(services, await services.workspaces.restore(caller, workspace, body.name))


@router.delete("/{workspace}", status_code=204, responses={200: {"model": WorkspaceView}})
async def delete_workspace(services: Services, caller: Member, workspace: Ref, forget: Forget = False) -> Response:
    """Delete a workspace with its home and snapshots; 200 if that is still in progress."""
    row = await services.workspaces.delete(caller, workspace, forget=forget)
    left = None if row is None else await services.workspaces.settled(row, ANSWER_AFTER_S)
    return Response(status_code=204) if left is None else answer(workspace_view(services, left))


async def _settled(services: PoolServices, row: Workspace, status: int = 200) -> Response:
    after = await services.workspaces.settled(row, ANSWER_AFTER_S)
    location = f"/v1/workspaces/{row.id}" if status == 201 else None
    return answer(workspace_view(services, after or row), status, location)


def workspace_view(services: PoolServices, row: Workspace) -> WorkspaceView:
    """Return the view of a workspace."""
    session, state = services.workspaces.session(row), services.workspaces.state(row)
    reservation, now = services.workspaces.reservation(row), services.workloads.now()
    return WorkspaceView(
        id=row.id,
        name=row.name,
        user=row.user,
        project=row.project,
        node=row.node,
        state=state,
        gpus=gpu_request_view(row.gpus, ComputePolicy.GUARANTEE),
        image=row.image,
        environment=row.environment,
        created_at=row.created_at,
        used_at=row.used_at,
        unused=state is WorkspaceState.STOPPED and row.unused_s(now) > UNUSED_AFTER_S,
        disk_bytes=row.disk_bytes,
        measured_at=row.measured_at,
        snapshots=[SnapshotView(**asdict(each)) for each in row.snapshots],
        task=None if row.task is None else TaskView(id=row.task.id, kind=row.task.kind),
        failure=None if row.failure is None else ReasonView(code=row.failure.code, message=row.failure.message),
        session=None if session is None else session.id,
        session_gpus=None if session is None else gpu_request_view(_unpinned(session.gpus), session.compute),
        reserved=row.reserved,
        reservation=None if reservation is None else reservation.id,
        reservation_state=None if reservation is None else reservation.state,
    )


def _unpinned(gpus: GpuRequest) -> GpuRequest:
    return replace(gpus, labels=tuple((label, value) for label, value in gpus.labels if label != NODE))
