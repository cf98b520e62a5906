"""Connections to ports on which a program listens, made as its user."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupool.blobs.rights import Rights, call_as
from gpupool.domain.errors import ErrorCode, GpupoolError

CONNECT_S = 10.0
_LISTEN = "0A"
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read from the kernel's table


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket of the machine: its address, port and number in the kernel."""

    address: str
    port: int
    inode: int


def connect(pids: frozenset[int], port: int, uid: int | None) -> socket.socket:
    """A connection to a port on which one of these processes listens; no other port of the machine can be reached.

    Made as the user: whoever asks the kernel who connects is told so. Raises ``GpupoolError`` (WRONG_STATE).
    """
    own = _sockets_of(pids)
    found = next((row for row in _listeners() if row.port == port and row.inode in own), None)
    if found is None:
        raise GpupoolError(
            ErrorCode.WRONG_STATE, f"No process of it listens on port {port}.", "Start the server first, or look again."
        )
    return call_as(uid, lambda rights: _connect(found, rights))


def _connect(listener: Listener, rights: Rights) -> socket.socket:
    address = _ANY.get(listener.address, listener.address)
    with rights.user():
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect((address, listener.port))
        sock.settimeout(0)
    except OSError as error:
        sock.close()
        raise GpupoolError(
            ErrorCode.WRONG_STATE, f"Port {listener.port} does not answer: {error.strerror or error}.", "Look again."
        ) from error
    return sock


def _sockets_of(pids: frozenset[int]) -> set[int]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - text is what follows
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - likewise
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return found


def _listeners() -> Iterator[Listener]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    address, _, port = words[1].partition(":")
                    yield Listener(_address(address), int(port, 16), int(words[9]))


def _address(text: str) -> str:
    """The kernel writes addresses as words in the machine's own order of bytes."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    address = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return address.removeprefix("::ffff:") if "." in address else address
