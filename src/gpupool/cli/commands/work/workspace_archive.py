"""``workspace export`` and ``import``: the files of a workspace in a tar archive."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, cast

import typer

from gpupool.cli.output import notify
from gpupool.cli.terminal import write_stderr
from gpupool.cli.transport.pool import open_pool
from gpupool.cli.transport.workspaces import await_task, delete, stop_session, workspace_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.supervision import NODE_PROGRAM
from gpupool.domain.work.workspace import format_bytes

PROGRAM = "node/files/workspace_archive.py"
HEADER = "workspace.json"  # the first member of an archive
MAX_HEADER_BYTES = 8 << 20
PIECE_BYTES = 1 << 20
PROGRESS_EACH_S = 0.2
GZIP_LEVEL = 1  # three times as fast as the default
_DESCRIBED = ("name", "gpus", "image", "environment")

ArchiveFile = Annotated[str, typer.Argument(metavar="FILE", help="A .tar or .tar.gz file; -: stdout or stdin.")]


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The workspace, by name or id.")],
    file: ArchiveFile,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write the files of a stopped workspace to a tar archive, to keep them or to move them to another node or pool.

    Snapshots and devices are not part of it.
    """
    pool = open_pool()
    found = pool.get(workspace_path(name))
    if found["state"] != "stopped":
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"The workspace {found['name']} is {found['state']}; it must be stopped for 'export'.",
            f"Stop it first: `gpupool workspace stop {found['name']}`.",
        )
    about, sent = json.dumps({field: found[field] for field in _DESCRIBED}), 0
    with _writable(file, force=force) as to, _program(found["id"], "export", about, stdout=subprocess.PIPE) as program:
        sent = _copy(cast("BinaryIO", program.stdout), to, "exporting")
    if file != "-":
        notify(f"{found['name']} is exported to {file} ({format_bytes(sent)} of files)")


def import_(
    name: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new workspace.")],
    file: ArchiveFile,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Store it on this node.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", help="Use the quota of this project; default: yours.")
    ] = None,
) -> None:
    """Create a workspace with the files, GPUs, image and environment of an archive.

    If the files cannot be read completely, no workspace remains.
    """
    pool = open_pool()
    with _readable(file) as source:
        first, about = _header(source)
        body = {"name": name, "node": node, "project": project, **about}
        made, sent = pool.post("workspaces", {key: value for key, value in body.items() if value}), 0
        try:
            await_task(pool, made["id"])
            with _program(made["id"], "import", stdin=subprocess.PIPE) as program:
                to = cast("BinaryIO", program.stdin)
                to.write(first)
                sent = _copy(source, to, "importing")
                to.close()
        except BaseException:
            stop_session(pool, made["id"], force=True)
            delete(pool, made["id"])
            raise
    notify(f"workspace {name} is created on {made['node']} from {file} ({format_bytes(sent)} of files)")


@contextmanager
def _program(
    workspace: str, *words: str, stdin: int = subprocess.DEVNULL, stdout: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the archive program in the home of a workspace, without GPUs. Raises ``GpupoolError`` if it fails."""
    command = [sys.executable, "-P", "-m", "gpupool", "run", "-q", "-n", "0", "--workspace", workspace]
    command += ["--", NODE_PROGRAM, PROGRAM, *words]
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)
    errors = cast("IO[bytes]", process.stderr)
    try:
        yield process
    except BrokenPipeError:
        pass  # its message says why
    except BaseException:
        process.terminate()
        errors.read()
        process.wait()
        raise
    said = errors.read().decode(errors="replace").strip()
    if process.wait():
        raise GpupoolError(
            ErrorCode.INVALID_FILE,
            f"The {words[0]} failed: {said.splitlines()[-1] if said else f'status {process.returncode}'}.",
            "Nothing was changed.",
        )


def _copy(source: IO[bytes], to: IO[bytes], what: str) -> int:
    """Copy a stream, show progress on a terminal, and return the number of bytes."""
    sent, shown_at, is_terminal = 0, time.monotonic(), sys.stderr.isatty()
    while piece := source.read(PIECE_BYTES):
        to.write(piece)
        sent += len(piece)
        if is_terminal and time.monotonic() - shown_at > PROGRESS_EACH_S:
            shown_at = time.monotonic()
            write_stderr(f"\r\x1b[Kgpupool: {what} {format_bytes(sent)}")
    if is_terminal:
        write_stderr("\r\x1b[K")
    return sent


@contextmanager
def _writable(file: str, *, force: bool) -> Iterator[IO[bytes]]:
    """Yield a new file that gets its name when it is complete, compressed if its name says so."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
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
def _readable(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
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


def _header(source: IO[bytes]) -> tuple[bytes, dict[str, Any]]:
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
