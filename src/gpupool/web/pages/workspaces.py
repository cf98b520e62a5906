"""Pages of workspaces: a list, and one workspace with its sessions, snapshots and disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Ref
from gpupool.api.schemas.work.workspaces import SnapshotBody, WorkspaceBody
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest, NodeState
from gpupool.domain.work.workload import Workload
from gpupool.domain.work.workspace import (
    UNUSED_AFTER_S,
    Snapshot,
    Workspace,
    WorkspaceState,
    format_bytes,
    reservation_text,
)
from gpupool.services.access.workspaces import DiskUse
from gpupool.services.pool import PoolServices
from gpupool.services.workspaces.service import NewWorkspace
from gpupool.specs.build import gpu_request
from gpupool.specs.fields.parts import GpuSpec
from gpupool.specs.options import parse_gpu_amount
from gpupool.web.deps import Form, SentForm, reads
from gpupool.web.kit import form_input
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.labels import gpus_text
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import Context, MemberContext, PageContext, handle_form
from gpupool.web.pages.queue import wait_reasons
from gpupool.web.rendering import back_to

router = APIRouter(prefix="/workspaces")

ANSWER_AFTER_S = 2.0  # a longer change of files continues, and the page shows it
InPath = Annotated[str, Path(pattern=r"^[0-9a-z]{1,40}$")]
NEW = FormValues({"gpus": "1"})


@dataclass(frozen=True, slots=True)
class WorkspaceRow:
    """A workspace with its state and session; ``note`` is its last failure or present change."""

    workspace: Workspace
    state: WorkspaceState
    session: Workload | None
    reservation: Workload | None
    note: str

    @property
    def url(self) -> str:
        """Return the address of its page."""
        return f"/workspaces/{self.workspace.id}"

    @property
    def size(self) -> str:
        """Return the GPUs of its session, else those of its next start, and whether they are reserved."""
        size = size_text(self.workspace.gpus if self.session is None else self.session.gpus)
        if not self.workspace.reserved:
            return size
        return f"{size} ({reservation_text(None if self.reservation is None else self.reservation.state)})"

    @property
    def about(self) -> str:
        """Return its image and environment."""
        return ", ".join(filter(None, (self.workspace.image, self.workspace.environment)))

    @property
    def stopped(self) -> bool:
        """Return True if it can start, and its files can be copied."""
        return self.state is WorkspaceState.STOPPED

    @property
    def running(self) -> bool:
        """Return True if programs can run in its session."""
        return self.state is WorkspaceState.RUNNING

    @property
    def stoppable(self) -> bool:
        """Return True if it has a session to stop."""
        return self.state in {WorkspaceState.STARTING, WorkspaceState.RUNNING}

    @property
    def contents(self) -> str:
        """Describe what a deletion deletes: ``its home and 2 snapshots (1.2 GiB on gpu1)``."""
        count = len(self.workspace.snapshots)
        copies = f" and {count} snapshot{'' if count == 1 else 's'}" if count else ""
        size = self.workspace.disk_bytes
        disk = "" if size is None else f"{format_bytes(size)} "
        return f"its home{copies} ({disk}on {self.workspace.node})"


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A snapshot of another user that the visitor may clone."""

    workspace: Workspace
    snapshot: Snapshot


def workspace_row(services: PoolServices, workspace: Workspace) -> WorkspaceRow:
    """Return a workspace as pages show it."""
    state, note = services.workspaces.state(workspace), ""
    if workspace.task is not None:
        note = f"{workspace.task.kind} in progress"
    elif workspace.failure is not None:
        note = workspace.failure.message
    elif state is WorkspaceState.STOPPED and workspace.unused_s(services.workloads.now()) > UNUSED_AFTER_S:
        note = "unused for a long time"
    session, reservation = services.workspaces.session(workspace), services.workspaces.reservation(workspace)
    return WorkspaceRow(workspace, state, session, reservation, note)


def size_text(gpus: GpuRequest) -> str:
    """Return a request for GPUs; ``none`` without any."""
    return gpus_text(gpus) if gpus.count else "none"


COLUMNS: tuple[Column[WorkspaceRow], ...] = (
    Column(
        "name", "Name", lambda row: row.workspace.name, link=lambda row: row.url, note=lambda row: row.about or None
    ),
    Column("state", "State", lambda row: row.state, ColumnKind.STATE, note=lambda row: row.note or None),
    Column("user", "Owner", lambda row: row.workspace.user, note=lambda row: row.workspace.project),
    Column("gpus", "GPUs", lambda row: row.size, about="Of the session, or of the next start"),
    Column("node", "Node", lambda row: row.workspace.node, link=lambda row: f"/nodes/{row.workspace.node}"),
    Column("disk", "Disk", lambda row: row.workspace.disk_bytes, ColumnKind.BYTES, about="Home and snapshots together"),
    Column("snapshots", "Snapshots", lambda row: len(row.workspace.snapshots), ColumnKind.NUMBER),
    Column("used", "Last used", lambda row: row.workspace.used_at, ColumnKind.TIME),
)
SHARED: tuple[Column[SharedRow], ...] = (
    Column("name", "Name", lambda row: row.workspace.name, note=lambda row: row.workspace.image or None),
    Column("snapshot", "Snapshot", lambda row: row.snapshot.name),
    Column("user", "Owner", lambda row: row.workspace.user, note=lambda row: row.workspace.project),
    Column("node", "Node", lambda row: row.workspace.node),
    Column("created", "Made", lambda row: row.snapshot.created_at, ColumnKind.TIME),
)
SNAPSHOTS: tuple[Column[Snapshot], ...] = (
    Column("name", "Name", lambda row: row.name),
    Column("created", "Made", lambda row: row.created_at, ColumnKind.TIME),
    Column("shared", "Shared", lambda row: "with its project" if row.shared else ""),
    Column("id", "Id", lambda row: row.id),
)


@router.get("", dependencies=[reads(*table_names())])
async def workspaces(context: Context) -> Response:
    """Show the visitor's workspaces, and those that the visitor manages."""
    return await _list(context)


async def _list(context: PageContext, typed: FormValues = NEW) -> Response:
    services = context.services
    rows = [workspace_row(services, row) for row in services.workspaces.all(context.visitor)]
    return context.show(
        "workspaces/workspaces.html",
        "Workspaces",
        typed,
        table=listing(context.request, COLUMNS, rows, name="workspaces"),
        shared=listing(
            context.request,
            SHARED,
            [SharedRow(row, snapshot) for row, snapshot in services.workspaces.shared(context.visitor)],
            name="shared",
        ),
        uses=_disk_uses(services, [row.workspace for row in rows]),
        projects=[project.name for project in await services.access.projects()],
        nodes=[node.name for node in await services.nodes.nodes()],
    )


def _disk_uses(services: PoolServices, rows: Iterable[Workspace]) -> list[DiskUse]:
    """Return the sums of disk with a limit to which these workspaces count, each once."""
    return list({use.owner: use for row in rows for use in services.workspaces.limited_disk(row)}.values())


@router.post("")
async def create(context: MemberContext, form: SentForm) -> Response:
    """Create a stopped workspace."""

    async def change() -> Response:
        services = context.services
        made = await services.workspaces.create(context.visitor, _new_workspace(form))
        await services.workspaces.settled(made, ANSWER_AFTER_S)
        return back_to(f"/workspaces/{made.id}", notice=f"Workspace {made.name} created on {made.node}.")

    return await handle_form(form, change, lambda typed: _list(context, typed))


def _new_workspace(form: Form) -> NewWorkspace:
    fields: dict[str, Any] = {
        name: form.text(name) for name in ("name", "project", "image", "environment", "node") if form.text(name)
    }
    form_input.validate(WorkspaceBody, fields)
    fields["environment"] = fields.get("environment", "").replace(":", "")
    return NewWorkspace(**fields, gpus=_size(form) or GpuRequest(), reserved=form.is_checked("reserved"))


def _size(form: Form, before: GpuRequest | None = None) -> GpuRequest | None:
    """Read the GPUs of a start: ``0.25``, ``2``, ``0`` or ``4G``; None for an empty or unchanged field."""
    text = form.text("gpus")
    if not text or (before is not None and text == gpus_text(before)):
        return None
    memory = text[-1].isalpha()
    with form_input.name_field_in_errors("gpus"):
        fields = {"memory_mib": text} if memory else parse_gpu_amount(text)
        form_input.validate(GpuSpec, fields)
        return gpu_request(GpuSpec.model_validate(fields))


# One workspace


@router.get("/{workspace}", dependencies=[reads(*table_names())])
async def workspace(context: Context, workspace: Ref) -> Response:
    """Show a workspace and its actions."""
    services, visitor = context.services, context.visitor
    row = workspace_row(services, services.workspaces.get(visitor, workspace))
    waits = row.session is not None and row.state is WorkspaceState.STARTING
    why = (await wait_reasons(services, visitor, [row.session.id])) if row.session and waits else {}
    node = next((node for node in await services.nodes.nodes() if node.name == row.workspace.node), None)
    return context.show(
        "workspaces/workspace.html",
        row.workspace.name,
        row=row,
        why=next(iter(why.values()), None),
        size=gpus_text(row.workspace.gpus),
        node_up=node is not None and node.state is NodeState.UP,
        uses=_disk_uses(services, [row.workspace]),
        snapshots=listing(
            context.request, SNAPSHOTS, row.workspace.snapshots, name="snapshots", default_sort="-created"
        ),
        events=await context.history(f"workspace {row.workspace.id}"),
    )


@router.post("/{workspace}/start")
async def start(context: MemberContext, form: SentForm, workspace: Ref) -> Response:
    """Queue the session, with another size if one is given."""
    services, visitor = context.services, context.visitor
    row = services.workspaces.get(visitor, workspace)
    session = await services.workspaces.start(visitor, row.id, _size(form, row.gpus))
    return back_to(_url(row), notice=f"Starting {row.name}: GPUs {size_text(session.gpus)}.")


@router.post("/{workspace}/stop")
async def stop(context: MemberContext, form: SentForm, workspace: Ref) -> Response:
    """Stop the session; the files stay."""
    row = await context.services.workspaces.stop(context.visitor, workspace, force=form.is_checked("force"))
    return back_to(_url(row), notice=f"Stopping {row.name}. Its files stay on {row.node}.")


@router.post("/{workspace}/snapshots")
async def snapshot(context: MemberContext, form: SentForm, workspace: Ref) -> Response:
    """Save a copy of the files under a name."""
    form_input.validate(SnapshotBody, {"name": form.text("name")})
    row = await context.services.workspaces.snapshot(context.visitor, workspace, form.text("name"))
    return await _after_task(context, row, f"Snapshot {form.text('name')} saved.")


@router.post("/{workspace}/gpus")
async def assign(context: MemberContext, form: SentForm, workspace: Ref) -> Response:
    """Set the GPUs of the next start, reserved or not."""
    gpus = _size(form)
    if gpus is None:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "No GPUs were given.", "Enter a size, or 0 for none.")
    services, reserved = context.services, form.is_checked("reserved")
    row = await services.workspaces.assign(context.visitor, workspace, gpus, reserved=reserved)
    return back_to(_url(row), notice=f"GPUs of the next start of {row.name}: {size_text(row.gpus)}.")


@router.post("/{workspace}/clone")
async def clone(context: MemberContext, form: SentForm, workspace: Ref) -> Response:
    """Create a workspace with a copy of the files, or of a snapshot, also of one that another user shares."""
    form_input.validate(SnapshotBody, {"name": form.text("name")})
    made = await context.services.workspaces.clone(context.visitor, workspace, form.text("name"), form.text("snapshot"))
    return await _after_task(context, made, f"Workspace {made.name} created on {made.node}.")


@router.post("/{workspace}/snapshots/{snapshot}/share")
async def share(context: MemberContext, form: SentForm, workspace: Ref, snapshot: InPath) -> Response:
    """Let all members of the project clone a snapshot, or no longer."""
    shared = form.is_checked("shared")
    row = await context.services.workspaces.share(context.visitor, workspace, snapshot, shared=shared)
    name = row.snapshot(snapshot).name
    words = f"Snapshot {name} shared with {row.project}." if shared else f"Snapshot {name} is not shared any more."
    return back_to(_url(row), notice=words)


@router.post("/{workspace}/snapshots/{snapshot}/restore")
async def restore(context: MemberContext, form: SentForm, workspace: Ref, snapshot: InPath) -> Response:
    """Replace the files by those of a snapshot."""
    del form
    row = await context.services.workspaces.restore(context.visitor, workspace, snapshot)
    return await _after_task(context, row, f"{row.name} restored from {row.snapshot(snapshot).name}.")


@router.post("/{workspace}/snapshots/{snapshot}/delete")
async def drop_snapshot(context: MemberContext, form: SentForm, workspace: Ref, snapshot: InPath) -> Response:
    """Delete a snapshot."""
    del form
    row = await context.services.workspaces.drop_snapshot(context.visitor, workspace, snapshot)
    return await _after_task(context, row, f"Snapshot {row.snapshot(snapshot).name} deleted.")


@router.post("/{workspace}/delete")
async def delete(context: MemberContext, form: SentForm, workspace: Ref) -> Response:
    """Delete a workspace with its home and snapshots, once its name is typed."""
    services = context.services
    row = services.workspaces.get(context.visitor, workspace)
    if form.text("name") != row.name:
        wrong = f"The name '{form.text('name')[:63]}' is not that of the workspace. Nothing was deleted."
        raise GpupoolError(ErrorCode.INVALID_REQUEST, wrong, f"Type {row.name} to delete it.")
    after = await services.workspaces.delete(context.visitor, row.id)
    if after is not None and await services.workspaces.settled(after, ANSWER_AFTER_S) is not None:
        return back_to(_url(row), notice=f"{row.name} is being deleted.")
    return back_to("/workspaces", notice=f"Workspace {row.name} deleted.")


async def _after_task(context: PageContext, row: Workspace, done: str) -> Response:
    after = await context.services.workspaces.settled(row, ANSWER_AFTER_S)
    in_progress = after is not None and after.task is not None
    return back_to(_url(row), notice="The files are being copied; the page shows the end." if in_progress else done)


def _url(row: Workspace) -> str:
    return f"/workspaces/{row.id}"
