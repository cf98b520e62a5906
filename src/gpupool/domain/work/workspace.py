"""Workspaces: named homes of users that are kept on a node, and are an interactive session while started.

The state of a workspace follows from its stored task and from the live workload that uses its home, so there is no
second record that could disagree after a crash. A task changes files on the node. It is stored before it begins and
repeated until its node reports the result, so every task can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.program.supervision import NODE_PROGRAM
from gpupool.domain.work.workload import WorkloadState

MAX_SNAPSHOTS = 64
UNUSED_AFTER_S = 90 * 86400.0
IMPORT_GRACE_S = 20.0  # an import that has no program for this time was abandoned
ARCHIVE_PROGRAM = "node/files/workspace_archive.py"
IMPORT_COMMAND = (NODE_PROGRAM, ARCHIVE_PROGRAM, "import")
READY = "The workspace is ready."  # a session prints it once its environment is complete, or its container runs
ENVIRONMENT_FILES = {
    "uv.lock": ("pyproject.toml", ".python-version", "uv.toml"),
    "requirements.txt": (),
    "conda.yml": (),
}  # the file of an environment, and the files that its tool reads next to it
MAX_ENVIRONMENT_BYTES = 1 << 20  # as JSON at most six times that, less than a message may have


class WorkspaceState(StrEnum):
    """The state of a workspace."""

    CREATING = "creating"  # its home is being made or copied
    IMPORTING = "importing"  # its files are being read from an archive
    STOPPED = "stopped"
    COPYING = "copying"  # a snapshot is being made, deleted or restored
    STARTING = "starting"  # its session is queued, or starts
    RUNNING = "running"
    STOPPING = "stopping"
    DELETING = "deleting"


class WorkspaceAction(StrEnum):
    """An action that a user can request."""

    START = "start"
    STOP = "stop"
    ASSIGN = "assign"  # GPUs, or none
    CLONE = "clone"  # from its present files
    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    EXPORT = "export"
    IMPORT = "import"  # files of an archive
    DELETE = "delete"


class TaskKind(StrEnum):
    """A change of files on the node."""

    CREATE = "create"
    CLONE = "clone"
    SNAPSHOT = "snapshot"
    DROP_SNAPSHOT = "drop-snapshot"
    RESTORE = "restore"
    DELETE = "delete"


MAKING = frozenset({TaskKind.CREATE, TaskKind.CLONE})  # if they fail, there is no workspace
_STATE_OF_TASK = {
    TaskKind.CREATE: WorkspaceState.CREATING,
    TaskKind.CLONE: WorkspaceState.CREATING,
    TaskKind.DELETE: WorkspaceState.DELETING,
}
_STATE_OF_SESSION = {
    WorkloadState.QUEUED: WorkspaceState.STARTING,
    WorkloadState.SUSPENDED: WorkspaceState.STARTING,
    WorkloadState.RUNNING: WorkspaceState.RUNNING,
    WorkloadState.STOPPING: WorkspaceState.STOPPING,
}
_ACTIVE = frozenset({WorkspaceState.STARTING, WorkspaceState.RUNNING, WorkspaceState.STOPPING})
_STOPPED = frozenset({WorkspaceState.STOPPED})
_ALLOWED = {
    WorkspaceAction.STOP: _ACTIVE | _STOPPED | {WorkspaceState.IMPORTING},  # a repeated stop is harmless
    WorkspaceAction.DELETE: _STOPPED | {WorkspaceState.DELETING, WorkspaceState.IMPORTING},
    WorkspaceAction.IMPORT: frozenset({WorkspaceState.IMPORTING}),
}


@dataclass(frozen=True, slots=True)
class EnvironmentFile:
    """A file from which a session makes an environment."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class WorkspaceTask:
    """A change of files that has been requested and is not known to be complete.

    ``source`` is the workspace to clone. ``snapshot`` is the id of the snapshot to make, delete or restore, or to clone
    from (empty: the present files). ``name`` is the name of a new snapshot. ``files`` are written to a new home.
    """

    id: str
    kind: TaskKind
    source: str = ""
    snapshot: str = ""
    name: str = ""
    files: tuple[EnvironmentFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of a home as it was at a time. ``shared``: all members of its project may clone it."""

    id: str
    name: str
    created_at: float
    shared: bool = False


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The reason why the last task of a workspace changed nothing."""

    task: str
    code: str
    message: str
    hint: str = ""

    def error(self) -> GpupoolError:
        """Return the failure as an error."""
        return GpupoolError.from_dict({"code": self.code, "message": self.message, "hint": self.hint})


@dataclass(frozen=True, slots=True)
class Workspace:
    """A named home of a user on one node. ``name`` is unique among the workspaces of the user.

    ``gpus`` are those of its next start; ``reserved``: they stay with it while it is stopped. ``environment`` is empty,
    or that of which its session makes an environment in the home: a Python (``python``, ``python3.11``), or a file (a
    key of ``ENVIRONMENT_FILES``). ``image`` is the container image of its session (empty: none). ``disk_bytes`` is what
    home and snapshots use together, as measured at ``measured_at``. ``used_at`` is the end of its last session, or its
    creation. ``warned_at`` is when its user was last warned that it is unused. ``importing``: it is deleted unless its
    import is completed.
    """

    id: str
    name: str
    user: str
    project: str
    node: str
    gpus: GpuRequest
    created_at: float
    used_at: float
    uid: int | None = None
    image: str = ""
    environment: str = ""
    snapshots: tuple[Snapshot, ...] = ()
    disk_bytes: int | None = None
    measured_at: float | None = None
    task: WorkspaceTask | None = None
    failure: TaskFailure | None = None
    reserved: bool = False
    warned_at: float | None = None
    importing: bool = False

    def snapshot(self, ref: str) -> Snapshot:
        """Return a snapshot by name or id. Raises ``GpupoolError(NOT_FOUND)``."""
        for snapshot in self.snapshots:
            if ref in {snapshot.id, snapshot.name}:
                return snapshot
        names = ", ".join(each.name for each in self.snapshots) or "none"
        raise GpupoolError(
            ErrorCode.NOT_FOUND, f"The workspace {self.name} has no snapshot '{ref[:80]}'.", f"Its snapshots: {names}."
        )

    def unused_s(self, now: float) -> float:
        """Return the seconds since its last use; it must be stopped."""
        return max(0.0, now - self.used_at)

    def needs_warning(self, now: float) -> bool:
        """Return True if its user should be warned, again after each such time, that it is unused."""
        return now - max(self.used_at, self.warned_at or 0.0) > UNUSED_AFTER_S

    def unused_warning(self, now: float) -> str:
        """Return a sentence, without a full stop, about the resources that an unused workspace keeps."""
        disk = "an unknown amount" if self.disk_bytes is None else format_bytes(self.disk_bytes)
        gpus = f" and {self.gpus.count} reserved GPUs" if self.reserved else ""
        return (
            f"the workspace has not been used for {self.unused_s(now) // 86400:.0f} days and keeps {disk} of disk{gpus}"
        )


def check_environment(environment: str, files: Sequence[EnvironmentFile], image: str) -> None:
    """Raise ``GpupoolError(INVALID_REQUEST)`` if an environment cannot be made of these files."""
    names = {file.name for file in files}
    also = ENVIRONMENT_FILES.get(environment)
    required = set() if also is None else {environment, *also[:1]}
    wrong = ""
    if environment and image:
        wrong = "An environment is made with programs of the node, not in a container image."
    elif names - {environment, *(also or ())} or (names and also is None):
        wrong = f"The environment '{environment}' takes no file {', '.join(sorted(names - required)) or 'here'}."
    elif required - names:
        wrong = f"The environment {environment} needs {' and '.join(sorted(required - names))}."
    elif sum(len(file.text.encode()) for file in files) > MAX_ENVIRONMENT_BYTES:
        wrong = f"The files of the environment are larger than {format_bytes(MAX_ENVIRONMENT_BYTES)}."
    if wrong:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, wrong, "See docs/workspaces.md, Environments.")


def state_of(workspace: Workspace, session: WorkloadState | None) -> WorkspaceState:
    """Return the state; ``session`` is the state of the live workload that uses its home (None: there is none)."""
    if workspace.task is not None:
        return _STATE_OF_TASK.get(workspace.task.kind, WorkspaceState.COPYING)
    if workspace.importing:
        return WorkspaceState.IMPORTING
    return WorkspaceState.STOPPED if session is None else _STATE_OF_SESSION.get(session, WorkspaceState.STOPPED)


def check_action(workspace: Workspace, state: WorkspaceState, action: WorkspaceAction) -> None:
    """Raise ``GpupoolError(WRONG_STATE)`` if the action is not allowed in this state."""
    if state in _ALLOWED.get(action, _STOPPED):
        return
    hint = f"Wait until it is stopped; see `gpupool workspace show {workspace.name}`."
    if state is WorkspaceState.IMPORTING:
        hint = f"Wait for the end of its import, or delete it: `gpupool workspace delete {workspace.name}`."
    if state in {WorkspaceState.STARTING, WorkspaceState.RUNNING}:
        hint = f"Stop it first: `gpupool workspace stop {workspace.name}`."
        if action is WorkspaceAction.START:
            hint = f"Use it: `gpupool shell {workspace.name}`; or stop it and start it with another size."
    raise GpupoolError(
        ErrorCode.WRONG_STATE, f"The workspace {workspace.name} is {state}; it must be stopped for '{action}'.", hint
    )


def begin(workspace: Workspace, task: WorkspaceTask) -> Workspace:
    """Return the workspace with a task that begins; the earlier failure is forgotten."""
    return replace(workspace, task=task, failure=None)


def complete(workspace: Workspace, task_id: str, disk_bytes: int | None, now: float) -> Workspace | None:
    """Return the workspace after its task has succeeded; None: it is deleted. A repeated report changes nothing."""
    task = workspace.task
    if task is None or task.id != task_id:
        return workspace
    if task.kind is TaskKind.DELETE:
        return None
    measured_at = workspace.measured_at if disk_bytes is None else now
    disk_bytes = workspace.disk_bytes if disk_bytes is None else disk_bytes
    done = replace(workspace, task=None, disk_bytes=disk_bytes, measured_at=measured_at)
    if task.kind is TaskKind.SNAPSHOT:
        return replace(done, snapshots=(*workspace.snapshots, Snapshot(task.snapshot, task.name, now)))
    if task.kind is TaskKind.DROP_SNAPSHOT:
        return replace(done, snapshots=tuple(each for each in workspace.snapshots if each.id != task.snapshot))
    return done


def fail(workspace: Workspace, task_id: str, error: GpupoolError) -> Workspace | None:
    """Return the workspace after its task has failed without an effect; None: it was never made."""
    task = workspace.task
    if task is None or task.id != task_id:
        return workspace
    if task.kind in MAKING:
        return None
    return replace(workspace, task=None, failure=TaskFailure(task.id, str(error.code), error.message, error.hint))


def check_disk(used_bytes: int, added_bytes: int, limit_mib: int | None, owner: str, command: str) -> None:
    """Raise ``GpupoolError(OVER_LIMIT)`` if workspaces would use more disk than ``limit_mib`` (None: no limit)."""
    if limit_mib is None or used_bytes + added_bytes <= limit_mib << 20:
        return
    more = f"; {format_bytes(added_bytes)} more would be over" if added_bytes else ", which is over"
    raise GpupoolError(
        ErrorCode.OVER_LIMIT,
        f"The workspaces of {owner} use {format_bytes(used_bytes)} of disk{more} the limit of "
        f"{format_bytes(limit_mib << 20)}.",
        f"Delete files, snapshots or workspaces. Administrators change the limit: `{command}`.",
    )


def format_bytes(size: int) -> str:
    """Return a size for people: ``0 B``, ``3.2 MiB``, ``12 GiB``."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 10 or units[0] == "B" else f"{value:.1f} {units[0]}"


def reservation_text(state: str | None) -> str:
    """Return the state of a reservation in a list, by the state of its lease; None: the lease was released."""
    return {None: "reservation released", "queued": "reservation waits"}.get(state, "reserved")
