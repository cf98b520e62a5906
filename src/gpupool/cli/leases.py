"""Find the lease that ``client``, ``release-gpus`` and ``extend`` use, and manage lease files.

A lease file holds the lease's id and name. Two pointer files name the last lease of a shell and of the user. They only
choose among several leases: the pool says which leases the caller holds now.
"""

# pathlib takes longer to import than this module takes to run:
# ruff: noqa: PTH100, PTH108, PTH123, PTH208

from __future__ import annotations

import json
import os

from gpupool.cli.settings import config_dir, write_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool.cli.transport.local import PoolTransport

MAX_LEASES = 1000
MAX_FILE_BYTES = 65_536


def find_lease(transport: PoolTransport, path: str | None) -> str:
    """Return the id of the lease in a file, or of the caller's current lease (see ``_current``).

    Raises ``GpupoolError``: INVALID_FILE, UNKNOWN_WORKLOAD when the caller holds no lease, and errors of the pool.
    """
    if path:
        return str(_read(path)["id"])
    return _current(_held_leases(transport))


def save_lease(lease: dict[str, Any], path: str | None) -> str:
    """Write the lease's file, make it the last lease of this shell and user, and return the file's path."""
    path = os.path.abspath(path) if path else f"{_folder()}/{lease['id']}.json"
    write_private(path, json.dumps({"id": lease["id"], "name": lease["name"]}) + "\n")
    for pointer in (_shell_pointer(), _user_pointer()):
        write_private(pointer, json.dumps({"id": lease["id"], "name": lease["name"], "file": path}) + "\n")
    return path


def delete_lease_files(workload: str) -> None:
    """Delete the files of a released lease."""
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


def _held_leases(transport: PoolTransport) -> list[dict[str, Any]]:
    """Return the caller's leases that hold GPUs now, newest first."""
    try:
        answer = transport.call("GET", f"/v1/workloads?kind=lease&mine=true&state=running&limit={MAX_LEASES}")
    except OSError as error:
        from gpupool.cli.errors import connection_error

        raise connection_error(error) from error
    if not answer.ok:
        from gpupool.client.transport.http import error_of_answer

        raise error_of_answer(answer)
    return [lease for lease in answer.body["workloads"] if lease["kind"] == "lease"]


def _current(held: list[dict[str, Any]]) -> str:
    """Choose this shell's last lease, else the user's last one, else the newest.

    Print the choice if it is not the last.
    """
    remembered = [data for pointer in (_shell_pointer(), _user_pointer()) if (data := _load(pointer)) is not None]
    by_id = {lease["id"]: lease for lease in held}
    for data in remembered:
        if data["id"] in by_id:
            return str(data["id"])
    if not held:
        from gpupool.domain.errors import ErrorCode, GpupoolError

        hint = "Request one with 'gpupool request-gpus -n 1', or give its file with -f."
        raise GpupoolError(ErrorCode.UNKNOWN_WORKLOAD, "You have no lease.", hint)
    from gpupool.cli.terminal import say

    say(f"using {held[0]['name']}, the newest of your {len(held)} leases" if held[1:] else f"using {held[0]['name']}")
    return str(held[0]["id"])


def _read(path: str) -> dict[str, Any]:
    data = _load(path)
    if data is None:
        raise _invalid_file(f"{path} is not a lease file.", "'gpupool request-gpus' prints the path of its lease file.")
    return data


def _load(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and isinstance(data.get("id"), str) else None


def _remove(path: str, workload: str) -> None:
    """Delete a file if it is a lease file of that lease."""
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
    """Return the pointer file of the calling shell, named by its pid and start time because pids are reused."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", "rb") as file:
            started = file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        started = "0"
    return f"{_folder()}/.shell-{parent}-{started}"


def _invalid_file(sentence: str, hint: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_FILE, sentence, hint)
