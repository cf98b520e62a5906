"""The state machine of workspaces: which actions are allowed when, and what tasks leave behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.workload import WorkloadState
from gpupool.domain.work.workspace import (
    MAX_ENVIRONMENT_BYTES,
    EnvironmentFile,
    TaskKind,
    Workspace,
    WorkspaceAction,
    WorkspaceState,
    WorkspaceTask,
    begin,
    check_action,
    check_disk,
    check_environment,
    complete,
    fail,
    format_bytes,
    state_of,
)

BOB = Workspace("h0000000001", "bob", "ann", "default", "gpu1", GpuRequest(), created_at=1.0, used_at=1.0)
FULL = GpupoolError(ErrorCode.DISK_FULL, "The disk is full.", "Delete files.")
S, A = WorkspaceState, WorkspaceAction


def with_task(kind: TaskKind, **fields: str) -> Workspace:
    return begin(BOB, WorkspaceTask("h00000000t1", kind, **fields))


@pytest.mark.parametrize(
    ("session", "state"),
    [
        (None, S.STOPPED),
        (WorkloadState.QUEUED, S.STARTING),
        (WorkloadState.SUSPENDED, S.STARTING),
        (WorkloadState.RUNNING, S.RUNNING),
        (WorkloadState.STOPPING, S.STOPPING),
        (WorkloadState.FAILED, S.STOPPED),
        (WorkloadState.STOPPED, S.STOPPED),
    ],
)
def test_state_follows_the_session(session: WorkloadState | None, state: WorkspaceState) -> None:
    assert state_of(BOB, session) is state


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (TaskKind.CREATE, S.CREATING),
        (TaskKind.CLONE, S.CREATING),
        (TaskKind.SNAPSHOT, S.COPYING),
        (TaskKind.DROP_SNAPSHOT, S.COPYING),
        (TaskKind.RESTORE, S.COPYING),
        (TaskKind.DELETE, S.DELETING),
    ],
)
def test_task_decides_the_state(kind: TaskKind, state: WorkspaceState) -> None:
    assert state_of(with_task(kind), None) is state


def test_files_and_gpus_change_only_while_stopped() -> None:
    for action in A:
        allowed = {state for state in S if _is_allowed(state, action)}
        extra = {
            A.STOP: {S.STOPPED, S.STARTING, S.RUNNING, S.STOPPING, S.IMPORTING},
            A.DELETE: {S.STOPPED, S.DELETING, S.IMPORTING},
            A.IMPORT: {S.IMPORTING},
        }
        assert allowed == extra.get(action, {S.STOPPED}), action


def _is_allowed(state: WorkspaceState, action: WorkspaceAction) -> bool:
    try:
        check_action(BOB, state, action)
    except GpupoolError:
        return False
    return True


def test_refusal_names_workspace_state_and_next_step() -> None:
    with pytest.raises(GpupoolError, match="bob is running; it must be stopped for 'clone'") as caught:
        check_action(BOB, S.RUNNING, A.CLONE)
    assert caught.value.code is ErrorCode.WRONG_STATE
    assert "gpupool workspace stop bob" in caught.value.hint


def test_snapshot_is_known_only_after_its_task() -> None:
    made = with_task(TaskKind.SNAPSHOT, snapshot="h00000000s1", name="before")
    assert made.snapshots == ()
    done = complete(made, "h00000000t1", 4096, 9.0)
    assert done is not None
    assert (done.task, done.disk_bytes, done.measured_at) == (None, 4096, 9.0)
    assert done.snapshot("before") == done.snapshot("h00000000s1")
    dropped = begin(done, WorkspaceTask("h00000000t2", TaskKind.DROP_SNAPSHOT, snapshot="h00000000s1"))
    assert dropped.snapshots
    ended = complete(dropped, "h00000000t2", None, 10.0)
    assert ended is not None
    assert (ended.snapshots, ended.disk_bytes) == ((), 4096)
    with pytest.raises(GpupoolError, match="no snapshot 'before'"):
        ended.snapshot("before")


def test_reports_of_other_tasks_change_nothing() -> None:
    busy = with_task(TaskKind.RESTORE)
    for workspace in (BOB, busy):
        assert complete(workspace, "h00000000t9", 1, 9.0) == workspace
        assert fail(workspace, "h00000000t9", FULL) == workspace


@pytest.mark.parametrize("kind", list(TaskKind))
def test_failed_task_leaves_the_old_state(kind: TaskKind) -> None:
    left = fail(with_task(kind), "h00000000t1", FULL)
    if kind in {TaskKind.CREATE, TaskKind.CLONE}:
        assert left is None
        return
    assert left is not None
    assert left.failure is not None
    assert (left.failure.error().code, left.failure.error().message) == (ErrorCode.DISK_FULL, "The disk is full.")
    assert replace(left, failure=None) == BOB
    assert begin(left, WorkspaceTask("h00000000t2", kind)).failure is None


def test_deleted_workspace_is_gone() -> None:
    assert complete(with_task(TaskKind.DELETE), "h00000000t1", 0, 9.0) is None


def test_disk_limit_names_the_numbers() -> None:
    check_disk(10 << 20, 0, None, "ann", "")
    check_disk(5 << 20, 5 << 20, 10, "ann", "")
    with pytest.raises(GpupoolError) as caught:
        check_disk(6 << 20, 5 << 20, 10, "ann", "gpupool project set default")
    assert caught.value.code is ErrorCode.OVER_LIMIT
    assert "ann use 6.0 MiB of disk; 5.0 MiB more would be over the limit of 10 MiB" in caught.value.message


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (99 << 40, "99 TiB")])
def test_sizes_are_shown_in_units(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("environment", "names", "image", "wrong"),
    [
        ("", (), "lab:1", ""),
        ("python3.11", (), "", ""),
        ("uv.lock", ("uv.lock", "pyproject.toml"), "", ""),
        ("uv.lock", ("uv.lock", "pyproject.toml", "uv.toml", ".python-version"), "", ""),
        ("conda.yml", ("conda.yml",), "", ""),
        ("uv.lock", ("uv.lock",), "", "The environment uv.lock needs pyproject.toml."),
        ("requirements.txt", (), "", "The environment requirements.txt needs requirements.txt."),
        ("conda.yml", ("conda.yml", "uv.lock"), "", "The environment 'conda.yml' takes no file uv.lock."),
        ("python3.11", ("uv.lock",), "", "The environment 'python3.11' takes no file uv.lock."),
        ("python3.11", (), "lab:1", "An environment is made with programs of the node, not in a container image."),
    ],
)
def test_environment_has_the_files_that_its_tool_reads(
    environment: str, names: tuple[str, ...], image: str, wrong: str
) -> None:
    files = [EnvironmentFile(name, "") for name in names]
    if not wrong:
        check_environment(environment, files, image)
        return
    with pytest.raises(GpupoolError) as caught:
        check_environment(environment, files, image)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_REQUEST, wrong)


def test_files_of_an_environment_have_a_maximum_size() -> None:
    with pytest.raises(GpupoolError, match=r"larger than 1\.0 MiB"):
        check_environment("conda.yml", [EnvironmentFile("conda.yml", "x" * (MAX_ENVIRONMENT_BYTES + 1))], "")
