"""Homes of workspaces on a node: made, copied, restored, measured and deleted; each change is atomic.

``<workspaces>/<id>/home`` belongs to the user, ``<workspaces>/<id>/snapshots/<id>`` are copies of it. The folders above
belong to the agent, so that no user can replace them. A copy is made under a name in ``partial`` and then renamed. A
restore renames the home to ``replaced`` and the copy to ``home``; ``recover`` undoes the first if the second is
missing. So a kill or a full disk at any step leaves the old or the new files, and ``recover`` deletes what remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpupool.blobs.run_as_user import UserRights, account, call_as
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import is_workspace_id
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.domain.work.workspace import ENVIRONMENT_FILES, TaskKind, format_bytes
from gpupool.node.files.environments import variables
from gpupool.node.files.job_folders import login_variables
from gpupool.node.files.workspace_archive import GIVE_BACK, OWN_NAMESPACE
from gpupool.node.files.workspace_session import FILES as ENVIRONMENT_FOLDER
from gpupool.node.files.workspace_session import FOLDER as ENVIRONMENT
from gpupool.node.files.workspace_session import INCOMPLETE
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import read_json, write_json
from gpupool.node.ports import ImageLayers

NAMES = frozenset({"home_task", "home_usage"})
MAX_CONCURRENT_TASKS = 4
ANSWER_DELAY_S = 0.2  # small changes are complete before the first answer
MIN_FREE_DIVISOR = 32  # a copy leaves this part of the disk free
KNOWN_FILES = {*ENVIRONMENT_FILES, *(name for also in ENVIRONMENT_FILES.values() for name in also)}
_ERROR_LINES = 3
_libc = ctypes.CDLL(None, use_errno=True)

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HomeTask:
    """A checked request for a change; see ``domain.work.workspace.WorkspaceTask``."""

    id: str
    kind: TaskKind
    workspace: str
    uid: int | None = None
    source: str = ""
    snapshot: str = ""
    files: tuple[tuple[str, str], ...] = ()  # name and text

    @classmethod
    def from_dict(cls, data: Params) -> HomeTask:
        """Parse a request; raise ``GpupoolError`` if it is invalid."""
        source, snapshot = str(data.get("source") or ""), str(data.get("snapshot") or "")
        names = [data["id"], data["workspace"], *filter(None, (source, snapshot))]
        for name in names:
            checked_id(name)
        uid = None if data.get("uid") is None else int(data["uid"])
        files = tuple((str(name), str(text)) for name, text in data.get("files") or ())
        if unknown := {name for name, _ in files} - KNOWN_FILES:
            raise GpupoolError(ErrorCode.INVALID_NAME, f"Not files of an environment: {sorted(unknown)}.", "")
        return cls(data["id"], TaskKind(data["kind"]), data["workspace"], uid, source, snapshot, files)


@dataclass(frozen=True, slots=True)
class HomeFolder:
    """The folder of one workspace."""

    path: Path

    @property
    def about(self) -> Path:
        """Return the file with the owner, written before the folder gets its name."""
        return self.path / "about.json"

    @property
    def home(self) -> Path:
        """Return the home."""
        return self.path / "home"

    @property
    def replaced(self) -> Path:
        """Return the place of the old home during a restore."""
        return self.path / "replaced"

    def snapshot(self, snapshot: str) -> Path:
        """Return a copy of the home."""
        return self.path / "snapshots" / snapshot

    def files(self, snapshot: str) -> Path:
        """Return a snapshot, or the home."""
        return self.snapshot(snapshot) if snapshot else self.home

    def partial(self) -> Path:
        """Return a new place for a copy that is being made."""
        return self.path / "partial" / secrets.token_hex(8)

    def uid(self) -> int | None:
        """Return the owner. Raises ``GpupoolError(NOT_FOUND)`` without a home."""
        about = read_json(self.about)
        if about is None:
            raise GpupoolError(
                ErrorCode.NOT_FOUND,
                "The home of the workspace is not on the node.",
                f"An administrator can look for it in {self.path.parent} on the node.",
            )
        uid: int | None = about["uid"]
        return uid

    def used_bytes(self) -> int:
        """Return the bytes of disk that home and snapshots use; files with several names count once in each."""
        uid, places = self.uid(), [self.home]
        with contextlib.suppress(FileNotFoundError):
            places += sorted(self.snapshot("").iterdir())
        return sum(disk_usage(place, uid) for place in places)


class Homes:
    """The homes below ``root``. ``shared``: programs run as users other than the agent's.

    ``layers`` are copied with the homes: they have what sessions in containers changed outside of the home.
    """

    def __init__(self, root: Path, in_use: Callable[[], Collection[str]], layers: ImageLayers, *, shared: bool) -> None:
        self.root = root
        self._in_use = in_use
        self._layers = layers
        self._mode = 0o711 if shared else 0o700
        self._tasks: dict[str, tuple[HomeTask, asyncio.Future[int]]] = {}
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_TASKS, "homes")

    # -- start of the agent ------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Complete or undo what an earlier agent left, and move its remains to the trash."""
        for path in self._folders():
            self._recover(HomeFolder(path))

    def _recover(self, folder: HomeFolder) -> None:
        if folder.replaced.exists():
            if folder.home.exists():
                self._discard(folder.replaced)
            else:
                folder.replaced.rename(folder.home)
                log_event("home restored", workspace=folder.path.name)
        if (folder.path / "partial").exists():
            self._discard(folder.path / "partial")

    def empty_trash(self) -> None:
        """Delete discarded files, and partial homes that no task makes."""
        making = {task.workspace for task, _ in list(self._tasks.values())}
        for place in ("trash", "new"):
            with contextlib.suppress(FileNotFoundError):
                for path in sorted((self.root / place).iterdir()):
                    if place == "trash" or path.name.partition(".")[0] not in making:
                        remove_tree(path)

    def _folders(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            yield from (path for path in sorted(self.root.iterdir()) if is_workspace_id(path.name))

    # -- use ---------------------------------------------------------------------------------------------------------

    def folder(self, workspace: str) -> HomeFolder:
        """Return the folder of a workspace."""
        return HomeFolder(self.root / checked_id(workspace))

    def settle(self, spec: ProcessSpec, *, has_login: bool) -> ProcessSpec:
        """Return the spec of a program that runs in a home, with its folder and variables.

        Raises ``GpupoolError``: NOT_FOUND without the home, FORBIDDEN for another user, WRONG_STATE during a task.
        """
        folder = self.folder(spec.workspace)
        if folder.uid() != spec.uid:
            raise GpupoolError(ErrorCode.FORBIDDEN, "The home of the workspace belongs to another user.", "")
        if any(task.workspace == spec.workspace for task, _ in self._tasks.values()) or not folder.home.is_dir():
            raise GpupoolError(ErrorCode.WRONG_STATE, "The home of the workspace is being copied.", "Try again.")
        home = str(folder.home)
        login = {} if has_login else login_variables(spec.uid, home)
        env = {**login, **spec.env, "HOME": home, "GPUPOOL_WORKSPACE_HOME": home}
        if not has_login:
            env["PATH"] = f"{home}/.local/bin:{env['PATH']}"
            if (venv := folder.home / ENVIRONMENT).is_dir() and not (folder.home / INCOMPLETE).exists():
                env |= variables(venv, env)
        cwd = str(folder.home / spec.cwd)  # an absolute path replaces the home
        return replace(spec, cwd=cwd, env=env | {"PWD": cwd})

    async def usage(self, workspace: str) -> int:
        """Return the bytes of disk that home and snapshots use. Raises ``GpupoolError(NOT_FOUND)``."""
        return await asyncio.to_thread(self._used_bytes, self.folder(workspace))

    def _used_bytes(self, folder: HomeFolder) -> int:
        return folder.used_bytes() + self._layers.used_bytes(folder.path.name)

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def perform(self, task: HomeTask) -> int | None:
        """Return the bytes used once a task is complete, None while it runs: the caller asks again.

        A task that is complete is complete again at once. Raises ``GpupoolError``: WRONG_STATE if a program uses the
        home, DISK_FULL, NOT_FOUND.
        """
        known = self._tasks.get(task.id)
        if known is None:
            self._check_unused(task)
            future = asyncio.get_running_loop().run_in_executor(self._threads, self._perform, task)
            known = self._tasks[task.id] = (task, future)
        done, _ = await asyncio.wait({known[1]}, timeout=ANSWER_DELAY_S)
        if not done:
            return None
        self._tasks.pop(task.id, None)
        return known[1].result()

    def _check_unused(self, task: HomeTask) -> None:
        """Raise WRONG_STATE if a program runs in a home that the task reads or changes, or another task does."""
        changed = {task.workspace} if task.kind is not TaskKind.DROP_SNAPSHOT else set[str]()
        read = {task.source} if task.source and not task.snapshot else set[str]()
        if (changed | read) & set(self._in_use()):
            raise GpupoolError(
                ErrorCode.WRONG_STATE, "A program still runs in the home of the workspace.", "Stop it first."
            )
        if any(task.workspace == other.workspace for other, _ in self._tasks.values()):
            raise GpupoolError(ErrorCode.WRONG_STATE, "The home of the workspace is being changed.", "Try again.")

    def _perform(self, task: HomeTask) -> int:
        folder = self.folder(task.workspace)
        try:
            match task.kind:
                case TaskKind.CREATE:
                    self._create(folder, task, None)
                case TaskKind.CLONE:
                    self._create(folder, task, self.folder(task.source))
                case TaskKind.SNAPSHOT:
                    self._snapshot(folder, task.snapshot)
                case TaskKind.DROP_SNAPSHOT:
                    self._layers.drop(task.workspace, task.snapshot)
                    self._discard(folder.snapshot(task.snapshot))
                case TaskKind.RESTORE:
                    self._restore(folder, task.snapshot)
                case TaskKind.DELETE:
                    self._layers.delete(task.workspace)
                    self._discard(folder.path)
            return self._used_bytes(folder) if folder.about.exists() else 0
        except OSError as error:
            raise self._failed(error.strerror or repr(error), error.errno) from error
        finally:
            self.empty_trash()

    def _create(self, folder: HomeFolder, task: HomeTask, source: HomeFolder | None) -> None:
        if folder.about.exists():
            return
        _check_user(task.uid)
        new = HomeFolder(self.root / "new" / f"{task.workspace}.{secrets.token_hex(8)}")
        for made in (self.root, new.path.parent, new.path):
            self._make_folder(made)
        try:
            if source is None:
                _make_private(new.home, task.uid)
                _write_files(new.home / ENVIRONMENT_FOLDER, task.files, task.uid)
            else:
                self._copy(source.files(task.snapshot), new.home, source.uid(), task.uid)
                _sync(new.path)
                self._layers.clone(task.source, task.snapshot, task.workspace)
            write_json(new.about, {"uid": task.uid}, durable=True)
            new.path.rename(folder.path)
            _sync_folder(self.root)
        except BaseException:
            remove_tree(new.path)
            raise

    def _make_folder(self, path: Path) -> None:
        """Make a folder of the agent that users can pass through in a shared pool, also with a strict umask."""
        path.mkdir(mode=self._mode, parents=True, exist_ok=True)
        path.chmod(self._mode)

    def _snapshot(self, folder: HomeFolder, snapshot: str) -> None:
        target = folder.snapshot(snapshot)
        if target.exists():
            return
        self._recover(folder)
        partial = self._copied(folder, folder.home)
        self._layers.snapshot(folder.path.name, snapshot)
        self._make_folder(target.parent)
        partial.rename(target)
        _sync_folder(target.parent)

    def _restore(self, folder: HomeFolder, snapshot: str) -> None:
        self._recover(folder)
        source = folder.snapshot(snapshot)
        if not source.is_dir():
            raise GpupoolError(ErrorCode.NOT_FOUND, "The snapshot is not on the node.", "Restore another one.")
        partial = self._copied(folder, source)
        self._layers.restore(folder.path.name, snapshot)
        folder.home.rename(folder.replaced)
        partial.rename(folder.home)
        _sync_folder(folder.path)
        self._discard(folder.replaced)

    def _copied(self, folder: HomeFolder, source: Path) -> Path:
        """Return a complete copy of a folder of the workspace, in ``partial``."""
        partial, uid = folder.partial(), folder.uid()
        self._make_folder(partial.parent)
        try:
            self._copy(source, partial, uid, uid)
            _sync(partial)
        except BaseException:
            remove_tree(partial)
            raise
        return partial

    def _copy(self, source: Path, target: Path, reader: int | None, writer: int | None) -> None:
        """Copy a folder with the rights of its users; share the blocks of files where the file system can."""
        if not source.is_dir():
            raise GpupoolError(ErrorCode.NOT_FOUND, "The files to copy are not on the node.", "")
        _make_private(target, writer)
        if not self._shares_blocks():
            self._need_room(disk_usage(source, reader))
        if reader == writer:
            self._copy_as_one_user(["cp", "--archive", "--reflink=auto", "--", f"{source}/.", str(target)], writer)
            return
        pack = _start(["tar", "--create", "--directory", str(source), "."], reader, stdout=subprocess.PIPE)
        command = ["tar", "--extract", "--no-same-owner", "--same-permissions", "--directory", str(target)]
        unpack = _start(command, writer, stdin=pack.stdout)
        if pack.stdout is not None:
            pack.stdout.close()  # so that it ends if the other one does
        self._finish([unpack, pack])

    def _copy_as_one_user(self, command: list[str], uid: int | None) -> None:
        """Run a copying program, with the rights of all users of rootless containers if it needs them."""
        try:
            self._finish([_start(command, uid)])
        except GpupoolError as error:
            if error.code is not ErrorCode.FORBIDDEN or os.geteuid() == 0:
                raise
            try:
                self._finish([_start([*OWN_NAMESPACE, *command], uid)])
            except GpupoolError as again:
                raise (again if again.code is ErrorCode.DISK_FULL else error) from None

    def _finish(self, processes: list[subprocess.Popen[bytes]]) -> None:
        outputs = [process.communicate()[1] for process in processes]
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode:
                lines = output.decode(errors="replace").strip().splitlines()[-_ERROR_LINES:]
                signs = {
                    "No space left": errno.ENOSPC,
                    "quota exceeded": errno.EDQUOT,
                    "Permission denied": errno.EACCES,
                }
                number = next((number for sign, number in signs.items() if any(sign in line for line in lines)), None)
                raise self._failed(" | ".join(lines) or f"status {process.returncode}", number)

    def _shares_blocks(self) -> bool:
        """Return whether the file system copies files without a copy of their blocks."""
        probe = self.root / f"probe-{secrets.token_hex(8)}"
        probe.mkdir(mode=0o700)
        try:
            (probe / "one").write_bytes(b"1" * 4096)
            command = ["cp", "--reflink=always", "--", str(probe / "one"), str(probe / "two")]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        finally:
            remove_tree(probe)

    def _need_room(self, size: int) -> None:
        disk = shutil.disk_usage(self.root)
        room = max(0, disk.free - disk.total // MIN_FREE_DIVISOR)
        if size > room:
            raise GpupoolError(
                ErrorCode.DISK_FULL,
                f"The copy needs {format_bytes(size)}; {format_bytes(room)} of {format_bytes(disk.total)} are free for "
                "workspaces on the node. Nothing was changed.",
                "Delete files, snapshots or workspaces on this node.",
            )

    def _failed(self, why: str, number: int | None) -> GpupoolError:
        code, hint = ErrorCode.INTERNAL, ""
        if number in {errno.ENOSPC, errno.EDQUOT}:
            code, hint = ErrorCode.DISK_FULL, "Delete files, snapshots or workspaces on this node."
        elif number == errno.EACCES:
            code, hint = ErrorCode.FORBIDDEN, f"Some files belong to another user. {GIVE_BACK}"
        return GpupoolError(code, f"The node could not change the home: {why}. Its files are unchanged.", hint)

    def _discard(self, path: Path) -> None:
        """Move a folder to the trash; do nothing if it does not exist."""
        trash = self.root / "trash"
        trash.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.rename(trash / f"{path.name}.{secrets.token_hex(8)}")


class HomeMethods:
    """The methods ``home_*`` of ``services.ports.files.FilesLink``."""

    def __init__(self, homes: Homes) -> None:
        self._homes = homes

    async def home_task(self, params: Params) -> Any:
        """Perform a task: the fields of ``HomeTask`` -> the bytes used, or null while it runs."""
        return await self._homes.perform(HomeTask.from_dict(params))

    async def home_usage(self, params: Params) -> Any:
        """Return the bytes used: ``workspace`` -> bytes."""
        return await self._homes.usage(params["workspace"])


def checked_id(text: Any) -> str:
    """Return a valid id, safe as a folder name; raise ``GpupoolError(INVALID_NAME)``."""
    if not isinstance(text, str) or not is_workspace_id(text):
        raise GpupoolError(ErrorCode.INVALID_NAME, f"'{str(text)[:80]}' does not name a workspace.", "")
    return text


def disk_usage(folder: Path, uid: int | None) -> int:
    """Return the bytes of disk that a folder uses; a file with several names counts once, links are not followed."""
    total, complete = call_as(uid, lambda rights: _disk_usage(folder, rights))
    if complete or os.geteuid() == 0:
        return total
    words = [*OWN_NAMESPACE, "du", "--summarize", "--block-size=1", "--", str(folder)]
    measured = subprocess.run(words, capture_output=True, check=False).stdout.partition(b"\t")[0]
    return max(total, int(measured)) if measured.isdigit() else total


def _disk_usage(folder: Path, rights: UserRights) -> tuple[int, bool]:
    """Return the bytes, and whether all folders could be read: not those of other users of a rootless container."""
    seen: set[tuple[int, int]] = set()
    closed: list[OSError] = []
    total = 0
    with rights.user():
        for _, folders, files, fd in os.fwalk(folder, follow_symlinks=False, onerror=closed.append):
            for name in (*folders, *files):
                with contextlib.suppress(OSError):
                    entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISDIR(entry.st_mode) or entry.st_nlink == 1:
                        total += entry.st_blocks * 512
                    elif (entry.st_dev, entry.st_ino) not in seen:
                        seen.add((entry.st_dev, entry.st_ino))
                        total += entry.st_blocks * 512
    return total, not any(isinstance(error, PermissionError) for error in closed)


def remove_tree(path: Path) -> None:
    """Delete a folder, also with subfolders that their owner has closed; links are deleted, not followed."""
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    path.chmod(0o700)
    for _, folders, _, fd in os.fwalk(path, follow_symlinks=False):
        for name in folders:
            with contextlib.suppress(PermissionError):  # of another user of a container
                if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    os.chmod(name, 0o700, dir_fd=fd)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists() and os.geteuid() != 0:
        subprocess.run([*OWN_NAMESPACE, "rm", "-rf", "--", str(path)], capture_output=True, check=False)


def _make_private(folder: Path, uid: int | None) -> None:
    folder.mkdir(mode=0o700)
    if uid is not None and uid != os.geteuid():
        os.chown(folder, uid, account(uid)[1])


def _write_files(folder: Path, files: Sequence[tuple[str, str]], uid: int | None) -> None:
    """Write the files of an environment as the user; no folder without files."""

    def write(rights: UserRights) -> None:
        with rights.user():
            folder.mkdir(mode=0o700)
            for name, text in files:
                (folder / name).write_text(text, encoding="utf-8")

    if files:
        call_as(uid, write)


def _start(command: list[str], uid: int | None, **streams: Any) -> subprocess.Popen[bytes]:
    """Start a copying program as the user, with its error output in a pipe."""
    identity: dict[str, Any] = {}
    if uid is not None and uid != os.geteuid():
        name, gid = account(uid)
        identity = {"user": uid, "group": gid, "extra_groups": os.getgrouplist(name, gid) if name else [gid]}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams}
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    return subprocess.Popen(
        command, cwd="/", env=environment, stderr=subprocess.PIPE, umask=0o077, **streams, **identity
    )


def _check_user(uid: int | None) -> None:
    if uid is not None and os.geteuid() not in {0, uid}:
        raise GpupoolError(ErrorCode.FORBIDDEN, f"This node makes files for user {os.geteuid()} only, not {uid}.", "")


def _sync(folder: Path) -> None:
    """Write the file system of a folder to the disk, so that a rename never precedes the data. Raises ``OSError``."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
