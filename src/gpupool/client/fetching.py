"""Bringing back what work made in its folder: through no link, and gone on with where it was cut off."""

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
from urllib.parse import quote, urlencode

from gpupool.blobs.keep import saying_full
from gpupool.blobs.scan import leads_out
from gpupool.blobs.walk import folder_at
from gpupool.client.sending import ANSWER_S, RETRY_S, Gate, problem
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import check_path, shown

PAUSE_S = 0.5
_PASSING = {ErrorCode.POOL_UNREACHABLE, ErrorCode.NODE_UNREACHABLE}
_PIECE = 1 << 18
_SAME_S = 1e-3  # times travel as seconds
_PART = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Fetched:
    """What came (paths), how many bytes of it travelled, what was here already, and what was left, with why."""

    files: list[str] = field(default_factory=list)
    bytes: int = 0
    same: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """Whose folder: a workload's, on the node of one of its replicas."""

    gate: Gate
    ref: str
    index: int = 0

    def listing(self, path: str = "") -> Iterator[dict[str, Any]]:
        """Everything in it below a path, as the API shows it. Raises ``GpupoolError``."""
        cursor: str | None = ""
        while cursor is not None:
            page = json.loads(self._get("files", {"path": path, "cursor": cursor}).read())
            yield from page["files"]
            cursor = page["next_cursor"]

    def content(self, path: str, offset: int) -> http.client.HTTPResponse:
        """A file's bytes from an offset on. Raises ``GpupoolError``, ``OSError``."""
        return self._get("files/content", {"path": path, "offset": offset})

    def _get(self, what: str, query: dict[str, Any]) -> http.client.HTTPResponse:
        target = f"/v1/workloads/{quote(self.ref, safe='')}/{what}?{urlencode(query | {'index': self.index})}"
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self.gate.connection(ANSWER_S)
            connection.request("GET", target, headers=self.gate.headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if connection is not None:
                connection.close()
            raise ConnectionError(str(error)) from error
        if response.status != http.client.OK:
            said = response.read()
            connection.close()
            raise problem(response.status, _json(said))
        return response


def fetch(
    work: Work, paths: Sequence[str], into: str, *, force: bool = False, tell: Callable[[str], None] | None = None
) -> Fetched:
    """Bring files, folders and links into a folder, each at the path that it has there.

    What is here and the same is left alone; what is here and different stays too unless ``force``. Raises
    ``GpupoolError``.
    """
    os.makedirs(into, exist_ok=True)  # noqa: PTH103 - text is what the rest wants
    done = Fetched()
    for path in paths or [""]:
        for row in _patiently(lambda path=path: list(work.listing(path))):  # type: ignore[misc]  # mypy and a default
            _bring(work, row, into, done, force=force)
            if tell is not None:
                tell(f"{len(done.files)} files")
    return done


def _bring(work: Work, row: dict[str, Any], into: str, done: Fetched, *, force: bool) -> None:
    path = check_path(row["path"])
    above, _, name = path.rpartition("/")
    try:
        with saying_full("this machine's disk"), folder_at(into, above, make=True) as folder:
            if row["kind"] == "folder":
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o777, dir_fd=folder)
            elif row["kind"] == "link":
                _link(row, folder, name, done, force=force)
            elif row["kind"] == "file":
                _file(work, row, folder, name, done, force=force)
            else:
                done.left[path] = "it is neither file nor folder"
    except GpupoolError as error:
        if error.code not in {ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN}:
            raise
        done.left[path] = error.message
    except OSError as error:
        done.left[path] = f"it cannot be put here: {error.strerror}"


def _link(row: dict[str, Any], folder: int, name: str, done: Fetched, *, force: bool) -> None:
    path, target = row["path"], row["target"]
    if leads_out(path, target):
        done.left[path] = f"it leads out of the folder, to {shown(target)}"
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


def _file(work: Work, row: dict[str, Any], folder: int, name: str, done: Fetched, *, force: bool) -> None:
    here = _about(folder, name)
    if here is not None:
        regular = stat.S_ISREG(here.st_mode)
        if regular and here.st_size == row["size"] and abs(here.st_mtime - row["mtime"]) < _SAME_S:
            done.same.append(row["path"])
            return
        if not force:
            done.left[row["path"]] = "it is here and different (--force replaces it)"
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


def _fill(work: Work, row: dict[str, Any], fd: int) -> int:
    """Read on from where it stopped, up to the size that was listed; how many bytes travelled."""
    size = int(row["size"])
    os.ftruncate(fd, min(os.fstat(fd).st_size, size))
    began = at = os.fstat(fd).st_size
    deadline = time.monotonic() + RETRY_S
    while at < size:
        cut_off = _read_on(work, row, fd, at)
        here = os.fstat(fd).st_size
        if here > at:
            deadline = time.monotonic() + RETRY_S
        elif cut_off is None:
            break  # it has become shorter meanwhile
        elif time.monotonic() > deadline:
            raise _unreachable(cut_off) from cut_off
        else:
            time.sleep(PAUSE_S)
        at = here
    return at - began


def _read_on(work: Work, row: dict[str, Any], fd: int, at: int) -> Exception | None:
    """Read until the end, or what cut it off."""
    try:
        with contextlib.closing(work.content(row["path"], at)) as response:
            while at < row["size"] and (data := response.read(min(_PIECE, row["size"] - at))):
                at += os.pwrite(fd, data, at)
    except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
        return error
    except GpupoolError as error:
        if error.code not in _PASSING:
            raise
        return error
    return None


def _about(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _patiently(ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + RETRY_S
    while True:
        try:
            return ask()
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                raise _unreachable(error) from error
            time.sleep(PAUSE_S)


def _unreachable(error: Exception) -> GpupoolError:
    return GpupoolError(ErrorCode.POOL_UNREACHABLE, f"The pool does not answer: {error}.", "Say it again to go on.")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
