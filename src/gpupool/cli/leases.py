"""The files that remember leases: what ``request_gpus`` writes and ``client`` and ``release_gpus`` read.

A lease file holds the lease's id and name. The last one of each shell is remembered, and the last one of the user for
everything else (scripts, other terminals).
"""

# pathlib takes longer to import than everything here takes to run:
# ruff: noqa: PTH100, PTH108, PTH123, PTH208

from __future__ import annotations

import json
import os

from gpupool.cli.settings import config_dir, write_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE_LIMIT_BYTES = 65_536


def lease_of(path: str | None) -> str:
    """The id of the lease in a file, or of the one remembered. Raises ``GpupoolError`` when there is none."""
    data = _read(path) if path else _remembered()
    return str(data["id"])


def remember(lease: dict[str, Any], path: str | None) -> str:
    """Write the lease's file and remember it for this shell and user; the file's path."""
    path = os.path.abspath(path) if path else f"{_folder()}/{lease['id']}.json"
    write_private(path, json.dumps({"id": lease["id"], "name": lease["name"]}) + "\n")
    for pointer in (_shell_pointer(), _user_pointer()):
        write_private(pointer, json.dumps({"id": lease["id"], "name": lease["name"], "file": path}) + "\n")
    return path


def forget(workload: str) -> None:
    """Remove the files of a lease that has been given back."""
    try:
        names = os.listdir(_folder())
    except OSError:
        return
    for name in names:
        path = f"{_folder()}/{name}"
        data = _load(path)
        if data is not None and data.get("id") == workload:
            _remove(str(data.get("file") or path), workload)
            _remove(path, workload)


def _remembered() -> dict[str, Any]:
    for pointer in (_shell_pointer(), _user_pointer()):
        if (data := _load(pointer)) is not None:
            return data
    raise _refused("There is no lease to use.", "Take one with 'gpupool request_gpus -n 1', or name its file with -f.")


def _read(path: str) -> dict[str, Any]:
    data = _load(path)
    if data is None:
        raise _refused(f"{path} is not a lease file.", "'gpupool request_gpus' prints the path of the one it writes.")
    return data


def _load(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(FILE_LIMIT_BYTES))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and isinstance(data.get("id"), str) else None


def _remove(path: str, workload: str) -> None:
    """Only ever a lease file of that lease."""
    data = _load(path)
    if data is not None and data["id"] == workload:
        try:
            os.unlink(path)
        except OSError:
            return


def _folder() -> str:
    return f"{config_dir()}/leases"


def _user_pointer() -> str:
    return f"{_folder()}/.last"


def _shell_pointer() -> str:
    """The calling shell: its process and when that was started, since process ids come again."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", "rb") as file:
            began = file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        began = "0"
    return f"{_folder()}/.shell-{parent}-{began}"


def _refused(sentence: str, hint: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_FILE, sentence, hint)
