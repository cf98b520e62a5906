"""``workspace export`` and ``import``: the files of a workspace in a tar archive."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Annotated, BinaryIO, cast

from gpupool.cli import lazy_typer as typer
from gpupool.cli.output import notify
from gpupool.cli.terminal import write_stderr
from gpupool.cli.transport.pool import open_pool
from gpupool.cli.transport.workspaces import await_task, delete, stop_session, workspace_path
from gpupool.client.workspace_archive import (
    archive_failure,
    description,
    new_workspace,
    read_header,
    readable,
    writable,
)
from gpupool.domain.work.program.supervision import NODE_PROGRAM
from gpupool.domain.work.workspace import ARCHIVE_PROGRAM, format_bytes

PIECE_BYTES = 1 << 20
PROGRESS_EACH_S = 0.2

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
    about, sent = description(found), 0
    with _output(file, force=force) as to, _program(found["id"], "export", about, stdout=subprocess.PIPE) as program:
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
    with _input(file) as source:
        first, about = read_header(source)
        made, sent = pool.post("workspaces", new_workspace(name, node, project, about)), 0
        try:
            await_task(pool, made["id"])
            with _program(made["id"], "import", stdin=subprocess.PIPE) as program:
                to = cast("BinaryIO", program.stdin)
                to.write(first)
                sent = _copy(source, to, "importing")
                to.close()
            pool.post(workspace_path(made["id"], "imported"), {})
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
    command += ["--", NODE_PROGRAM, ARCHIVE_PROGRAM, *words]
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
        raise archive_failure(words[0], said.splitlines()[-1] if said else f"status {process.returncode}")


@contextmanager
def _output(file: str, *, force: bool) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with writable(file, force=force) as to:
        yield to


@contextmanager
def _input(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with readable(file) as source:
        yield source


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
