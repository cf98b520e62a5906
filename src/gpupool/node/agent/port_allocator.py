"""Ports of programs: reserved before they start, and connected to while they listen; also their Unix sockets."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.blobs.run_as_user import UserRights, call_as
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.supervision import ListeningPort

FIRST_PORT, LAST_PORT = 20_000, 29_999  # below the range of outgoing connections in Linux (32,768 and up)
RESERVATION_S = 600.0  # for a program that has not started yet
MAX_PORTS = 16  # per program
MAX_LISTED_PORTS = 256
_SIOCGIFADDR = 0x8915
CONNECT_TIMEOUT_S = 10.0
_LISTEN = "0A"
_UNIX_LISTENS = 0x10000  # __SO_ACCEPTCON in the flags of /proc/net/unix
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read from the kernel's table


class PortAllocator:
    """The reserved ports by program; ``in_use`` returns the ports of running programs."""

    def __init__(self, in_use: Callable[[], Iterable[int]]) -> None:
        self._in_use = in_use
        self._reserved: dict[str, tuple[tuple[int, ...], float]] = {}  # by key, with the time

    def reserve(self, key: str, address: str, count: int, wanted: Sequence[int] = ()) -> tuple[int, ...]:
        """Reserve ``count`` free ports: those ``wanted`` if all are free, else others.

        The same key gets the same ports again. Raises ``GpupoolError``: INVALID_COUNT, or NO_CAPACITY if too few are
        free.
        """
        if not 0 <= count <= MAX_PORTS:
            raise GpupoolError(ErrorCode.INVALID_COUNT, f"A program can have {MAX_PORTS} ports at most.", "")
        self._forget(key)
        if key in self._reserved and len(self._reserved[key][0]) == count:
            return self._reserved[key][0]
        taken = set(self._in_use()) | {port for ports, _ in self._reserved.values() for port in ports}
        if len(wanted) == count and all(port not in taken and _free(address, port) for port in wanted):
            found = tuple(wanted)
        else:
            found = self._search(address, count, taken)
        self._reserved[key] = (found, time.monotonic())
        return found

    def _search(self, address: str, count: int, taken: set[int]) -> tuple[int, ...]:
        first = random.randrange(FIRST_PORT, LAST_PORT + 1)  # noqa: S311 - a place to start, no secret
        found: list[int] = []
        for step in range(LAST_PORT - FIRST_PORT + 1):
            if len(found) == count:
                return tuple(found)
            port = FIRST_PORT + (first - FIRST_PORT + step) % (LAST_PORT - FIRST_PORT + 1)
            if port not in taken and _free(address, port):
                found.append(port)
        raise GpupoolError(
            ErrorCode.NO_CAPACITY,
            f"No {count} ports from {FIRST_PORT} to {LAST_PORT} are free on the node.",
            "See which programs listen on them: run `ss -ltn` on the node.",
        )

    def _forget(self, key: str) -> None:
        """Drop old reservations, and those of earlier attempts of the same replica."""
        now, replica = time.monotonic(), key.rpartition(".")[0]
        self._reserved = {
            k: (ports, at)
            for k, (ports, at) in self._reserved.items()
            if now - at < RESERVATION_S and (k == key or k.rpartition(".")[0] != replica)
        }


def _free(address: str, port: int) -> bool:
    """Return True if a program could listen on the port, on this address and on all addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for host in (address, ""):
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
            except OSError:
                return False
    return True


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an IPv4 address; empty if none, or for IPv6."""
    try:
        wanted = ipaddress.IPv4Address(address)
    except ValueError:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
            except OSError:
                continue  # no address of this family
            own = ipaddress.IPv4Address(answer[20:24])
            if own == wanted or (own.is_loopback and wanted.is_loopback):
                return name
    return ""


@dataclass(frozen=True, slots=True)
class PortListener:
    """A listening socket: its address, port and inode."""

    address: str
    port: int
    inode: int


def connect_port(pids: frozenset[int], port: int, uid: int | None) -> socket.socket:
    """Connect to a port on which one of these processes listens; other ports cannot be reached.

    The socket belongs to the user, so the kernel reports that user as the peer. Raises ``GpupoolError`` (WRONG_STATE).
    """
    found = next((row for row, _pid in _listeners_of(pids) if row.port == port), None)
    if found is None:
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"No process of the job listens on port {port}.",
            "Start the server, then retry.",
        )
    return call_as(uid, lambda rights: _connect(found, rights))


def connect_socket(pids: frozenset[int], path: str, uid: int | None) -> socket.socket | None:
    """Connect to the Unix socket ``path`` on which one of these processes listens, with the rights of the user.

    The path is that inside the program's container, if it has one. Return None if no process listens there (yet).
    """
    pid = _listener_on(pids, path)
    if pid is None:
        return None
    with contextlib.suppress(OSError):
        return call_as(uid, lambda rights: _connect_socket(pid, path, rights))
    return None


def _listener_on(pids: frozenset[int], path: str) -> int | None:
    """Return a process that listens on a Unix socket of this path; processes of others cannot pretend to."""
    inodes = set[int]()
    with contextlib.suppress(OSError):
        table = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape")
        for line in table.splitlines()[1:]:
            words = line.split(maxsplit=7)
            if len(words) == 8 and words[7] == path and int(words[3], 16) & _UNIX_LISTENS:
                inodes.add(int(words[6]))
    owners = [pid for inode, found in _sockets_of(pids).items() if inode in inodes for pid in found] if inodes else []
    return min(owners, key=_started, default=None)


def _connect_socket(pid: int, path: str, rights: UserRights) -> socket.socket:
    folder = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with rights.user():
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(CONNECT_TIMEOUT_S)
                sock.connect(f"/proc/self/fd/{folder}/{path.lstrip('/')}")
            except OSError:
                sock.close()
                raise
        sock.settimeout(0)
        return sock
    finally:
        os.close(folder)


def listening_ports(pids: frozenset[int]) -> list[ListeningPort]:
    """Return the ports on which these processes listen, those of the process that started first at the beginning."""
    found = [(_started(pid), ListeningPort(row.port, row.address, pid, _name(pid))) for row, pid in _listeners_of(pids)]
    found.sort(key=lambda row: (row[0], row[1].port, row[1].address))
    return [port for _, port in found[:MAX_LISTED_PORTS]]


def _listeners_of(pids: frozenset[int]) -> Iterator[tuple[PortListener, int]]:
    """Yield the listening sockets of these processes, each with the first process that has it."""
    own = _sockets_of(pids)
    for row in _listeners():
        if row.inode in own:
            yield row, min(own[row.inode], key=_started)


def _started(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot; a large number if it has ended."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except OSError:
        return sys.maxsize


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _connect(listener: PortListener, rights: UserRights) -> socket.socket:
    address = _ANY.get(listener.address, listener.address)
    with rights.user():
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        sock.connect((address, listener.port))
        sock.settimeout(0)
    except OSError as error:
        sock.close()
        raise GpupoolError(
            ErrorCode.WRONG_STATE, f"Port {listener.port} does not answer: {error.strerror or error}.", "Retry."
        ) from error
    return sock


def _sockets_of(pids: frozenset[int]) -> dict[int, list[int]]:
    """Return the processes of each socket, by its inode."""
    found: dict[int, list[int]] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - strings are needed
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - strings are needed
                    if target.startswith("socket:["):
                        found.setdefault(int(target[8:-1]), []).append(pid)
    return found


def _listeners() -> Iterator[PortListener]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    address, _, port = words[1].partition(":")
                    yield PortListener(_address(address), int(port, 16), int(words[9]))


def _address(text: str) -> str:
    """Parse an address from the kernel, which writes words in the machine's byte order."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    address = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return address.removeprefix("::ffff:") if "." in address else address
