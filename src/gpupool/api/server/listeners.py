"""Listening sockets: the unix socket of the machine, and a TCP port for TLS."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from gpupool import unix_sockets
from gpupool.domain.errors import ErrorCode, GpupoolError


def listen_unix(path: Path, mode: int) -> socket.socket:
    """Listen on a unix socket at ``path``, replace an old socket, and set ``mode`` before it is visible.

    The caller must hold the lock for this path, so that no other process serves it. Paths of any length work. Raises
    ``GpupoolError(POOL_START_FAILED)``.
    """
    try:
        return unix_sockets.listen(path, mode=mode)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.POOL_START_FAILED,
            f"The socket {path} cannot be created: {error.strerror}.",
            "Check that its folder exists and is writable.",
        ) from error


def listen_tcp(host: str, port: int) -> socket.socket:
    """Listen on a TCP address (port 0: any free port).

    Raises ``GpupoolError``: PORT_TAKEN if another program listens there, POOL_START_FAILED without the right to use the
    port, INVALID_REQUEST for an address that this machine does not have.
    """
    if not 0 <= port <= 65535:
        raise _cannot_listen(host, port, OverflowError())
    sock: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(unix_sockets.BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise _cannot_listen(host, port, error) from error
    return sock


def _cannot_listen(host: str, port: int, error: Exception) -> GpupoolError:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return GpupoolError(
            ErrorCode.PORT_TAKEN,
            f"Port {port} of {host} is in use.",
            f"Choose another port with --listen, or stop the program that 'ss -ltnp sport = :{port}' shows.",
        )
    if number == errno.EACCES:
        return GpupoolError(
            ErrorCode.POOL_START_FAILED, f"This user may not listen on port {port}.", "Choose a port above 1023."
        )
    return GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"The pool cannot listen on {host}:{port}.",
        "Give an address of this machine, for example --listen 0.0.0.0:8443.",
    )
