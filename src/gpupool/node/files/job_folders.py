"""Job folders: one per workload with files, created with its user's rights, shared by its programs here.

``<work>/<workload>/files`` belongs to the user. Its parent belongs to the agent, so that no user can replace it.
``made.json`` next to it marks a complete folder. A retried program finds the files that it left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpupool.blobs.blob_store import BlobFolder
from gpupool.blobs.materialize import make
from gpupool.blobs.run_as_user import UserRights, account, call_as
from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import is_workload_id
from gpupool.domain.work.program.file_tree import (
    MAX_MANIFEST_BYTES,
    FilesSpec,
    FileTree,
    check_digest,
    check_path,
    check_space,
    tree_from_bytes,
)
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.files.environments import EnvironmentRequest, Environments, variables
from gpupool.node.host.paths import read_json, write_json

MAKING, MADE = "making", "made"
MAX_CONCURRENT_BUILDS = 8  # folders and environments being created
ANSWER_DELAY_S = 0.2  # small folders are complete before the first answer
MAX_IDLE_S = 7 * 86400.0  # unused folders are deleted after this time
MIN_FREE_DIVISOR = 10  # on a disk with less than a tenth free, earlier
MIN_IDLE_S = 3600.0
MAX_BLOB_IDLE_S = 7 * 86400.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class JobFolderRequest:
    """A request for a job folder: its files, user and environment."""

    files: FilesSpec
    uid: int | None
    env: dict[str, str]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> JobFolderRequest:
        """Parse and check a request; raise ``GpupoolError`` if invalid."""
        files = decode(FilesSpec, data["files"])
        check_space(files.space)
        check_digest(files.tree)
        if files.lock:
            check_path(files.lock)
        checked_workload(files.workload)
        return cls(files, _uid(data.get("uid")), dict(data.get("env") or {}))

    @property
    def said(self) -> dict[str, Any]:
        """Return the content of the mark file."""
        return {"files": asdict(self.files), "uid": self.uid}

    @property
    def workload(self) -> str:
        """Return the id of the workload."""
        return self.files.workload


class JobFolders:
    """Creates, finds and deletes the folders; ``shared``: programs run as users other than the agent's."""

    def __init__(self, root: Path, blobs: BlobFolder, *, shared: bool) -> None:
        self.root = root
        self.blobs = blobs
        self._shared = shared
        self.environments = Environments(root / "environments", shared=shared)
        self._tasks: dict[str, asyncio.Future[None]] = {}
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_BUILDS, "files")  # long builds must not block other requests

    async def make(self, request: JobFolderRequest) -> str:
        """Return MADE if the folder is complete, or MAKING if the caller has to ask again. Raises ``GpupoolError``."""
        if self._is_made(request):
            return MADE
        task = self._tasks.get(request.workload)
        if task is None:
            loop = asyncio.get_running_loop()
            task = self._tasks[request.workload] = loop.run_in_executor(self._threads, self._make, request)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_DELAY_S)
        if not done:
            return MAKING
        self._tasks.pop(request.workload, None)
        task.result()
        return MADE

    def _is_made(self, request: JobFolderRequest) -> bool:
        mark = self._mark(request.workload)
        said = read_json(mark)
        if said is None:
            return False
        if {name: said.get(name) for name in request.said} != request.said:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{request.workload} already has different files on the node.", ""
            )
        with contextlib.suppress(OSError):
            os.utime(mark)
        return True

    def _make(self, request: JobFolderRequest) -> None:
        tree = self._tree(request.files)
        self.blobs.need_room(tree.total_bytes)
        folder = self.folder(request.workload)
        shutil.rmtree(folder.parent, ignore_errors=True)
        self._prepare(folder, request.uid)
        try:
            call_as(request.uid, lambda rights: self._fill(tree, folder, request, rights))
            said = request.said
            if request.files.lock:
                environment = EnvironmentRequest(request.files.lock, folder, tree, request.uid, request.env)
                said["venv"] = str(self.environments.make(environment, login_variables(request.uid, str(folder))))
            write_json(self._mark(request.workload), said, durable=False)
        except BaseException:
            shutil.rmtree(folder.parent, ignore_errors=True)
            raise

    def _tree(self, files: FilesSpec) -> FileTree:
        try:
            return tree_from_bytes(self.blobs.read(files.space, files.tree, 0, MAX_MANIFEST_BYTES + 1))
        except FileNotFoundError as error:
            raise GpupoolError(
                ErrorCode.INVALID_FILE, "The list of files is not on the node.", "Submit it again."
            ) from error

    def _prepare(self, folder: Path, uid: int | None) -> None:
        mode = 0o711 if self._shared else 0o700
        for made in (self.root, folder.parent):
            made.mkdir(mode=mode, parents=True, exist_ok=True)
            made.chmod(mode)
        folder.mkdir(mode=0o700)
        if uid is not None and uid != os.geteuid():
            os.chown(folder, uid, account(uid)[1])

    def _fill(self, tree: FileTree, folder: Path, request: JobFolderRequest, rights: UserRights) -> None:
        with rights.user():
            try:
                os.stat(folder / ".")  # noqa: PTH116 - checks if the user may enter
            except PermissionError as error:
                raise GpupoolError(
                    ErrorCode.FORBIDDEN,
                    f"User {request.uid} cannot enter {folder} on the node.",
                    "Ask an administrator to allow access to the parent folders (chmod o+x).",
                ) from error
        make(tree, folder, lambda sha256: self.blobs.open(request.files.space, sha256), rights)

    # -- use ---------------------------------------------------------------------------------------------------------

    def settle(self, spec: ProcessSpec, *, has_login: bool) -> ProcessSpec:
        """Return the spec with its working directory and, where absent, the variables of a login.

        ``has_login``: the runner provides the variables.
        Raises ``GpupoolError(WRONG_STATE)`` if the folder does not exist.
        """
        if spec.files is None:
            return spec if has_login else _with_login(spec)
        folder = self.folder(spec.files.workload)
        made = read_json(self._mark(spec.files.workload))
        if made is None:
            raise GpupoolError(ErrorCode.WRONG_STATE, "The program's files are not on the node.", "")
        cwd = folder / check_path(spec.cwd) if spec.cwd else folder
        login = {} if has_login else login_variables(spec.uid, str(folder))
        env = {**login, **spec.env, "GPUPOOL_FILES": str(folder), "PWD": str(cwd)}
        if made.get("venv"):
            env |= variables(Path(made["venv"]), env)
        return replace(spec, cwd=str(cwd), env=env)

    def folder(self, workload: str) -> Path:
        """Return the folder with a workload's files."""
        return self.root / checked_workload(workload) / "files"

    def owner(self, workload: str) -> int | None:
        """Return the user for whom a folder was created. Raises ``GpupoolError(NOT_FOUND)``."""
        said = read_json(self._mark(checked_workload(workload)))
        if said is None:
            raise GpupoolError(
                ErrorCode.NOT_FOUND,
                "The node has no files of this workload.",
                "Only workloads submitted with a folder have files; they are kept for a week.",
            )
        return _uid(said.get("uid"))

    def _mark(self, workload: str) -> Path:
        return self.root / workload / "made.json"

    # -- deletion ----------------------------------------------------------------------------------------------------

    def remove(self, workload: str) -> None:
        """Delete a workload's folder; links in it are deleted, not followed."""
        self._mark(checked_workload(workload)).unlink(missing_ok=True)
        shutil.rmtree(self.root / workload, ignore_errors=True)

    def prune(self, live: frozenset[str]) -> None:
        """Delete folders and blobs that were not used for long; on a full disk, the oldest ones earlier."""
        now = time.time()
        self.environments.prune({str((read_json(self._mark(workload)) or {}).get("venv")) for workload in live})
        for path, used_at in self._oldest_first():
            if path.name in live or path.name in self._tasks:
                with contextlib.suppress(OSError):
                    os.utime(self._mark(path.name))
            elif used_at < now - MAX_IDLE_S or (used_at < now - MIN_IDLE_S and self._is_full()):
                self.remove(path.name)
        for space in self.blobs.spaces():
            for kept in sorted(self.blobs.blobs(space), key=lambda kept: kept.used_at):
                if kept.used_at < now - (MIN_IDLE_S if self._is_full() else MAX_BLOB_IDLE_S):
                    self.blobs.drop(space, kept.sha256)
            self.blobs.drop_parts(space, now - MIN_IDLE_S)

    def _oldest_first(self) -> list[tuple[Path, float]]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.root.iterdir():
                if is_workload_id(path.name):
                    mark = self._mark(path.name)
                    found.append((path, (mark if mark.exists() else path).stat().st_mtime))
        return sorted(found, key=lambda entry: entry[1])

    def _is_full(self) -> bool:
        disk = shutil.disk_usage(self.root if self.root.exists() else self.root.parent)
        return disk.free < disk.total // MIN_FREE_DIVISOR


def checked_workload(workload: Any) -> str:
    """Return a valid workload id, safe as a folder name; raise ``GpupoolError(INVALID_NAME)``."""
    if not isinstance(workload, str) or not is_workload_id(workload):
        raise GpupoolError(ErrorCode.INVALID_NAME, f"'{str(workload)[:80]}' does not name a workload.", "")
    return workload


def _uid(value: Any) -> int | None:
    if value is None:
        return None
    uid = int(value)
    own = os.geteuid()
    if uid < 0 or own not in {0, uid}:
        raise GpupoolError(ErrorCode.FORBIDDEN, f"This node creates files for user {own} only, not {uid}.", "")
    return uid


def _with_login(spec: ProcessSpec) -> ProcessSpec:
    """Return the spec with a login's folder and variables, for remote programs without files."""
    if spec.cwd and "PATH" in spec.env:
        return spec
    login = login_variables(spec.uid, "/")
    return replace(spec, cwd=spec.cwd or login["HOME"], env={**login, **spec.env})


def login_variables(uid: int | None, home: str) -> dict[str, str]:
    """Return the variables of a login."""
    env = {"PATH": _PATH, "HOME": home}
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.geteuid() if uid is None else uid)
        env |= {"USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell or "/bin/sh"}
        if Path(user.pw_dir).is_dir():
            env["HOME"] = user.pw_dir
    return env
