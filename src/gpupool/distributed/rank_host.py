"""The program of an MPI worker that waits for commands of its launcher, like sshd without accounts.

It listens on the address and port that the pool assigned, and accepts only clients that know the gang's secret. It runs
commands in a shell, with its own environment, so the member's GPUs and limits apply. When the client disconnects, its
command is killed. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # the pool runs this file with a Python that need not know the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpupool.distributed import rank_frames as f

GREETING_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 64  # conversations
PIECE = 64 << 10
PREFIX = "gpupool-rank-"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a folder of our own is made in it


class RankHost:
    """Runs commands for clients that know the secret."""

    def __init__(self, secret: str, environment: dict[str, str]) -> None:
        self._secret = secret
        self._environment = environment
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one conversation: authenticate, run one command, send its exit status."""
        try:
            async with self._slots:
                async with asyncio.timeout(GREETING_TIMEOUT_S):
                    command = await self._greet(reader, writer)
                if command is not None:
                    await self._run(command, reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError):
            pass  # an unknown client, or a lost connection
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        """Return the command; None if the client does not know the secret."""
        own = os.urandom(f.NONCE_BYTES)
        writer.write(own)
        nonces = own + await reader.readexactly(f.NONCE_BYTES)
        if not f.proves(await reader.readexactly(f.PROOF_BYTES), self._secret, "starter", nonces):
            return None
        writer.write(f.proof(self._secret, "host", nonces))
        kind, content = await _read_frame(reader)
        given, command = content[: f.PROOF_BYTES], content[f.PROOF_BYTES :]
        if kind != f.COMMAND or not f.proves(given, self._secret, "command", nonces, command):
            return None
        return command.decode("utf-8", "surrogateescape")

    async def _run(self, command: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self._environment,
            start_new_session=True,
        )
        told = asyncio.create_task(_send_output(process, writer))
        heard = asyncio.create_task(_receive_input(process, reader))
        try:
            await asyncio.wait((told, heard), return_when=asyncio.FIRST_COMPLETED)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for task in (told, heard):
                task.cancel()
            await asyncio.gather(told, heard, return_exceptions=True)
            await process.wait()


async def _send_output(process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
    """Send the program's output, then its exit status."""
    assert process.stdout is not None  # noqa: S101 - it was asked for
    assert process.stderr is not None  # noqa: S101
    await asyncio.gather(_copy(process.stdout, f.OUTPUT, writer), _copy(process.stderr, f.ERRORS, writer))
    status = await process.wait()
    writer.write(f.frame(f.EXIT, bytes([status if status >= 0 else 128 - status])))
    await writer.drain()


async def _copy(source: asyncio.StreamReader, kind: int, writer: asyncio.StreamWriter) -> None:
    while data := await source.read(PIECE):
        writer.write(f.frame(kind, data))
        await writer.drain()


async def _receive_input(process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> None:
    """Pass on the program's input; return when the client disconnects."""
    assert process.stdin is not None  # noqa: S101 - it was asked for
    while True:
        try:
            kind, content = await _read_frame(reader)
        except (OSError, EOFError):
            return
        if kind != f.INPUT or process.stdin.is_closing():
            continue
        with contextlib.suppress(OSError):
            process.stdin.write(content)
            await process.stdin.drain()
        if not content:
            process.stdin.close()


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    kind, length = f.head(await reader.readexactly(f.HEAD_BYTES))
    return kind, await reader.readexactly(length)


async def _serve(address: str, port: int, host: RankHost) -> None:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    server = await asyncio.start_server(host.serve, address, port, reuse_address=True)
    async with server:
        await asked.wait()


def main() -> int:
    """Serve until stopped; return 0 then."""
    environment = dict(os.environ)
    secret = environment.pop("GPUPOOL_GANG_SECRET", "")
    address, _, port = environment.pop("GPUPOOL_RANK_HOST", "").partition(" ")
    if not secret or not port.isdigit():
        sys.stderr.write("The rank host is started by the pool, for a workload with the framework mpi.\n")
        return 2
    folders = [
        _folder(SHARED_MEMORY, "btl_vader_backing_directory", environment),
        _folder(None, "orte_tmpdir_base", environment),
    ]
    try:
        asyncio.run(_serve(address, int(port), RankHost(secret, environment)))
    except OSError as error:
        sys.stderr.write(f"The rank host cannot listen on {address}:{port}: {error.strerror}.\n")
        return 1
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _folder(base: str | None, parameter: str, environment: dict[str, str]) -> str:
    """Create a folder for this member: members of one gang on one machine must not share these files.

    Folders of killed members are deleted.
    """
    parent = base if base and Path(base).is_dir() else tempfile.gettempdir()
    for old in Path(parent).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if old.stat().st_uid == os.geteuid() and _lock(old) is not None:
                shutil.rmtree(old)
    # Another member that starts now may take the new folder for one of a killed member until it is locked.
    while not _claim(made := tempfile.mkdtemp(prefix=PREFIX, dir=parent)):
        pass
    environment.setdefault(f"OMPI_MCA_{parameter}", made)
    return made


def _claim(folder: str) -> bool:
    """Lock a folder to the end of this process; return False if another process has deleted it or is about to."""
    with contextlib.suppress(FileNotFoundError):
        return _lock(Path(folder)) is not None and Path(folder).exists()
    return False


def _lock(folder: Path) -> int | None:
    """Lock a folder; return None if a living process holds the lock."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


if __name__ == "__main__":
    sys.exit(main())
