"""One MPS control daemon: ``nvidia-cuda-mps-control`` for one user and one GPU.

The daemon sees that GPU alone (``CUDA_VISIBLE_DEVICES``), so that the GPU is number 0 for its server and its clients.
Limits are set by that number, because the daemon ignores limits by UUID (pull request 572 of NVIDIA/k8s-device-plugin).
Facts about the daemon are from NVIDIA's MPS documentation and its manual page: it writes
``nvidia-cuda-mps-control.pid`` into its pipe folder, and ``quit`` on its input ends it.

The record of a daemon is a file next to its folder, which the daemon's user cannot write. Only processes of that user
are ever killed.
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
from gpupool.node.host import process_tree
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import write_json
from gpupool.unix_sockets import PATH_LIMIT

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/nvidia/bin"
_SOCKET = "control_privileged"  # the longest of the names in the pipe folder
_START_TIMEOUT_S, _QUIT_TIMEOUT_S, _TERM_TIMEOUT_S = 10.0, 5.0, 2.0
_POLL_INTERVAL_S = 0.02
_MAX_OUTPUT_CHARS = 200
_PID_BYTES = 32


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A daemon and its folder. ``pid`` and ``start`` (ticks since boot) are 0 until it has been started."""

    folder: Path
    uid: int
    gid: int
    gpu_uuid: str
    pid: int = 0
    start: int = 0

    @property
    def pipes(self) -> Path:
        """Return the folder in which clients find the daemon."""
        return self.folder / "pipe"

    @property
    def record(self) -> Path:
        """Return the file with the daemon's record."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def alive(self) -> bool:
        """Return True if the process that was started still runs."""
        return self.pid > 0 and process_tree.start_time(self.pid) == self.start

    @property
    def env(self) -> dict[str, str]:
        """Return the variables for clients."""
        return {PIPES: str(self.pipes), LOGS: str(self.folder / "log")}

    def processes(self) -> dict[int, int]:
        """Return the pids and start times of the daemon and its servers; empty if the daemon is dead."""
        if not self.alive:
            return {}
        table = process_tree.scan()
        below = process_tree.descendants([self.pid], process_tree.children_of(table))
        return {pid: table[pid].start for pid in (self.pid, *below) if pid in table}

    def write(self) -> None:
        """Write the record. Raises OSError."""
        write_json(self.record, {**asdict(self), "folder": str(self.folder)}, durable=False)

    def forget(self) -> None:
        """Delete the folder and the record."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.record.unlink()


def read_daemon(record: Path) -> MpsDaemon | None:
    """Read a record; return None if it is invalid."""
    try:
        data = json.loads(record.read_text())
        daemon = MpsDaemon(**{**data, "folder": Path(data["folder"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return daemon if daemon.record == record else None


def control_program() -> str | None:
    """Return the path of ``nvidia-cuda-mps-control``; None if it is not installed."""
    return shutil.which(CONTROL, path=f"{os.environ.get('PATH', '')}:{_SEARCH_PATH}")


async def start(daemon: MpsDaemon) -> MpsDaemon:
    """Create the folders and start the daemon.

    Raises ``GpupoolError`` with the daemon's output if that fails; nothing is left then.
    """
    _check_length(daemon)
    try:
        _make_folders(daemon)
        daemon.write()
        await _run(daemon, ["-d"], b"", _START_TIMEOUT_S)
        started = await _appeared(daemon)
        started.write()
    except (OSError, TimeoutError, GpupoolError) as error:
        await stop(daemon)
        reason = error.message if isinstance(error, GpupoolError) else str(error) or "it took too long"
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The MPS daemon for GPU {daemon.gpu_uuid} could not be started: {reason.rstrip('.')}.",
            "Request another sharing mode, or check that nvidia-cuda-mps-control works for this user.",
        ) from error
    log_event("MPS daemon started", gpu=daemon.gpu_uuid, uid=daemon.uid, pid=started.pid)
    return started


async def stop(daemon: MpsDaemon, seen: Mapping[int, int] | None = None) -> None:
    """End the daemon and its servers with ``quit``, TERM and KILL, then delete its folder. May be called again.

    ``seen``: processes that were its own (from ``processes``) before it was killed.
    """
    daemon = daemon if daemon.pid else _found(daemon) or daemon
    processes = {**(seen or {}), **daemon.processes()}
    if daemon.alive:
        with contextlib.suppress(OSError, TimeoutError, GpupoolError):
            await _run(daemon, [], b"quit\n", _QUIT_TIMEOUT_S)
    steps = ((0, _QUIT_TIMEOUT_S), (signal.SIGTERM, _TERM_TIMEOUT_S), (signal.SIGKILL, _TERM_TIMEOUT_S))
    for number, timeout_s in steps if daemon.alive else steps[1:]:
        _signal(processes, daemon.uid, number)
        if await _gone(processes, timeout_s):
            break
    daemon.forget()


def _check_length(daemon: MpsDaemon) -> None:
    if len(os.fsencode(daemon.pipes / _SOCKET)) > PATH_LIMIT:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The path {daemon.pipes} is too long for the sockets of MPS.",
            "Use a pool folder with a shorter path.",
        )


def _make_folders(daemon: MpsDaemon) -> None:
    for folder in (daemon.folder, daemon.pipes, daemon.folder / "log"):
        folder.mkdir(mode=0o700)
        if daemon.uid != os.geteuid():
            os.chown(folder, daemon.uid, daemon.gid)


async def _run(daemon: MpsDaemon, arguments: list[str], said: bytes, timeout_s: float) -> None:
    """Run the control program as the daemon's user; raise OSError, TimeoutError or GpupoolError when it fails."""
    program = control_program()
    if program is None:
        raise GpupoolError(ErrorCode.UNSUPPORTED, f"{CONTROL} is not installed")
    user: Mapping[str, int | list[int]] = {}
    if daemon.uid != os.geteuid():
        user = {"user": daemon.uid, "group": daemon.gid, "extra_groups": []}
    output = daemon.folder / "log" / "control.out"
    async with asyncio.timeout(timeout_s):
        # The daemon may inherit the output, so it is a file: waiting for the end of a pipe would hang.
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
        raise GpupoolError(ErrorCode.UNSUPPORTED, _output_line(output) or f"it ended with status {process.returncode}")


def _environment(daemon: MpsDaemon) -> dict[str, str]:
    shown = {"CUDA_VISIBLE_DEVICES": daemon.gpu_uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"PATH": f"{os.environ.get('PATH', '')}:{_SEARCH_PATH}", **shown, **daemon.env}


@contextlib.contextmanager
def _private(path: Path) -> Iterator[int]:
    """Open a file for output without following a link that the daemon's user may have created."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _output_line(output: Path) -> str:
    try:
        with output.open("rb") as file:
            lines = file.read(4 * _MAX_OUTPUT_CHARS).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "".join(c if c.isprintable() else "?" for c in lines[0][:_MAX_OUTPUT_CHARS]) if lines else ""


async def _appeared(daemon: MpsDaemon) -> MpsDaemon:
    async with asyncio.timeout(_START_TIMEOUT_S):
        while (found := _found(daemon)) is None:  # noqa: ASYNC110 - written by another program, without notification
            await asyncio.sleep(_POLL_INTERVAL_S)
    return found


def _found(daemon: MpsDaemon) -> MpsDaemon | None:
    """Return the daemon with the process named in its pid file, if it is one of its user's."""
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
    start_ticks = process_tree.start_time(pid) if pid > 1 and _owned(pid, daemon.uid) else None
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
                if process_tree.start_time(pid) == start_ticks and _owned(pid, uid):
                    signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)


async def _gone(processes: Mapping[int, int], timeout_s: float) -> bool:
    """Wait for the processes to end; return False if any is left."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while any(process_tree.start_time(pid) == start for pid, start in processes.items()):  # noqa: ASYNC110 - not our children, so there is no notification
                await asyncio.sleep(_POLL_INTERVAL_S)
            return True
    return False
