"""Python environments made from lock files: one per user and content.

A build runs code from the package authors, so it runs as the job's user, and other users do not get the result. ``uv``
builds it if the node has it, else ``venv`` and ``pip``. Both accept only packages whose hash is in the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpupool.blobs.run_as_user import UserRights, account, call_as
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import FileTree, printable_path
from gpupool.node.host.paths import write_json
from gpupool.node.host.priority import make_ordinary

BUILD_TIMEOUT_S = 1800.0
MAX_IDLE_S = 30 * 86400.0
UV_LOCK = "uv.lock"
_UV_FILES = ("pyproject.toml", ".python-version", "uv.toml")  # files that uv reads next to its lock file
_PASSED_ON = ("UV_", "PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_SHOWN_LINES = 8
_SHOWN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """A requested environment: lock file, folder, user, and variables for package indexes."""

    lock: str
    folder: Path
    tree: FileTree
    uid: int | None
    env: Mapping[str, str]

    def key(self, tool: str) -> str:
        """Return a key that is equal for equal environments."""
        parent = PurePosixPath(self.lock).parent
        wanted = {self.lock, *(str(parent / name) for name in _UV_FILES)}
        parts = sorted((PurePosixPath(f.path).name, f.sha256) for f in self.tree.files if f.path in wanted)
        what = [parts, tool, platform.machine(), platform.python_version()]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:40]


class Environments:
    """Creates, finds and deletes environments below ``root``; the methods block."""

    def __init__(self, root: Path, *, shared: bool) -> None:
        self._root = root
        self._mode = 0o711 if shared else 0o700
        self._making: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def make(self, request: EnvironmentRequest, login: Mapping[str, str]) -> Path:
        """Return the environment, created now or earlier. Raises ``GpupoolError`` with the tool's output."""
        uv = _find_uv(request.uid, login["PATH"])
        owner = self._root / str(os.geteuid() if request.uid is None else request.uid)
        place = owner / request.key("uv" if uv else "pip")
        venv, mark = place / "venv", place / "made.json"
        with self._making[str(place)]:
            if mark.exists():
                os.utime(mark)
                return venv
            shutil.rmtree(place, ignore_errors=True)
            self._prepare(owner, place, request.uid)
            try:
                for command in commands(request, venv, uv):
                    self._run(command, request, login, owner, place)
                write_json(mark, {"made_at": time.time()}, durable=False)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
        return venv

    def _prepare(self, owner: Path, place: Path, uid: int | None) -> None:
        for folder in (self._root, owner, place):
            folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
            folder.chmod(self._mode)
        for folder in (owner / "cache", place / "venv"):
            folder.mkdir(mode=0o700, exist_ok=True)
            if uid is not None and uid != os.geteuid():
                os.chown(folder, uid, account(uid)[1])

    def _run(
        self, command: list[str], request: EnvironmentRequest, login: Mapping[str, str], owner: Path, place: Path
    ) -> None:
        log, (uid, gid, groups) = place / "build.log", _identity(request.uid)
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=request.folder / PurePosixPath(request.lock).parent,
                    env=_variables(request, login, owner, place),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=0o077,
                    user=uid,
                    group=gid,
                    extra_groups=groups,
                )
            except OSError as error:
                raise _failed(request, f"{command[0]} cannot be started: {error.strerror}") from error
            make_ordinary(process.pid)
            try:
                status = process.wait(BUILD_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise _failed(request, f"it timed out after {BUILD_TIMEOUT_S / 60:.0f} minutes") from None
        if status != 0:
            raise _failed(request, _last_lines(log))

    def prune(self, live: Collection[str], *, idle_s: float = MAX_IDLE_S) -> None:
        """Delete environments that were not used for ``idle_s``; ``live`` are those of running programs."""
        if not self._root.exists():
            return
        for owner in self._root.iterdir():
            for place in owner.iterdir():
                mark = place / "made.json"
                if str(place / "venv") in live:
                    os.utime(mark)
                elif mark.exists() and mark.stat().st_mtime < time.time() - idle_s:
                    mark.unlink()
                    shutil.rmtree(place, ignore_errors=True)


def _find_uv(uid: int | None, path: str) -> str | None:
    """Return the machine's uv, or the one next to the pool's Python, if the user may execute it."""
    found = shutil.which("uv", path=f"{path}:{os.environ.get('PATH', '')}:{Path(sys.executable).parent}")

    def may_execute(rights: UserRights) -> bool:
        with rights.user(), contextlib.suppress(OSError):
            return bool(os.stat(str(found)).st_mode & 0o001) or uid is None  # noqa: PTH116 - it is a string
        return False

    return found if found is not None and call_as(uid, may_execute) else None


def commands(request: EnvironmentRequest, venv: Path, uv: str | None) -> list[list[str]]:
    """Return the commands that create the environment, in order. Raises ``GpupoolError(ENVIRONMENT_FAILED)``."""
    if PurePosixPath(request.lock).name == UV_LOCK:
        if uv is None:
            raise GpupoolError(
                ErrorCode.ENVIRONMENT_FAILED,
                f"The node has no uv, which {printable_path(request.lock)} needs.",
                "Ask an administrator to install uv on the node, or export the lock file: "
                "'uv export --format requirements-txt -o requirements.txt'.",
            )
        return [[uv, "sync", "--frozen", "--no-install-project", "--no-progress"]]
    name = PurePosixPath(request.lock).name
    if uv is not None:
        python = str(venv / "bin/python")
        install = [uv, "pip", "install", "--no-progress", "--python", python, "--require-hashes", "-r", name]
        return [[uv, "venv", "--allow-existing", "--no-project", str(venv)], install]
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--no-input", "--require-hashes", "-r", name]
    return [["python3", "-m", "venv", str(venv)], pip]


def variables(venv: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program needs to run in an environment."""
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:{env.get('PATH', '')}"}


def _variables(request: EnvironmentRequest, login: Mapping[str, str], owner: Path, place: Path) -> dict[str, str]:
    passed = {name: value for name, value in request.env.items() if name.startswith(_PASSED_ON)}
    cache = {"UV_CACHE_DIR": str(owner / "cache"), "PIP_CACHE_DIR": str(owner / "cache")}
    return {**login, **passed, **cache, "UV_PROJECT_ENVIRONMENT": str(place / "venv")}


def _identity(uid: int | None) -> tuple[int | None, int | None, list[int] | None]:
    """Return user, group and supplementary groups of the build process; None: as this process."""
    if uid is None or uid == os.geteuid():
        return None, None, None
    name, gid = account(uid)
    return uid, gid, os.getgrouplist(name, gid) if name else [gid]


def _last_lines(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_SHOWN_LINES:])


def _failed(request: EnvironmentRequest, why: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.ENVIRONMENT_FAILED,
        f"The environment of {printable_path(request.lock)} could not be created: {why}",
        "Correct the file, or set index and proxy with -e UV_... or PIP_...",
    )
