"""Methods of the client for workspaces: named homes that are interactive sessions while started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gpupool.api.schemas.work.workspaces import SharedSnapshotView, WorkspaceList, WorkspaceView
from gpupool.client.administration import quote_segment, without_none
from gpupool.client.transport.connection import ApiCall, PoolConnection
from gpupool.client.workspace_archive import (
    ArchiveProgram,
    ProgramClient,
    description,
    new_workspace,
    read_header,
    readable,
    writable,
)
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.workspace import ENVIRONMENT_FILES

_POLL_S = 25.0

_FILE_KINDS = {".lock": "uv.lock", ".txt": "requirements.txt", ".yml": "conda.yml", ".yaml": "conda.yml"}

Gpus = int | Mapping[str, Any]


class Workspaces:
    """The methods of a client for workspaces. Every method raises ``GpupoolError``.

    ``ref`` is a workspace's name or id. ``gpus`` is a number of GPUs (0: none), or a mapping such as
    ``{"fraction": 0.25}``. Methods that copy files return when the copy is complete.
    """

    _connection: PoolConnection

    def workspaces(self) -> Sequence[WorkspaceView]:
        """Return one's own workspaces, and those that one manages."""
        return self._connection.ask(ApiCall("GET", "/v1/workspaces"), WorkspaceList).workspaces

    def workspace(self, ref: str) -> WorkspaceView:
        """Return a workspace."""
        return self._connection.ask(ApiCall("GET", _path(ref)), WorkspaceView)

    def create_workspace(  # noqa: PLR0913 - the fields of a workspace, by name
        self,
        name: str,
        gpus: Gpus | None = None,
        *,
        project: str | None = None,
        image: str | None = None,
        environment: str | None = None,
        node: str | None = None,
        reserved: bool = False,
    ) -> WorkspaceView:
        """Create a stopped workspace; ``reserved``: its GPUs stay with it while it is stopped.

        ``environment`` is a Python of the node (``python3.11``), or the path of a ``uv.lock`` (next to its
        ``pyproject.toml``), ``requirements.txt`` or ``conda.yml``: its first session makes an environment in the home.
        """
        body: dict[str, Any] = {"name": name, "project": project, "gpus": _gpus(gpus), "image": image, "node": node}
        body |= {"reserved": reserved or None}
        return self._changed("POST", "/v1/workspaces", body | environment_fields(environment or ""))

    def start_workspace(self, ref: str, gpus: Gpus | None = None, **limits: Any) -> WorkspaceView:
        """Queue the session of a workspace; ``limits``: ``wait``, ``max_time``, ``idle_timeout``, ``cpus``, ``memory``.

        ``session`` of the answer is the id of its workload.
        """
        return self._changed("POST", f"{_path(ref)}/start", {"gpus": _gpus(gpus), **limits})

    def stop_workspace(self, ref: str, *, force: bool = False) -> WorkspaceView:
        """Stop the session of a workspace; its files stay."""
        return self._changed("POST", f"{_path(ref)}/stop", {"force": force})

    def assign_gpus(self, ref: str, gpus: Gpus, *, reserved: bool = False) -> WorkspaceView:
        """Set the GPUs of the next start, reserved or not; the workspace must be stopped."""
        return self._changed("POST", f"{_path(ref)}/gpus", {"gpus": _gpus(gpus), "reserved": reserved or None})

    def export_workspace(self, ref: str, file: str | os.PathLike[str], *, force: bool = False) -> int:
        """Write the files of a stopped workspace to a .tar or .tar.gz file; return the number of bytes of the archive.

        The file gets its name when it is complete; ``force`` replaces an existing one.
        """
        workspace = self.workspace(ref)
        about = description(workspace.model_dump(mode="json"))
        with writable(os.fspath(file), force=force) as to:
            return ArchiveProgram(self._programs(), workspace.id, "export", about).write_to(to)

    def import_workspace(
        self, name: str, file: str | os.PathLike[str], *, node: str | None = None, project: str | None = None
    ) -> WorkspaceView:
        """Create a workspace of an archive. If its files cannot be read completely, no workspace remains."""
        with readable(os.fspath(file)) as source:
            first, about = read_header(source)
            made = self._changed("POST", "/v1/workspaces", new_workspace(name, node, project, about))
            try:
                ArchiveProgram(self._programs(), made.id, "import").read_from(first, source)
                return self._changed("POST", f"{_path(made.id)}/imported")
            except BaseException:
                self.delete_workspace(made.id)
                raise

    def _programs(self) -> ProgramClient:
        return cast("ProgramClient", self)

    def clone_workspace(
        self, ref: str, name: str, snapshot: str | None = None, *, user: str | None = None
    ) -> WorkspaceView:
        """Create a workspace with a copy of the files of another one, or of its snapshot.

        ``user`` is the owner of a shared snapshot, where several have a workspace of that name.
        """
        return self._changed("POST", f"{_path(ref)}/clone", {"name": name, "snapshot": snapshot, "user": user})

    def snapshot_workspace(self, ref: str, name: str) -> WorkspaceView:
        """Save a copy of the home under a name."""
        return self._changed("POST", f"{_path(ref)}/snapshots", {"name": name})

    def restore_workspace(self, ref: str, snapshot: str) -> WorkspaceView:
        """Replace the home by a copy of a snapshot; the present files are lost."""
        return self._changed("POST", f"{_path(ref)}/restore", {"name": snapshot})

    def share_snapshot(self, ref: str, snapshot: str, *, shared: bool = True) -> WorkspaceView:
        """Let all members of its project clone a snapshot, or no longer."""
        return self._changed("POST", f"{_path(ref)}/snapshots/{quote_segment(snapshot)}/share", {"shared": shared})

    def shared_snapshots(self) -> Sequence[SharedSnapshotView]:
        """Return the snapshots that other users share; clone one by the ``id`` of its workspace."""
        return self._connection.ask(ApiCall("GET", "/v1/workspaces"), WorkspaceList).shared

    def delete_snapshot(self, ref: str, snapshot: str) -> WorkspaceView:
        """Delete a snapshot."""
        return self._changed("DELETE", f"{_path(ref)}/snapshots/{quote_segment(snapshot)}")

    def delete_workspace(self, ref: str, *, forget: bool = False) -> None:
        """Delete a workspace with its files; ``forget``: its node is gone, and the files stay there."""
        workspace = self.workspace(ref)
        self._connection.send(ApiCall("DELETE", _path(workspace.id), params={"forget": forget}))
        try:
            while (task := self.workspace(workspace.id).task) is not None:
                self._wait(workspace.id, task.id)
        except GpupoolError as error:
            if error.code is not ErrorCode.UNKNOWN_WORKSPACE:
                raise

    def _changed(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> WorkspaceView:
        """Send a change, and wait until its files are complete."""
        call = ApiCall(method, path, json=None if body is None else without_none(body))
        view = self._connection.ask(call, WorkspaceView)
        while view.task is not None:
            view = self._wait(view.id, view.task.id)
        return view

    def _wait(self, workspace: str, task: str) -> WorkspaceView:
        call = ApiCall("GET", _path(workspace), params={"task": task, "timeout_s": _POLL_S})
        return self._connection.ask(call, WorkspaceView)


def environment_fields(environment: str) -> dict[str, Any]:
    """Return the fields of a request for a Python, or for the environment of a file. Raises ``GpupoolError``."""
    path = Path(environment).expanduser()
    kind = _FILE_KINDS.get(path.suffix)
    if kind is None:
        return {"environment": environment} if environment else {}
    files = {}
    try:
        files[kind] = path.read_text(encoding="utf-8")
        for name in ENVIRONMENT_FILES[kind]:
            if (neighbour := path.with_name(name)).is_file():
                files[name] = neighbour.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} cannot be read: {error}.", "Give a Python such as python:3.11, or a file."
        ) from error
    return {"environment": kind, "environment_files": files}


def _path(ref: str) -> str:
    return f"/v1/workspaces/{quote_segment(ref)}"


def _gpus(gpus: Gpus | None) -> Mapping[str, Any] | None:
    return {"count": gpus} if isinstance(gpus, int) else gpus
