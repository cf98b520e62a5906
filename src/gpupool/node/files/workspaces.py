"""One folder for each workload that came with files: made with its user's rights, used by all its programs here.

``<work>/<workload>/files`` is the user's; what is above it is the agent's, so that nobody can put anything in its
place. ``made.json`` beside it says that it is whole. A program that is run again finds what it left.
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

from gpupool.blobs.keep import BlobFolder
from gpupool.blobs.make import make
from gpupool.blobs.rights import Rights, account, call_as
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import is_workload_id
from gpupool.domain.jobfiles import FilesSpec
from gpupool.domain.supervision import ProcessSpec
from gpupool.domain.trees import MOST_MANIFEST_BYTES, Tree, check_digest, check_path, check_space, tree_from_bytes
from gpupool.node.files.environments import Environments, Wish, variables
from gpupool.node.paths import read_json, write_json

MAKING, MADE = "making", "made"
MOST_AT_ONCE = 8  # folders and environments being made
PATIENCE_S = 0.2  # small folders are made while the question waits
KEEP_S = 7 * 86400.0  # the folder of a workload of which nothing has run here for so long goes
LEAST_FREE_PART = 10  # where less than a tenth of the disk is free, it goes sooner
LEAST_IDLE_S = 3600.0
BLOB_LIFE_S = 7 * 86400.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made: for whom, of what."""

    files: FilesSpec
    uid: int | None
    env: dict[str, str]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Order:
        """Checked; raises ``GpupoolError``."""
        files = FilesSpec.from_dict(data["files"])
        check_space(files.space)
        check_digest(files.tree)
        if files.lock:
            check_path(files.lock)
        checked_workload(files.workload)
        return cls(files, _uid(data.get("uid")), dict(data.get("env") or {}))

    @property
    def said(self) -> dict[str, Any]:
        """What the mark of a whole folder says of it."""
        return {"files": asdict(self.files), "uid": self.uid}

    @property
    def workload(self) -> str:
        """Whose folder it is."""
        return self.files.workload


class Workspaces:
    """Makes, finds and removes the folders; ``shared``: programs run as users other than the agent's."""

    def __init__(self, root: Path, blobs: BlobFolder, *, shared: bool) -> None:
        self.root = root
        self.blobs = blobs
        self._shared = shared
        self.environments = Environments(root / "environments", shared=shared)
        self._tasks: dict[str, asyncio.Future[None]] = {}
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "files")  # what takes minutes must not hold up the rest

    async def make(self, order: Order) -> str:
        """MADE once the folder is whole; MAKING while somebody has to ask again. Raises ``GpupoolError``."""
        if self._is_made(order):
            return MADE
        task = self._tasks.get(order.workload)
        if task is None:
            loop = asyncio.get_running_loop()
            task = self._tasks[order.workload] = loop.run_in_executor(self._threads, self._make, order)
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
        if not done:
            return MAKING
        self._tasks.pop(order.workload, None)
        task.result()
        return MADE

    def _is_made(self, order: Order) -> bool:
        mark = self._mark(order.workload)
        said = read_json(mark)
        if said is None:
            return False
        if {name: said.get(name) for name in order.said} != order.said:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{order.workload} has other files here already.", "")
        with contextlib.suppress(OSError):
            os.utime(mark)
        return True

    def _make(self, order: Order) -> None:
        tree = self._tree(order.files)
        self.blobs.need_room(tree.total_bytes)
        folder = self.folder(order.workload)
        shutil.rmtree(folder.parent, ignore_errors=True)
        self._prepare(folder, order.uid)
        try:
            call_as(order.uid, lambda rights: self._fill(tree, folder, order, rights))
            said = order.said
            if order.files.lock:
                wish = Wish(order.files.lock, folder, tree, order.uid, order.env)
                said["venv"] = str(self.environments.make(wish, _login(order.uid, str(folder))))
            write_json(self._mark(order.workload), said, durable=False)
        except BaseException:
            shutil.rmtree(folder.parent, ignore_errors=True)
            raise

    def _tree(self, files: FilesSpec) -> Tree:
        try:
            return tree_from_bytes(self.blobs.read(files.space, files.tree, 0, MOST_MANIFEST_BYTES + 1))
        except FileNotFoundError as error:
            raise GpupoolError(ErrorCode.INVALID_FILE, "The list of files is not here.", "Submit it again.") from error

    def _prepare(self, folder: Path, uid: int | None) -> None:
        mode = 0o711 if self._shared else 0o700
        for made in (self.root, folder.parent):
            made.mkdir(mode=mode, parents=True, exist_ok=True)
            made.chmod(mode)
        folder.mkdir(mode=0o700)
        if uid is not None and uid != os.geteuid():
            os.chown(folder, uid, account(uid)[1])

    def _fill(self, tree: Tree, folder: Path, order: Order, rights: Rights) -> None:
        with rights.user():
            try:
                os.stat(folder / ".")  # noqa: PTH116 - whether the user may enter
            except PermissionError as error:
                raise GpupoolError(
                    ErrorCode.FORBIDDEN,
                    f"User {order.uid} cannot pass to {folder} on the node.",
                    "An administrator lets others pass through the folders above it (chmod o+x).",
                ) from error
        make(tree, folder, lambda sha256: self.blobs.open(order.files.space, sha256), rights)

    # -- use ---------------------------------------------------------------------------------------------------------

    def settle(self, spec: ProcessSpec) -> ProcessSpec:
        """The program as it is to be started: in its folder, and with what a login here gives where it brought nothing.

        Raises ``GpupoolError(WRONG_STATE)`` when the folder is not made.
        """
        if spec.files is None:
            return _at_home(spec)
        folder = self.folder(spec.files.workload)
        made = read_json(self._mark(spec.files.workload))
        if made is None:
            raise GpupoolError(ErrorCode.WRONG_STATE, "The program's files are not on the node.", "")
        cwd = folder / check_path(spec.cwd) if spec.cwd else folder
        login = {} if spec.container is not None else _login(spec.uid, str(folder))
        env = {**login, **spec.env, "GPUPOOL_FILES": str(folder), "PWD": str(cwd)}
        if made.get("venv"):
            env |= variables(Path(made["venv"]), env)
        return replace(spec, cwd=str(cwd), env=env)

    def folder(self, workload: str) -> Path:
        """Where a workload's files are."""
        return self.root / checked_workload(workload) / "files"

    def owner(self, workload: str) -> int | None:
        """As whom a workload's folder was made. Raises ``GpupoolError(NOT_FOUND)`` when there is none."""
        said = read_json(self._mark(checked_workload(workload)))
        if said is None:
            raise GpupoolError(
                ErrorCode.NOT_FOUND,
                "The node has no files of this work (any more).",
                "Only work that was sent with its folder has them, and they are kept for a week.",
            )
        return _uid(said.get("uid"))

    def _mark(self, workload: str) -> Path:
        return self.root / workload / "made.json"

    # -- letting go --------------------------------------------------------------------------------------------------

    def remove(self, workload: str) -> None:
        """Delete a workload's folder; links in it are deleted, not followed."""
        self._mark(checked_workload(workload)).unlink(missing_ok=True)
        shutil.rmtree(self.root / workload, ignore_errors=True)

    def prune(self, live: frozenset[str]) -> None:
        """Delete folders that nothing has used for long, or the oldest where room is short; and old blobs."""
        now = time.time()
        self.environments.prune({str((read_json(self._mark(workload)) or {}).get("venv")) for workload in live})
        for path, used_at in self._oldest_first():
            if path.name in live or path.name in self._tasks:
                with contextlib.suppress(OSError):
                    os.utime(self._mark(path.name))
            elif used_at < now - KEEP_S or (used_at < now - LEAST_IDLE_S and self._is_full()):
                self.remove(path.name)
        for space in self.blobs.spaces():
            for kept in sorted(self.blobs.blobs(space), key=lambda kept: kept.used_at):
                if kept.used_at < now - (LEAST_IDLE_S if self._is_full() else BLOB_LIFE_S):
                    self.blobs.drop(space, kept.sha256)
            self.blobs.drop_parts(space, now - LEAST_IDLE_S)

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
        return disk.free < disk.total // LEAST_FREE_PART


def checked_workload(workload: Any) -> str:
    """A workload's id, safe as the name of a folder; raises ``GpupoolError(INVALID_NAME)``."""
    if not isinstance(workload, str) or not is_workload_id(workload):
        raise GpupoolError(ErrorCode.INVALID_NAME, f"'{str(workload)[:80]}' does not name a workload.", "")
    return workload


def _uid(value: Any) -> int | None:
    if value is None:
        return None
    uid = int(value)
    own = os.geteuid()
    if uid < 0 or own not in {0, uid}:
        raise GpupoolError(ErrorCode.FORBIDDEN, f"This node makes files for user {own} only, not {uid}.", "")
    return uid


def _at_home(spec: ProcessSpec) -> ProcessSpec:
    """A program that came from elsewhere without a folder starts where a login here would."""
    if spec.container is not None or (spec.cwd and "PATH" in spec.env):
        return spec
    login = _login(spec.uid, "/")
    return replace(spec, cwd=spec.cwd or login["HOME"], env={**login, **spec.env})


def _login(uid: int | None, home: str) -> dict[str, str]:
    """What a program that came without the sender's machine finds anyway."""
    env = {"PATH": _PATH, "HOME": home}
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.geteuid() if uid is None else uid)
        env |= {"USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell or "/bin/sh"}
        if Path(user.pw_dir).is_dir():
            env["HOME"] = user.pw_dir
    return env
