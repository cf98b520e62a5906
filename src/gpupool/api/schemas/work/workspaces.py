"""Workspaces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from gpupool.api.schemas import name_patterns
from gpupool.api.schemas.base import Body, PageView, View
from gpupool.api.schemas.bodies import Name
from gpupool.api.schemas.work.workloads import GpuRequestView, ReasonView
from gpupool.domain.work.workload import WorkloadState
from gpupool.domain.work.workspace import MAX_ENVIRONMENT_BYTES, TaskKind, WorkspaceState
from gpupool.specs.fields.containers import Image
from gpupool.specs.fields.quantities import ProjectName
from gpupool.specs.request import GpuSpec

Environment = Annotated[
    str,
    StringConstraints(pattern=name_patterns.ENVIRONMENT),
]
FileName = Literal["uv.lock", "pyproject.toml", ".python-version", "uv.toml", "requirements.txt", "conda.yml"]
FileText = Annotated[str, StringConstraints(max_length=MAX_ENVIRONMENT_BYTES)]
NodeName = Annotated[str, StringConstraints(pattern=name_patterns.NODE_NAME)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=40)]


class WorkspaceBody(Body):
    """A new workspace.

    ``environment``: its first session makes an environment in the home, of a Python of the node or of the file with
    this name in ``environment_files``. ``uv.lock`` needs ``pyproject.toml``. ``reserved``: its GPUs, whole ones, stay
    with it while it is stopped. ``importing``: its files come from an archive; it is deleted unless a program reads
    them and the import is then completed.
    """

    name: Name
    project: ProjectName | None = None
    gpus: GpuSpec | None = None
    image: Image | None = None
    environment: Environment = ""
    environment_files: dict[FileName, FileText] = Field(default_factory=dict)
    node: NodeName | None = None
    reserved: bool = False
    importing: bool = False


class StartBody(Body):
    """Start a workspace with other GPUs (null: those of the last start), and limits as in a submission."""

    gpus: GpuSpec | None = None
    wait: Text | None = None
    max_time: Text | None = None
    idle_timeout: Text | None = None
    cpus: Annotated[float, Field(gt=0, le=1e6)] | None = None
    memory: Text | None = None


class StopWorkspaceBody(Body):
    """Stop a workspace; with ``force`` at once."""

    force: bool = False


class AssignBody(Body):
    """The GPUs of the next start; ``reserved``: they stay with the workspace while it is stopped."""

    gpus: GpuSpec
    reserved: bool = False


class CloneBody(Body):
    """The name of the copy, of a snapshot (null: of the present files). ``user`` owns a shared snapshot."""

    name: Name
    snapshot: Name | None = None
    user: Annotated[str, StringConstraints(max_length=63)] | None = None


class SnapshotBody(Body):
    """The name of a snapshot."""

    name: Name


class ShareBody(Body):
    """True: all members of the project may clone the snapshot; false: nobody else."""

    shared: bool = True


class SnapshotView(View):
    """A copy of a home. ``shared``: all members of the project may clone it."""

    id: str
    name: str
    created_at: float
    shared: bool = False


class SharedSnapshotView(View):
    """A snapshot of another user's workspace that the caller may clone."""

    id: str
    workspace: str
    user: str
    project: str
    node: str
    snapshot: str
    created_at: float
    gpus: GpuRequestView
    image: str
    environment: str


class TaskView(View):
    """A change of files that is in progress."""

    id: str
    kind: TaskKind


class WorkspaceView(View):
    """A workspace. ``gpus`` are those of its next start, ``session_gpus`` those of its present session.

    ``session`` is the workload that uses its home (null: none). ``disk_bytes`` is the use of home and snapshots at
    ``measured_at``. ``used_at`` is the end of its last session; ``unused``: that was long ago. ``failure`` is the
    reason why its last change of files failed. ``reserved``: its GPUs stay with it while it is stopped; ``reservation``
    is then the lease that holds them (null: it was released), in the state ``reservation_state``: running (held),
    suspended (its session uses them) or queued.
    """

    id: str
    name: str
    user: str
    project: str
    node: str
    state: WorkspaceState
    gpus: GpuRequestView
    image: str
    environment: str
    created_at: float
    used_at: float
    unused: bool
    disk_bytes: int | None
    measured_at: float | None
    snapshots: list[SnapshotView]
    task: TaskView | None
    failure: ReasonView | None
    session: str | None
    session_gpus: GpuRequestView | None
    reserved: bool = False
    reservation: str | None = None
    reservation_state: WorkloadState | None = None


class WorkspaceList(PageView):
    """Workspaces, the caller's own first, and the snapshots that other users share with the caller."""

    workspaces: list[WorkspaceView]
    shared: list[SharedSnapshotView] = Field(default_factory=list)
