"""Archives of workspaces: a program in the home writes or reads their files; its pipes end here."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast

from gpupool.api.schemas.work.workloads import WorkloadDetail
from gpupool.client.job import Job
from gpupool.client.transport.attach import Attachment
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol import frames
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.program.supervision import NODE_PROGRAM
from gpupool.domain.work.workspace import ARCHIVE_PROGRAM
from gpupool.specs.request import WorkloadRequest, parse_request

HEADER = "workspace.json"  # the first member of an archive
DESCRIBED = ("name", "gpus", "image", "environment")
MAX_HEADER_BYTES = 8 << 20
PIECE_BYTES = 1 << 18
GZIP_LEVEL = 1  # three times as fast as the default
_MAX_ERROR_BYTES = 1 << 16


class ProgramClient(Protocol):
    """The methods of ``Client`` that run an archive program."""

    def submit(self, command: WorkloadRequest) -> Job:
        """Submit a program."""

    def wait_until(self, what: Any, ref: str) -> WorkloadDetail:
        """Wait for its start."""

    def attach(self, ref: str) -> Attachment:
        """Return its pipes."""

    def stop(self, ref: str, *, force: bool) -> Job:
        """Stop it."""


class ArchiveProgram:
    """The program that writes or reads an archive in the home of a workspace, without GPUs.

    A context manager that stops the program at an error. Every method raises ``GpupoolError``.
    """

    def __init__(self, client: ProgramClient, workspace: str, *words: str) -> None:
        self._client = client
        self._what = words[0]
        command = [NODE_PROGRAM, ARCHIVE_PROGRAM, *words]
        body = {"kind": "run", "workspace": workspace, "gpus": {"count": 0}, "command": command, "literal": True}
        self._job = client.submit(parse_request(body | {"client_bound": True, "stdin": True}))
        self._errors = bytearray()
        self._status: int | None = None

    def write_to(self, to: IO[bytes]) -> int:
        """Copy the output of the program to a file, wait for its end, and return the number of bytes."""
        sent = 0
        with self._pipes() as pipes:
            pipes.send(frames.STDIN_EOF)
            for piece in self._output(pipes):
                to.write(piece)
                sent += len(piece)
        self._check()
        return sent

    def read_from(self, first: bytes, source: IO[bytes]) -> None:
        """Give ``first`` and then a file to the program as its input, and wait for its end."""
        with self._pipes() as pipes:
            reader = threading.Thread(target=self._drain, args=(pipes,), daemon=True)
            reader.start()
            with contextlib.suppress(_Ended):
                self._send(pipes, first)
                while piece := source.read(PIECE_BYTES):
                    self._send(pipes, piece)
                self._send(pipes, b"")
            reader.join()
        self._check()

    def _send(self, pipes: Attachment, piece: bytes) -> None:
        try:
            pipes.send(frames.STDIN if piece else frames.STDIN_EOF, piece)
        except GpupoolError as error:
            raise _Ended from error  # the program has ended, and its output says why

    @contextmanager
    def _pipes(self) -> Iterator[Attachment]:
        try:
            detail = self._client.wait_until("started", self._job.id)
            if not detail.state.final:
                with self._client.attach(self._job.id) as pipes:
                    pipes.hello()
                    yield pipes
                return
        except BaseException:
            with contextlib.suppress(GpupoolError):
                self._client.stop(self._job.id, force=True)
            raise
        raise self._failure("it did not start" if detail.reason is None else detail.reason.message)

    def _drain(self, pipes: Attachment) -> None:
        with contextlib.suppress(GpupoolError):
            for _ in self._output(pipes):
                pass

    def _output(self, pipes: Attachment) -> Iterator[bytes]:
        for kind, payload in pipes:
            if kind == frames.STDOUT:
                yield payload
            elif kind == frames.STDERR:
                self._errors = (self._errors + payload)[-_MAX_ERROR_BYTES:]
            elif kind == frames.EXIT:
                self._status = int(json.loads(payload)["status"])
                return

    def _check(self) -> None:
        if self._status is None:
            raise GpupoolError(
                ErrorCode.POOL_UNREACHABLE, f"The connection to the {self._what} was lost.", "Try again."
            )
        if self._status:
            lines = self._errors.decode(errors="replace").strip().splitlines()
            raise self._failure(lines[-1] if lines else f"status {self._status}")

    def _failure(self, why: str) -> GpupoolError:
        return archive_failure(self._what, why)


class _Ended(Exception):  # noqa: N818 - no error
    """The program reads no more input."""


def archive_failure(what: str, why: str) -> GpupoolError:
    """Return the error of an ``export`` or ``import`` whose program failed."""
    return GpupoolError(ErrorCode.INVALID_FILE, f"The {what} failed: {why}.", "Nothing was changed.")


def description(workspace: Mapping[str, Any]) -> str:
    """Return what an archive says about a workspace, of its view, for the program ``export``."""
    if workspace["state"] != "stopped":
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"The workspace {workspace['name']} is {workspace['state']}; it must be stopped for 'export'.",
            f"Stop it first: `gpupool workspace stop {workspace['name']}`.",
        )
    return json.dumps({field: workspace[field] for field in DESCRIBED})


def new_workspace(name: str, node: str | None, project: str | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for the workspace of an archive; ``about`` is from ``read_header``."""
    body = {"name": name, "node": node, "project": project, "importing": True, **about}
    return {key: value for key, value in body.items() if value}


@contextmanager
def writable(file: str, *, force: bool = False) -> Iterator[IO[bytes]]:
    """Yield a new file that gets its name when it is complete, compressed if its name says so.

    Raises ``GpupoolError(INVALID_FILE)``.
    """
    path = _checked(file)
    if path.exists() and not force:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{path} exists.", "Give another name, or --force.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as raw:
            partial.chmod(0o600)
            if path.name.endswith("gz"):
                with gzip.GzipFile("", "wb", GZIP_LEVEL, raw) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
    except OSError as error:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{path} cannot be written: {error.strerror}.", "") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def readable(file: str) -> Iterator[IO[bytes]]:
    """Yield the bytes of an archive. Raises ``GpupoolError(INVALID_FILE)``."""
    path = _checked(file)
    try:
        with path.open("rb") as raw:
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if path.name.endswith("gz") else raw
    except (OSError, EOFError) as error:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{path} cannot be read: {error}.", "Export it again.") from error


def _checked(file: str) -> Path:
    if not file.endswith((".tar", ".tar.gz", ".tgz")):
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{file} is no name of an archive.", "Use NAME.tar or NAME.tar.gz.")
    return Path(file).expanduser()


def read_header(source: IO[bytes]) -> tuple[bytes, dict[str, Any]]:
    """Read the description at the beginning of an archive; return its bytes too, for the program on the node."""
    wrong = GpupoolError(ErrorCode.INVALID_FILE, "This is no archive of a workspace.", "Make one: workspace export.")
    head = source.read(tarfile.BLOCKSIZE)
    try:
        member = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise wrong from error
    if member.name != HEADER or member.size > MAX_HEADER_BYTES:
        raise wrong
    text = source.read(-(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
    try:
        about = json.loads(text[: member.size])
        fields = {key: about[key] for key in ("image", "environment", "environment_files")}
        fields["gpus"] = _gpus(**about["gpus"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise wrong from error
    return head + text, fields


def _gpus(count: int, permille: int, memory_mib: int | None, models: list[str], **_: Any) -> dict[str, Any]:
    """Return a request for the GPUs that an archive describes; what belongs to a pool, such as labels, is left out."""
    if memory_mib is not None:
        size: dict[str, Any] = {"count": count, "memory_mib": memory_mib}
    elif permille < WHOLE_GPU:
        size = {"count": count, "fraction": permille / WHOLE_GPU}
    else:
        size = {"count": count}
    return size | ({"models": models} if models else {})
