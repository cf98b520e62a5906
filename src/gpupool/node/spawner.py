"""A small fork server: it has imported all modules that a shepherd needs, and only forks.

The agent starts it with one end of a SOCK_SEQPACKET pair as descriptor 0. A request is one packet: the folder of the
replica, with two descriptors (the lock and the listening attach socket) for a shepherd, or one (a connection) for a
check by a command. The answer is the pid of the new process. The fork server ends when the agent ends; shepherds
continue.
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import os
import signal
import socket
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gpupool.domain.decode import prepare
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessSpec
from gpupool.node.host.child import become_subreaper
from gpupool.node.host.paths import ReplicaFolder, boot_id
from gpupool.node.host.priority import protect_session
from gpupool.node.host.records import StartRequest, read_exit, write_exit
from gpupool.node.runners.container import execution as _loaded_before_forks  # noqa: F401 - by name in requests
from gpupool.node.shepherd.command_check import run_check
from gpupool.node.shepherd.shepherd import Shepherd

PACKET_LIMIT = 8192  # bytes
_DESCRIPTORS = 2
_CHECK_DESCRIPTORS = 1


def serve(control: socket.socket) -> None:
    """Fork a shepherd for each request until the agent closes the connection."""
    while True:
        data, fds, _flags, _address = socket.recv_fds(control, PACKET_LIMIT, _DESCRIPTORS)
        for fd in fds:  # the program must inherit neither the lock nor the listener
            os.set_inheritable(fd, False)  # noqa: FBT003 - the call takes no names
        if not data:
            return
        if len(fds) not in {_DESCRIPTORS, _CHECK_DESCRIPTORS}:
            _close_all(fds)
            control.send(b"-1")
            continue
        control.send(str(_fork(control, data, fds)).encode())


def _fork(control: socket.socket, data: bytes, fds: list[int]) -> int:
    """Return the pid of a new shepherd or check, or the negative error number."""
    try:
        pid = os.fork()
    except OSError as error:
        _close_all(fds)
        return -(error.errno or 1)
    if pid == 0:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        folder = Path(os.fsdecode(data))
        if len(fds) == _CHECK_DESCRIPTORS:
            become_check(folder, socket.socket(fileno=fds[0]))
        become_shepherd(folder, socket.socket(fileno=fds[1]))
    _close_all(fds)
    return pid


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def main() -> None:
    """Use descriptor 0 as the control socket and serve requests."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP):  # keys of a terminal are for the agent; we end when it ends
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the shepherds
    load_before_forks()
    gc.collect()
    gc.freeze()
    serve(control)


def load_before_forks() -> None:
    """Load what each shepherd would load again."""
    codecs.lookup("ascii")
    prepare(ProcessSpec, GpuShare)


def become_shepherd(path: Path, listener: socket.socket) -> NoReturn:
    """Run a shepherd in a freshly forked process, then exit. The lock is one of its descriptors."""
    folder = ReplicaFolder(path)
    try:
        os.setsid()
        protect_session()
        _detach_streams()
        become_subreaper()
        request = StartRequest.read(folder)
        if request is not None and read_exit(folder) is None:
            Shepherd(folder, replace(request, boot_id=boot_id()), listener).run()
    except BaseException as error:  # noqa: BLE001 - the agent notices that we are gone and reads the traceback
        _record_failure(folder, error)
    finally:
        os._exit(0)


def become_check(path: Path, connection: socket.socket) -> NoReturn:
    """Run one check in a freshly forked process, then exit; without an answer, the agent sees the closed connection."""
    try:
        os.setsid()
        protect_session()
        _detach_streams()
        become_subreaper()
        run_check(ReplicaFolder(path), connection)
    finally:
        os._exit(0)


def _record_failure(folder: ReplicaFolder, error: BaseException) -> None:
    """Record the failure. If there is no record yet, nothing was started and the attempt has ended."""
    with contextlib.suppress(OSError):
        folder.failure.write_text(traceback.format_exc(), encoding="utf-8")
    if not folder.shepherd.exists():
        with contextlib.suppress(OSError):
            why = f"The shepherd process failed: {error}"
            write_exit(folder, ExitReport(ExitReason.START_FAILED, None, None, why, time.time()))


def _detach_streams() -> None:
    """Replace the standard streams, so that the agent's terminal and pipes are not held open."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for target in (0, 1, 2):
        os.dup2(null, target)
    os.close(null)


if __name__ == "__main__":
    main()
