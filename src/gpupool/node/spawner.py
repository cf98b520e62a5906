"""A tiny fork server: it has everything a shepherd needs in memory and does nothing but fork.

Started by the agent over a SOCK_SEQPACKET pair on descriptor 0. A request is one packet: the replica's folder, with
two descriptors (the lock, the listening attach socket); the answer is the shepherd's pid. It ends when the agent does;
shepherds do not.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from pathlib import Path

from gpupool.node.birth import become_shepherd

PACKET_LIMIT = 8192  # bytes
_DESCRIPTORS = 2


def serve(control: socket.socket) -> None:
    """Fork a shepherd for every request until the other side hangs up."""
    while True:
        data, fds, _flags, _address = socket.recv_fds(control, PACKET_LIMIT, _DESCRIPTORS)
        for fd in fds:  # the program must hold neither the lock nor the door
            os.set_inheritable(fd, False)  # noqa: FBT003 - the call takes no names
        if not data:
            return
        if len(fds) != _DESCRIPTORS:
            _close_all(fds)
            control.send(b"-1")
            continue
        control.send(str(_fork(control, data, fds)).encode())


def _fork(control: socket.socket, data: bytes, fds: list[int]) -> int:
    """The pid of a new shepherd, or minus the error number."""
    try:
        pid = os.fork()
    except OSError as error:
        _close_all(fds)
        return -(error.errno or 1)
    if pid == 0:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        become_shepherd(Path(os.fsdecode(data)), socket.socket(fileno=fds[1]))
    _close_all(fds)
    return pid


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def main() -> None:
    """Take descriptor 0 as the control socket and serve it."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's keys are for the agent, whose end is ours
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the shepherds
    gc.collect()
    gc.freeze()
    serve(control)


if __name__ == "__main__":
    main()
