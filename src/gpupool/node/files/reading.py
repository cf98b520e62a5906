"""Read access to a job folder with its user's rights; programs may change it at the same time."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpupool.blobs.blob_store import BlobFolder
from gpupool.blobs.run_as_user import UserRights, call_as
from gpupool.blobs.safe_open import folder_at, open_below
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import check_path, printable_path
from gpupool.node.files.job_folders import JobFolderRequest, JobFolders

MAX_ROWS = 1_000
MAX_READ_BYTES = 1 << 20

Row = list[Any]  # path, kind, size, time of change in seconds, permission bits, a link's target
MAX_BLOBS = 20_000
NAMES = frozenset({"blob_missing", "blob_put", "tree_make", "tree_list", "tree_read"})

Params = dict[str, Any]


def listing(folder: Path, path: str, uid: int | None, after: str) -> list[Row]:
    """List ``path`` (empty: the root) and everything below it, after a path, at most ``MAX_ROWS`` rows.

    Raises ``GpupoolError(NOT_FOUND)`` if ``path`` does not exist.
    """
    if path:
        check_path(path)
    return call_as(uid, lambda rights: _listing(str(folder), path, after, rights))


def _listing(root: str, path: str, after: str, rights: UserRights) -> list[Row]:
    found: list[Row] = []
    with rights.user():
        try:
            itself = [_row(root, path)] if path else []
        except OSError as error:
            raise _missing(path, error) from error
        if itself and (itself[0][1] != "folder"):
            return itself if after < path else []
        for row in _below(root, path, after.split("/") if after else []):
            found.append(row)
            if len(found) == MAX_ROWS:
                break
    return found


def _below(root: str, path: str, after: list[str]) -> Iterator[Row]:
    """Yield everything below a folder, sorted by path components, without paths up to ``after``."""
    try:
        with folder_at(root, path) as fd:
            names = sorted(os.listdir(fd))  # noqa: PTH208 - of a descriptor
    except OSError:
        return  # it was deleted, or its user closed it
    for name in names:
        below = f"{path}/{name}" if path else name
        parts = below.split("/")
        if parts <= after and parts != after[: len(parts)]:
            continue
        try:
            row = _row(root, below)
        except OSError:
            continue
        if parts > after:
            yield row
        if row[1] == "folder":
            yield from _below(root, below, after)


def _row(root: str, path: str) -> Row:
    above, _, name = path.rpartition("/")
    with folder_at(root, above) as fd:
        about = os.stat(name, dir_fd=fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(about.st_mode) else ""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(about.st_mode), "special")
    return [path, kind, about.st_size if kind == "file" else 0, about.st_mtime, about.st_mode & 0o777, target]


def read(folder: Path, path: str, uid: int | None, offset: int, limit: int) -> bytes:
    """Return bytes of a file; empty at its end. Raises ``GpupoolError``: NOT_FOUND, INVALID_REQUEST if not a file."""
    check_path(path)
    return call_as(uid, lambda rights: _read(str(folder), path, offset, min(max(0, limit), MAX_READ_BYTES), rights))


def _read(root: str, path: str, offset: int, limit: int, rights: UserRights) -> bytes:
    with rights.user():
        try:
            fd = open_below(root, path, os.O_RDONLY)
        except OSError as error:
            raise _missing(path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise GpupoolError(
                    ErrorCode.INVALID_REQUEST, f"'{printable_path(path)}' is not a file.", "Give the path of a file."
                )
            return os.pread(fd, limit, max(0, offset))
        finally:
            os.close(fd)


def _missing(path: str, error: OSError) -> GpupoolError:
    if isinstance(error, PermissionError):
        return GpupoolError(
            ErrorCode.FORBIDDEN, f"'{printable_path(path)}' is not readable for the workload's user.", ""
        )
    return GpupoolError(
        ErrorCode.NOT_FOUND,
        f"There is no '{printable_path(path)}' in the job folder.",
        "List the folder: gpupool fetch NAME --list.",
    )


class FileMethods:
    """The methods ``blob_*`` and ``tree_*`` of ``services.ports.files.FilesLink``."""

    job_folders: JobFolders
    blobs: BlobFolder

    def __init__(self, job_folders: JobFolders) -> None:
        self.job_folders = job_folders
        self.blobs = job_folders.blobs

    async def blob_missing(self, params: Params) -> Any:
        """Return the bytes held of each blob, -1 for none: ``space``, ``blobs`` ([digest, size], ...)."""
        rows = [(str(sha256), int(size)) for sha256, size in params["blobs"][:MAX_BLOBS]]
        space = str(params["space"])
        return await asyncio.to_thread(lambda: [self.blobs.have(space, sha256, size) for sha256, size in rows])

    async def blob_put(self, params: Params) -> Any:
        """Write pieces, return the bytes held: ``space``, ``pieces`` ([digest, size, offset, base64], ...)."""
        return await asyncio.to_thread(self._put, str(params["space"]), params["pieces"])

    def _put(self, space: str, pieces: list[list[Any]]) -> list[int]:
        return [
            self.blobs.write(space, str(sha256), int(size), int(offset), base64.b64decode(data))
            for sha256, size, offset, data in pieces
        ]

    async def tree_make(self, params: Params) -> Any:
        """Create a job folder: ``files``, ``uid``, ``env`` -> making or made."""
        return await self.job_folders.make(JobFolderRequest.from_dict(params))

    async def tree_list(self, params: Params) -> Any:
        """List files: ``workload``, ``path``, ``after`` -> rows of ``listing``."""
        folder, uid = self._place(params)
        return await asyncio.to_thread(listing, folder, str(params.get("path", "")), uid, str(params.get("after", "")))

    async def tree_read(self, params: Params) -> Any:
        """Read a file: ``workload``, ``path``, ``offset``, ``limit`` -> base64."""
        folder, uid = self._place(params)
        data = await asyncio.to_thread(
            read, folder, str(params["path"]), uid, int(params["offset"]), int(params["limit"])
        )
        return base64.b64encode(data).decode()

    def _place(self, params: Params) -> tuple[Any, int | None]:
        """Return the folder and its recorded owner; a user in the request is ignored."""
        workload = params["workload"]
        return self.job_folders.folder(workload), self.job_folders.owner(workload)
