"""What is done with one order to run a program: judged, written down, its shepherd told of a signal."""

from __future__ import annotations

import os
import socket

from gpupool.domain import frames
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.supervision import ProcessSpec
from gpupool.node.containers.box import Box
from gpupool.node.journal import say
from gpupool.node.paths import ReplicaFolder, socket_name
from gpupool.node.record import Order


def beside(one: ProcessSpec, other: ProcessSpec) -> bool:
    """Whether two programs are the same, or the same user's on the same lease."""
    return one.key == other.key or (one.lease == other.lease != 0 and one.uid == other.uid)


def check_spec(spec: ProcessSpec) -> None:
    """Raises INVALID_REQUEST for what no process can be given, FORBIDDEN for a user that this node cannot become."""
    texts = (*spec.argv, spec.cwd, *spec.env, *spec.env.values())
    nothing = not spec.argv and spec.container is None
    if nothing or any("\0" in text for text in texts) or any("=" in name or not name for name in spec.env):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "The command or its environment cannot be handed to a process.",
            "Give a program, without zero bytes, and variables with names.",
        )
    own = os.geteuid()
    if own != 0 and spec.uid is not None and spec.uid != own:
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"This node runs programs as user {own} only, not {spec.uid}.",
            "Run the pool as root to serve several users.",
        )


def write_order(folder: ReplicaFolder, order: Order, box: Box | None) -> None:
    """Into the folder of its attempt. Raises OSError."""
    folder.path.mkdir(mode=0o700, exist_ok=True)
    if box is not None:
        box.write(folder)  # first: a container's program without it would be a plain process
    order.write(folder)


def send_signal(path: str, signum: int) -> None:
    """Tell the shepherd behind a socket; one that has gone needs to be told nothing."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, socket_name(path) as name:
            sock.settimeout(5.0)
            sock.connect(name)
            sock.sendall(frames.encode(frames.SIGNAL, bytes([signum])))
    except OSError as error:
        say("signal not delivered", path=path, signum=signum, error=str(error))
