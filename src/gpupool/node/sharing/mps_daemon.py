"""One MPS control daemon: ``nvidia-cuda-mps-control`` for one user and one GPU.

It is shown that GPU alone (``CUDA_VISIBLE_DEVICES``), so that to its server and to its clients the GPU is number 0
whatever its place in the machine: limits are given by that number, because the daemon ignores those given by UUID
(pull request 572 of NVIDIA/k8s-device-plugin). Facts about the daemon are from NVIDIA's documentation of MPS and from
its manual page: it writes ``nvidia-cuda-mps-control.pid`` into its pipe folder, and ``quit`` on its input ends it.

What is known of a daemon is in a file beside its folder, which the daemon's user cannot write; a process is only ever
ended when it is that user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node import proctree
from gpupool.node.journal import say
from gpupool.node.paths import SOCKET_NAME_LIMIT, write_json

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/nvidia/bin"
_SOCKET = "control_privileged"  # the longest of the names in the pipe folder
_START_S, _QUIT_S, _TERM_S = 10.0, 5.0, 2.0
_LOOK_S = 0.02
_SAID_LIMIT = 200
_PID_BYTES = 32


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A daemon and where it lives. ``pid`` and ``start`` (ticks since boot) are 0 until it has been started."""

    folder: Path
    uid: int
    gid: int
    gpu_uuid: str
    pid: int = 0
    start: int = 0

    @property
    def pipes(self) -> Path:
        """Where clients find it."""
        return self.folder / "pipe"

    @property
    def record(self) -> Path:
        """The file that tells of it."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def alive(self) -> bool:
        """Whether it is still the process that was started."""
        return self.pid > 0 and proctree.start_time(self.pid) == self.start

    @property
    def env(self) -> dict[str, str]:
        """What tells a client of it."""
        return {PIPES: str(self.pipes), LOGS: str(self.folder / "log")}

    def processes(self) -> dict[int, int]:
        """The daemon and the servers it has started, by pid with their start times; none when it is dead."""
        if not self.alive:
            return {}
        table = proctree.scan()
        below = proctree.descendants([self.pid], proctree.children_of(table))
        return {pid: table[pid].start for pid in (self.pid, *below) if pid in table}

    def write(self) -> None:
        """Say on disk that it is there. Raises OSError."""
        write_json(self.record, {**asdict(self), "folder": str(self.folder)}, durable=False)

    def forget(self) -> None:
        """Remove its folder and what tells of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.record.unlink()


def read_daemon(record: Path) -> MpsDaemon | None:
    """What a record tells; None for one that does not."""
    try:
        data = json.loads(record.read_text())
        daemon = MpsDaemon(**{**data, "folder": Path(data["folder"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return daemon if daemon.record == record else None


def control_program() -> str | None:
    """The path of ``nvidia-cuda-mps-control``."""
    return shutil.which(CONTROL, path=f"{os.environ.get('PATH', '')}:{_PLACES}")


async def start(daemon: MpsDaemon) -> MpsDaemon:
    """Make its folders and start it; raises ``GpupoolError`` with what it said when that fails, and nothing is left."""
    _check_length(daemon)
    try:
        _make_folders(daemon)
        daemon.write()
        await _run(daemon, ["-d"], b"", _START_S)
        started = await _appeared(daemon)
        started.write()
    except (OSError, TimeoutError, GpupoolError) as error:
        await stop(daemon)
        reason = error.message if isinstance(error, GpupoolError) else str(error) or "it took too long"
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The MPS daemon for GPU {daemon.gpu_uuid} could not be started: {reason.rstrip('.')}.",
            "Ask for another sharing mode, or see that nvidia-cuda-mps-control works for this user.",
        ) from error
    say("MPS daemon started", gpu=daemon.gpu_uuid, uid=daemon.uid, pid=started.pid)
    return started


async def stop(daemon: MpsDaemon, seen: Mapping[int, int] | None = None) -> None:
    """End it: ``quit``, then TERM, then KILL, its servers too; then remove its folder. May be called again.

    ``seen``: processes that were its own (as ``processes`` told) before it was killed.
    """
    daemon = daemon if daemon.pid else _found(daemon) or daemon  # an agent may have been killed before it wrote that
    processes = {**(seen or {}), **daemon.processes()}
    if daemon.alive:
        with contextlib.suppress(OSError, TimeoutError, GpupoolError):
            await _run(daemon, [], b"quit\n", _QUIT_S)
    steps = ((0, _QUIT_S), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S))
    for number, patience_s in steps if daemon.alive else steps[1:]:
        _signal(processes, daemon.uid, number)
        if await _gone(processes, patience_s):
            break
    daemon.forget()


def _check_length(daemon: MpsDaemon) -> None:
    if len(os.fsencode(daemon.pipes / _SOCKET)) > SOCKET_NAME_LIMIT:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The folder {daemon.pipes} has too long a name for the sockets of MPS.",
            "Use a pool whose folder has a shorter name.",
        )


def _make_folders(daemon: MpsDaemon) -> None:
    for folder in (daemon.folder, daemon.pipes, daemon.folder / "log"):
        folder.mkdir(mode=0o700)
        if daemon.uid != os.geteuid():
            os.chown(folder, daemon.uid, daemon.gid)


async def _run(daemon: MpsDaemon, arguments: list[str], said: bytes, patience_s: float) -> None:
    """Run the control program as the daemon's user; raises OSError, TimeoutError, GpupoolError when it fails."""
    program = control_program()
    if program is None:
        raise GpupoolError(ErrorCode.UNSUPPORTED, f"{CONTROL} is not installed")
    user: Mapping[str, int | list[int]] = {}
    if daemon.uid != os.geteuid():
        user = {"user": daemon.uid, "group": daemon.gid, "extra_groups": []}
    output = daemon.folder / "log" / "control.out"
    async with asyncio.timeout(patience_s):
        # its daemon may inherit what it writes to, so that is a file and not a pipe to wait on
        with _private(output) as file:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=_environment(daemon),
                cwd="/",
                start_new_session=True,
                **user,  # type: ignore[arg-type]  # typeshed lists them one by one
            )
        try:
            await process.communicate(said)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
    if process.returncode:
        raise GpupoolError(ErrorCode.UNSUPPORTED, _said(output) or f"it ended with status {process.returncode}")


def _environment(daemon: MpsDaemon) -> dict[str, str]:
    shown = {"CUDA_VISIBLE_DEVICES": daemon.gpu_uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"PATH": f"{os.environ.get('PATH', '')}:{_PLACES}", **shown, **daemon.env}


@contextlib.contextmanager
def _private(path: Path) -> Iterator[int]:
    """A file for what a program says, opened without following a link that its user may have put there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _said(output: Path) -> str:
    try:
        with output.open("rb") as file:
            lines = file.read(4 * _SAID_LIMIT).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "".join(c if c.isprintable() else "?" for c in lines[0][:_SAID_LIMIT]) if lines else ""


async def _appeared(daemon: MpsDaemon) -> MpsDaemon:
    async with asyncio.timeout(_START_S):
        while (found := _found(daemon)) is None:  # noqa: ASYNC110 - a file of another program's: nobody tells
            await asyncio.sleep(_LOOK_S)
    return found


def _found(daemon: MpsDaemon) -> MpsDaemon | None:
    """The process that its file names, if it is one of its user's."""
    try:
        fd = os.open(daemon.pipes / f"{CONTROL}.pid", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pid = int(os.read(fd, _PID_BYTES))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    start_ticks = proctree.start_time(pid) if pid > 1 and _owned(pid, daemon.uid) else None
    return None if start_ticks is None else replace(daemon, pid=pid, start=start_ticks)


def _owned(pid: int, uid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == uid
    except OSError:
        return False


def _signal(processes: Mapping[int, int], uid: int, number: int) -> None:
    for pid, start_ticks in processes.items() if number else ():
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            try:
                if proctree.start_time(pid) == start_ticks and _owned(pid, uid):
                    signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)


async def _gone(processes: Mapping[int, int], patience_s: float) -> bool:
    """Whether none of them is left, waiting for that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while _any_left(processes):  # noqa: ASYNC110 - they are not children of ours: nobody tells
                await asyncio.sleep(_LOOK_S)
            return True
    return False


def _any_left(processes: Mapping[int, int]) -> bool:
    return any(proctree.start_time(pid) == start_ticks for pid, start_ticks in processes.items())
