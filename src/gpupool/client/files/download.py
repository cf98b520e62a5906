"""Download files of a workload's folder. Downloads follow no links and can be resumed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gpupool.blobs.blob_store import convert_disk_full
from gpupool.blobs.safe_open import folder_at
from gpupool.blobs.scan import leads_out
from gpupool.client.files.upload import ANSWER_TIMEOUT_S, RETRY_TIMEOUT_S, HttpTransport
from gpupool.client.transport.http import error_of_answer, with_query
from gpupool.client.transport.requests import open_response, read_answer
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import check_path, printable_path

PAUSE_S = 0.5
_TEMPORARY = {ErrorCode.POOL_UNREACHABLE, ErrorCode.NODE_UNREACHABLE}
_PIECE_BYTES = 1 << 18
_SAME_S = 1e-3  # times are sent in seconds
_PART = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class FetchResult:
    """The downloaded files, their bytes, the unchanged files, and the skipped files with reasons."""

    files: list[str] = field(default_factory=list)
    bytes: int = 0
    same: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """The folder of a workload, on the node of one of its replicas."""

    transport: HttpTransport
    ref: str
    index: int = 0

    def listing(self, path: str = "") -> Iterator[dict[str, Any]]:
        """Yield all entries below a path, as the API lists them. Raises ``GpupoolError``."""
        cursor: str | None = ""
        while cursor is not None:
            page = json.loads(self._get("files", {"path": path, "cursor": cursor}).read())
            yield from page["files"]
            cursor = page["next_cursor"]

    def content(self, path: str, offset: int) -> http.client.HTTPResponse:
        """Return a file's bytes from an offset on. Raises ``GpupoolError``, ``OSError``."""
        return self._get("files/content", {"path": path, "offset": offset})

    def _get(self, what: str, query: dict[str, Any]) -> http.client.HTTPResponse:
        target = with_query(f"/v1/workloads/{quote(self.ref, safe='')}/{what}", query | {"index": self.index})
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self.transport.connection(ANSWER_TIMEOUT_S)
            response = open_response(connection, "GET", target, headers=self.transport.headers)
            answer = None if response.status == http.client.OK else read_answer(response)
        except OSError as error:
            if connection is not None:
                connection.close()
            raise ConnectionError(str(error)) from error
        if answer is not None:
            connection.close()
            raise error_of_answer(answer)
        return response


def fetch(
    work: WorkFolder, paths: Sequence[str], into: str, *, force: bool = False, tell: Callable[[str], None] | None = None
) -> FetchResult:
    """Download files, folders and links into a folder, each to the same relative path.

    Local files that are equal are skipped; those that differ too, unless ``force``. Raises ``GpupoolError``.
    """
    os.makedirs(into, exist_ok=True)  # noqa: PTH103 - the callees take text
    done = FetchResult()
    for path in paths or [""]:
        for row in _list_with_retry(lambda path=path: list(work.listing(path))):  # type: ignore[misc]  # a default in a lambda
            _fetch_one(work, row, into, done, force=force)
            if tell is not None:
                tell(f"{len(done.files)} files")
    return done


def _fetch_one(work: WorkFolder, row: dict[str, Any], into: str, done: FetchResult, *, force: bool) -> None:
    path = check_path(row["path"])
    above, _, name = path.rpartition("/")
    try:
        with convert_disk_full("this machine's disk"), folder_at(into, above, make=True) as folder:
            if row["kind"] == "folder":
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o777, dir_fd=folder)
            elif row["kind"] == "link":
                _fetch_link(row, folder, name, done, force=force)
            elif row["kind"] == "file":
                _fetch_file(work, row, folder, name, done, force=force)
            else:
                done.left[path] = "it is neither a file nor a folder"
    except GpupoolError as error:
        if error.code not in {ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN}:
            raise
        done.left[path] = error.message
    except OSError as error:
        done.left[path] = f"it cannot be written: {error.strerror}"


def _fetch_link(row: dict[str, Any], folder: int, name: str, done: FetchResult, *, force: bool) -> None:
    path, target = row["path"], row["target"]
    if leads_out(path, target):
        done.left[path] = f"it links outside the folder, to {printable_path(target)}"
        return
    with contextlib.suppress(OSError):
        if os.readlink(name, dir_fd=folder) == target:
            done.same.append(path)
            return
    if force:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    os.symlink(target, name, dir_fd=folder)
    done.files.append(path)


def _fetch_file(
    work: WorkFolder, row: dict[str, Any], folder: int, name: str, done: FetchResult, *, force: bool
) -> None:
    here = _stat(folder, name)
    if here is not None:
        regular = stat.S_ISREG(here.st_mode)
        if regular and here.st_size == row["size"] and abs(here.st_mtime - row["mtime"]) < _SAME_S:
            done.same.append(row["path"])
            return
        if not force:
            done.left[row["path"]] = "the local file differs (--force replaces it)"
            return
    part = f".{name[:180]}.{row['size']}-{int(row['mtime'] * 1000)}.part"
    fd = os.open(part, _PART, 0o600, dir_fd=folder)
    try:
        done.bytes += _fill(work, row, fd)
        umask = os.umask(0o077)
        os.umask(umask)
        os.fchmod(fd, row["mode"] & ~umask)
        os.utime(fd, (row["mtime"], row["mtime"]))
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(fd)
    done.files.append(row["path"])


def _fill(work: WorkFolder, row: dict[str, Any], fd: int) -> int:
    """Download from the present end of the file up to the listed size, and return the number of bytes received."""
    size = int(row["size"])
    os.ftruncate(fd, min(os.fstat(fd).st_size, size))
    began = at = os.fstat(fd).st_size
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    while at < size:
        cut_off = _read_on(work, row, fd, at)
        here = os.fstat(fd).st_size
        if here > at:
            deadline = time.monotonic() + RETRY_TIMEOUT_S
        elif cut_off is None:
            break  # the file became shorter
        elif time.monotonic() > deadline:
            raise _unreachable(cut_off) from cut_off
        else:
            time.sleep(PAUSE_S)
        at = here
    return at - began


def _read_on(work: WorkFolder, row: dict[str, Any], fd: int, at: int) -> Exception | None:
    """Read until the end, or return the error that cut it off."""
    try:
        with contextlib.closing(work.content(row["path"], at)) as response:
            while at < row["size"] and (data := response.read(min(_PIECE_BYTES, row["size"] - at))):
                at += os.pwrite(fd, data, at)
    except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
        return error
    except GpupoolError as error:
        if error.code not in _TEMPORARY:
            raise
        return error
    return None


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _list_with_retry(ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    while True:
        try:
            return ask()
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                raise _unreachable(error) from error
            time.sleep(PAUSE_S)


def _unreachable(error: Exception) -> GpupoolError:
    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE, f"Download interrupted: {error}.", "Run the command again to resume."
    )
