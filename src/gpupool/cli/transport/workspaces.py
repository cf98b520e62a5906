"""Requests about workspaces whose files change, and the wait until they have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpupool.cli.output import notify
from gpupool.cli.transport.pool import PoolClient, quote_segment, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError

WAIT_S = 25.0


def workspace_path(name: str, verb: str = "") -> str:
    """Return the path of a workspace, or of an action on it."""
    return f"workspaces/{quote_segment(name)}" + (f"/{verb}" if verb else "")


@contextmanager
def known_workspace(pool: PoolClient, name: str) -> Iterator[None]:
    """Say that a name is that of a workload, which ``workspace submit`` makes, if there is no such workspace."""
    try:
        yield
    except GpupoolError as error:
        if error.code is not ErrorCode.UNKNOWN_WORKSPACE or not _is_workload(pool, name):
            raise
        raise GpupoolError(
            error.code,
            f"{name} is a workload, not a workspace.",
            f"Use 'gpupool describe {name}', 'gpupool stop {name}' and 'gpupool delete {name}'.",
        ) from error


def _is_workload(pool: PoolClient, name: str) -> bool:
    with suppress(GpupoolError):
        return bool(pool.get(workload_path(name)))
    return False


def change(pool: PoolClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a change, and return the workspace once its files are complete."""
    made: dict[str, Any] = pool.post(path, body)
    return made if not made["task"] else await_task(pool, made["id"]) or made


def await_task(pool: PoolClient, workspace: str) -> dict[str, Any] | None:
    """Wait until a workspace has no task; return it, or None if it does not exist. Raises the error of the task."""
    try:
        found: dict[str, Any] = pool.get(workspace_path(workspace))
        while found["task"]:
            query = {"task": found["task"]["id"], "timeout_s": WAIT_S}
            found = pool.get(workspace_path(workspace), query, timeout_s=WAIT_S + 10)
    except KeyboardInterrupt:
        notify(f"the change of the workspace continues; see 'gpupool workspace show {workspace}'")
        raise
    except GpupoolError as error:
        if error.code is not ErrorCode.UNKNOWN_WORKSPACE:
            raise
        return None
    return found


def stop_session(pool: PoolClient, name: str, *, force: bool = False) -> dict[str, Any]:
    """Stop the session of a workspace, wait a while for its end, and return the workspace."""
    with known_workspace(pool, name):
        found = pool.post(workspace_path(name, "stop"), {"force": force})
    if found["session"]:
        pool.get(workload_path(found["session"], "wait"), {"for": "finished", "timeout_s": WAIT_S}, WAIT_S + 10)
    stopped: dict[str, Any] = pool.get(workspace_path(found["id"]))
    return stopped


def delete(pool: PoolClient, workspace: str, *, forget: bool = False) -> None:
    """Delete a workspace and wait until its files are gone."""
    pool.delete(workspace_path(workspace) + ("?forget=true" if forget else ""))
    await_task(pool, workspace)
