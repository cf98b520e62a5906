"""Folders of running kernels: what a later Jupyter Server needs to take a kernel over.

Each kernel has a folder with its connection file (which has its keys), its sockets, ``kernel.json``, and a lock. The
process that manages the kernel holds the lock, and the operating system releases it when that process ends in any way.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpupool.jupyter.kernel_spec import jupyter_data_folder
from gpupool.unix_sockets import PATH_LIMIT

MAX_RECORD_BYTES = 64 * 1024
_INFO, _LOCK, _CONNECTION = "kernel.json", "lock", "connection.json"
_LONGEST_SOCKET_NAME = len("/k-65535")
_PLAIN = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(slots=True)
class KernelRecord:
    """A stored kernel, without its keys. ``server`` is the root folder of its Jupyter Server.

    ``node_folder``: the folder of its sockets on its node, if its channels are tunnelled.
    """

    kernel_id: str
    kernel_name: str
    pool: str
    workload: str = ""
    server: str = ""
    notebook: str = ""
    workdir: str = ""
    sockets: str = ""
    node_folder: str = ""
    sizes: dict[str, str] = field(default_factory=dict)


class KernelFolder:
    """The folder of one kernel, locked by this process until ``close``."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @property
    def connection_file(self) -> Path:
        """Return the path of the connection file."""
        return self.path / _CONNECTION

    def write(self, record: KernelRecord) -> None:
        """Store the record, readable by this user only."""
        temporary = self.path / f".{_INFO}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(record), file)
        temporary.replace(self.path / _INFO)

    def socket_prefix(self) -> tuple[str, str]:
        """Return the prefix of socket paths, and the separate folder if this one's path is too long for sockets."""
        folder, separate = os.fspath(self.path), ""
        if len(os.fsencode(folder)) + _LONGEST_SOCKET_NAME > PATH_LIMIT:
            folder = separate = tempfile.mkdtemp(prefix="gpupool-kernel-")  # mode 0700
        return f"{folder}/k", separate

    def remove(self, record: KernelRecord) -> None:
        """Delete the folder and the sockets, and release the lock."""
        if record.sockets:
            shutil.rmtree(record.sockets, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def create_folder(kernel_id: str) -> KernelFolder | None:
    """Create and lock the folder of a new kernel; None if another process manages a kernel of this id."""
    path = _records_folder() / _folder_name(kernel_id)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _locked(path)


def abandoned_kernels() -> Iterator[tuple[KernelFolder, KernelRecord]]:
    """Yield kernels whose process has ended, each locked for the caller, who must close or remove its folder."""
    for path in sorted(_records_folder().glob("*")):
        folder = _locked(path)
        if folder is None:
            continue
        record = _read(path)
        if record is None:
            folder.close()
        else:
            yield folder, record


def _records_folder() -> Path:
    return jupyter_data_folder() / "gpupool" / "kernels"


def _folder_name(kernel_id: str) -> str:
    """Return a safe name: kernel ids can come from HTTP requests."""
    return kernel_id if _PLAIN.fullmatch(kernel_id) else hashlib.sha256(kernel_id.encode()).hexdigest()[:36]


def _locked(path: Path) -> KernelFolder | None:
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = os.stat(path / _LOCK).st_ino == os.fstat(descriptor).st_ino  # noqa: PTH116 - compared with fstat
    except OSError:
        current = False
    if not current:  # managed by another process, or deleted by it a moment ago
        os.close(descriptor)
        return None
    return KernelFolder(path, descriptor)


def _read(path: Path) -> KernelRecord | None:
    try:
        with (path / _INFO).open("rb") as file:
            fields: Any = json.loads(file.read(MAX_RECORD_BYTES))
        return KernelRecord(**fields)
    except (OSError, ValueError, TypeError):
        return None
