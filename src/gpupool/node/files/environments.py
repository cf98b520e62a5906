"""Python environments made of a lock file: by their user, in a place of their own, once for each content.

Building runs code of whoever wrote the packages, so it happens as the work's user and is of no use to another. ``uv``
does it where the node has it, else ``venv`` and ``pip``; neither takes anything whose hash the file does not give.
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

from gpupool.blobs.rights import Rights, account, call_as
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import Tree, shown
from gpupool.node.paths import write_json

BUILD_S = 1800.0
KEEP_S = 30 * 86400.0
UV_LOCK = "uv.lock"
_BESIDE = ("pyproject.toml", ".python-version", "uv.toml")  # what uv reads beside its lock file
_PASSED_ON = ("UV_", "PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_SHOWN_LINES = 8
_SHOWN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Wish:
    """An environment: of which lock file in which folder, for whom, and the variables that say where packages are."""

    lock: str
    folder: Path
    tree: Tree
    uid: int | None
    env: Mapping[str, str]

    def key(self, tool: str) -> str:
        """The same for everything that makes the same environment."""
        beside = PurePosixPath(self.lock).parent
        wanted = {self.lock, *(str(beside / name) for name in _BESIDE)}
        parts = sorted((PurePosixPath(f.path).name, f.sha256) for f in self.tree.files if f.path in wanted)
        what = [parts, tool, platform.machine(), platform.python_version()]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:40]


class Environments:
    """Makes, finds and removes them below ``root``; the methods block."""

    def __init__(self, root: Path, *, shared: bool) -> None:
        self._root = root
        self._mode = 0o711 if shared else 0o700
        self._making: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def make(self, wish: Wish, login: Mapping[str, str]) -> Path:
        """The environment, made now or before. Raises ``GpupoolError(START_FAILED...)`` with what the tool said."""
        uv = _find_uv(wish.uid, login["PATH"])
        owner = self._root / str(os.geteuid() if wish.uid is None else wish.uid)
        place = owner / wish.key("uv" if uv else "pip")
        venv, mark = place / "venv", place / "made.json"
        with self._making[str(place)]:
            if mark.exists():
                os.utime(mark)
                return venv
            shutil.rmtree(place, ignore_errors=True)
            self._prepare(owner, place, wish.uid)
            try:
                for command in commands(wish, venv, uv):
                    self._run(command, wish, login, owner, place)
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

    def _run(self, command: list[str], wish: Wish, login: Mapping[str, str], owner: Path, place: Path) -> None:
        log, (uid, gid, groups) = place / "build.log", _identity(wish.uid)
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=wish.folder / PurePosixPath(wish.lock).parent,
                    env=_variables(wish, login, owner, place),
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
                raise _failed(wish, f"{command[0]} cannot be started: {error.strerror}") from error
            try:
                status = process.wait(BUILD_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise _failed(wish, f"it was not done in {BUILD_S / 60:.0f} minutes") from None
        if status != 0:
            raise _failed(wish, _last_lines(log))

    def prune(self, live: Collection[str], *, idle_s: float = KEEP_S) -> None:
        """Delete those that nothing has used for so long; ``live`` are the environments of what runs."""
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
    """The uv of the machine, or the one beside the pool's own Python, if the user may execute it."""
    found = shutil.which("uv", path=f"{path}:{os.environ.get('PATH', '')}:{Path(sys.executable).parent}")

    def may_execute(rights: Rights) -> bool:
        with rights.user(), contextlib.suppress(OSError):
            return bool(os.stat(str(found)).st_mode & 0o001) or uid is None  # noqa: PTH116 - it is text
        return False

    return found if found is not None and call_as(uid, may_execute) else None


def commands(wish: Wish, venv: Path, uv: str | None) -> list[list[str]]:
    """What makes the environment, one after another. Raises ``GpupoolError(UNSUPPORTED)``."""
    if PurePosixPath(wish.lock).name == UV_LOCK:
        if uv is None:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                f"The node has no uv, which {shown(wish.lock)} needs.",
                "Ask an administrator to install uv there, or export the lock: "
                "'uv export --format requirements-txt -o requirements.txt'.",
            )
        return [[uv, "sync", "--frozen", "--no-install-project", "--no-progress"]]
    name = PurePosixPath(wish.lock).name
    if uv is not None:
        python = str(venv / "bin/python")
        install = [uv, "pip", "install", "--no-progress", "--python", python, "--require-hashes", "-r", name]
        return [[uv, "venv", "--allow-existing", "--no-project", str(venv)], install]
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--no-input", "--require-hashes", "-r", name]
    return [["python3", "-m", "venv", str(venv)], pip]


def variables(venv: Path, env: Mapping[str, str]) -> dict[str, str]:
    """What a program that runs in an environment has more."""
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:{env.get('PATH', '')}"}


def _variables(wish: Wish, login: Mapping[str, str], owner: Path, place: Path) -> dict[str, str]:
    passed = {name: value for name, value in wish.env.items() if name.startswith(_PASSED_ON)}
    cache = {"UV_CACHE_DIR": str(owner / "cache"), "PIP_CACHE_DIR": str(owner / "cache")}
    return {**login, **passed, **cache, "UV_PROJECT_ENVIRONMENT": str(place / "venv")}


def _identity(uid: int | None) -> tuple[int | None, int | None, list[int] | None]:
    """User, group and further groups of the process that builds; None: as this one."""
    if uid is None or uid == os.geteuid():
        return None, None, None
    name, gid = account(uid)
    return uid, gid, os.getgrouplist(name, gid) if name else [gid]


def _last_lines(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_SHOWN_LINES:])


def _failed(wish: Wish, why: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_FILE,
        f"The environment of {shown(wish.lock)} could not be made: {why}",
        "Correct the file, or give index and proxy with -e UV_... or PIP_...",
    )
