"""The program of a worker that waits for what its launcher starts: sshd's part, for one gang and without accounts.

It listens on the address and port that the pool gave it, lets in only who knows the gang's secret, and runs what it is
told to by a shell, with its own environment: the member's GPUs and limits hold for it. When whoever asked hangs up,
what runs for them is killed. Standard library only.
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

GREETING_WAIT_S = 10.0
AT_ONCE = 64  # conversations
PIECE = 64 << 10
PREFIX = "gpupool-rank-"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a folder of our own is made in it


class RankHost:
    """Runs commands for those who know the secret."""

    def __init__(self, secret: str, environment: dict[str, str]) -> None:
        self._secret = secret
        self._environment = environment
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One conversation: greet, run one command, tell how it ended."""
        try:
            async with self._slots:
                async with asyncio.timeout(GREETING_WAIT_S):
                    command = await self._greet(reader, writer)
                if command is not None:
                    await self._run(command, reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError):
            pass  # a stranger, or one that hung up
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        """The command; None for somebody who does not know the secret."""
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
        told = asyncio.create_task(_tell(process, writer))
        heard = asyncio.create_task(_hear(process, reader))
        try:
            await asyncio.wait((told, heard), return_when=asyncio.FIRST_COMPLETED)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for task in (told, heard):
                task.cancel()
            await asyncio.gather(told, heard, return_exceptions=True)
            await process.wait()


async def _tell(process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
    """Send what the program writes, and then how it ended."""
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


async def _hear(process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> None:
    """Hand on what is meant for the program's input; returns when the other side hangs up."""
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
    """Serve until told to end; 0 then."""
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
    """A folder of this member's own: two of one gang on one machine would take each other's files for their own.

    Those of members that were killed, and so could not remove theirs, are removed.
    """
    parent = base if base and Path(base).is_dir() else tempfile.gettempdir()
    for old in Path(parent).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if old.stat().st_uid == os.geteuid() and _lock(old) is not None:
                shutil.rmtree(old)
    made = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    _lock(Path(made))  # held to the end of this process
    environment.setdefault(f"OMPI_MCA_{parameter}", made)
    return made


def _lock(folder: Path) -> int | None:
    """Take the lock of a folder; None where somebody lives who has it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


if __name__ == "__main__":
    sys.exit(main())
