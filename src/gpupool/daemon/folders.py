"""The folders of a pool: created with the right owner and mode, or refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path

from gpupool.client.discovery import POOL_LOCK as POOL_LOCK  # noqa: PLC0414 - one of the files of a folder
from gpupool.client.discovery import STATE_FILE
from gpupool.daemon.config import CONFIG_FILE, PoolConfig, PoolKind
from gpupool.domain.errors import ErrorCode, GpupoolError

PRIVATE = 0o700
STATE_MODE = {PoolKind.USER: PRIVATE, PoolKind.SYSTEM: 0o711}  # users need to reach the folders of their work
RUN_MODE = {PoolKind.USER: 0o700, PoolKind.SYSTEM: 0o755}
LOG_DIR = "log"
NODE_DIR = "node"
DATABASE = "pool.db"
FILES_DIR = "files"  # uploaded with work
START_LOCK = "start.lock"
CONTROL_PLANE_LOCK = "control-plane.lock"
CHILD_LOCKS = (f"{NODE_DIR}/agent.lock", CONTROL_PLANE_LOCK)
_PROBE_BYTES = 4096


def prepare_folders(config: PoolConfig) -> None:
    """Create the state and run folders and check that they are writable.

    Raises ``GpupoolError`` (POOL_START_FAILED) with the folder and the reason.
    """
    state, run = Path(config.state_dir), Path(config.run_dir)
    _own_folder(state, STATE_MODE[config.kind], POOL_LOCK, DATABASE)
    for folder in (state / LOG_DIR, state / NODE_DIR):
        _own_folder(folder, PRIVATE)
    _own_folder(run, RUN_MODE[config.kind], STATE_FILE)
    _check_space(state)


def log_path(state_dir: str, process: str) -> Path:
    """Return the log of one of the pool's processes: ``supervisor``, ``agent`` or ``control-plane``."""
    return Path(state_dir) / LOG_DIR / f"{process}.log"


def folder_error(folder: Path, error: OSError) -> GpupoolError:
    """Return the error of a folder of the pool, with a remedy for the usual causes."""
    return GpupoolError(
        ErrorCode.POOL_START_FAILED,
        f"The pool cannot use the folder {folder}: {error.strerror or error}.",
        "Free space on its disk or make it yours and writable, or choose another folder with GPUPOOL_STATE_DIR; "
        "'gpupool doctor' checks it.",
    )


def _own_folder(folder: Path, mode: int, *markers: str) -> None:
    try:
        _make(folder, mode)
        found = folder.stat()
        if found.st_uid != os.geteuid():
            raise _not_ours(folder, f"belongs to another user (uid {found.st_uid})")
        if found.st_mode & 0o7777 == mode:
            return
        names = {entry.name for entry in folder.iterdir()} - {CONFIG_FILE}
        if markers and names and names.isdisjoint(markers):
            raise _not_ours(folder, "is in use for something else")  # never change the mode of a home or of /tmp
        folder.chmod(mode)
    except OSError as error:
        raise folder_error(folder, error) from error


def _make(folder: Path, mode: int) -> None:
    """Create it with exactly this mode from the start: another process may be starting the same pool."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0)
    try:
        folder.mkdir(mode=mode, exist_ok=True)
    finally:
        os.umask(before)


def _check_space(state: Path) -> None:
    probe = state / f".probe.{os.getpid()}"
    try:
        probe.write_bytes(b"\0" * _PROBE_BYTES)
    except OSError as error:
        raise folder_error(state, error) from error
    finally:
        probe.unlink(missing_ok=True)


def _not_ours(folder: Path, why: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.POOL_START_FAILED,
        f"The folder {folder} {why}.",
        "Choose another folder with GPUPOOL_STATE_DIR and GPUPOOL_RUN_DIR.",
    )
