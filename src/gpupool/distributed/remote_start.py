"""A replacement of ssh for ``mpirun``: ``remote_start HOST COMMAND...`` through a member's rank host.

Its exit status is the command's; 255, as with ssh, if the host cannot be reached. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # the pool runs this file with a Python that need not know the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpupool.distributed import rank_frames as f

CONNECT_TIMEOUT_S = 60.0  # members do not start at exactly the same time
RETRY_DELAY_S = 0.2
UNREACHABLE = 255
PIECE = 64 << 10


def start(host: str, command: str) -> int:
    """Run a command in the member called ``host``; return its exit status."""
    hosts = json.loads(os.environ.get("GPUPOOL_GANG_HOSTS", "{}"))
    secret = os.environ.get("GPUPOOL_GANG_SECRET", "")
    if host not in hosts or not secret:
        sys.stderr.write(f"{host} is not a member of this gang.\n")
        return UNREACHABLE
    try:
        with _reach(hosts[host][0], hosts[host][1]) as sock:
            _greet(sock, secret, command)
            return _carry(sock)
    except (OSError, EOFError, ValueError) as error:
        sys.stderr.write(f"{host} cannot be reached at {hosts[host][0]}:{hosts[host][1]}: {error}\n")
        return UNREACHABLE


def _reach(address: str, port: int) -> socket.socket:
    """Return a connection, as soon as the member listens."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            sock = socket.create_connection((address, port), timeout=10.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_DELAY_S)
        else:
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return sock


def _greet(sock: socket.socket, secret: str, command: str) -> None:
    """Authenticate both sides and send the command."""
    own = os.urandom(f.NONCE_BYTES)
    nonces = _exactly(sock, f.NONCE_BYTES) + own
    sock.sendall(own + f.proof(secret, "starter", nonces))
    if not f.proves(_exactly(sock, f.PROOF_BYTES), secret, "host", nonces):
        raise ValueError("it does not belong to this gang")
    content = command.encode("utf-8", "surrogateescape")
    sock.sendall(f.frame(f.COMMAND, f.proof(secret, "command", nonces, content) + content))


def _carry(sock: socket.socket) -> int:
    """Copy input and output until the command ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        _watch_input(selector)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sock:
                    kind, length = f.head(_exactly(sock, f.HEAD_BYTES))
                    content = _exactly(sock, length)
                    if kind == f.EXIT:
                        return content[0]
                    _write_all(1 if kind == f.OUTPUT else 2, content)
                else:
                    data = os.read(0, PIECE)
                    sock.sendall(f.frame(f.INPUT, data))
                    if not data:
                        selector.unregister(0)


def _watch_input(selector: selectors.BaseSelector) -> None:
    with contextlib.suppress(OSError, ValueError):  # a file, or closed: nothing to wait for
        selector.register(0, selectors.EVENT_READ)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _exactly(sock: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = sock.recv(count - len(found))
        if not data:
            raise EOFError("it closed the connection")
        found += data
    return bytes(found)


def main() -> int:
    """Run ``remote_start HOST COMMAND...``; the words of the command are joined as ssh does."""
    if len(sys.argv) < 3:
        sys.stderr.write("usage: remote_start HOST COMMAND...\n")
        return 2
    return start(sys.argv[1], " ".join(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
