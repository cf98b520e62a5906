"""Ports of this machine that are kept free for programs that are about to start, so that no two get the same one."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence

from gpupool.domain.errors import ErrorCode, GpupoolError

FIRST, LAST = 20_000, 29_999  # below those that Linux gives to outgoing connections (32,768 and up)
KEPT_S = 600.0  # for a program that has not started yet
MOST_PORTS = 16  # of one program
_SIOCGIFADDR = 0x8915


class PortBook:
    """Which ports are promised to whom; ``in_use`` tells those of the programs that are there."""

    def __init__(self, in_use: Callable[[], Iterable[int]]) -> None:
        self._in_use = in_use
        self._promised: dict[str, tuple[tuple[int, ...], float]] = {}  # by key, with when

    def reserve(self, key: str, address: str, count: int, wanted: Sequence[int] = ()) -> tuple[int, ...]:
        """``count`` ports nobody listens on and nobody else is promised: those ``wanted`` if they are, else others.

        The same key gets the same again. Raises ``GpupoolError``: INVALID_COUNT, or NO_CAPACITY where none are left.
        """
        if not 0 <= count <= MOST_PORTS:
            raise GpupoolError(ErrorCode.INVALID_COUNT, f"A program can have {MOST_PORTS} ports at most.", "")
        self._forget(key)
        if key in self._promised and len(self._promised[key][0]) == count:
            return self._promised[key][0]
        taken = set(self._in_use()) | {port for ports, _ in self._promised.values() for port in ports}
        if len(wanted) == count and all(port not in taken and _free(address, port) for port in wanted):
            found = tuple(wanted)
        else:
            found = self._search(address, count, taken)
        self._promised[key] = (found, time.monotonic())
        return found

    def _search(self, address: str, count: int, taken: set[int]) -> tuple[int, ...]:
        first = random.randrange(FIRST, LAST + 1)  # noqa: S311 - a place to begin, no secret
        found: list[int] = []
        for step in range(LAST - FIRST + 1):
            if len(found) == count:
                return tuple(found)
            port = FIRST + (first - FIRST + step) % (LAST - FIRST + 1)
            if port not in taken and _free(address, port):
                found.append(port)
        raise GpupoolError(
            ErrorCode.NO_CAPACITY,
            f"No {count} ports from {FIRST} to {LAST} are free on the node.",
            "See `ss -ltn` on the node: something listens on all of them.",
        )

    def _forget(self, key: str) -> None:
        """What was promised long ago, and to earlier attempts of the same replica."""
        now, replica = time.monotonic(), key.rpartition(".")[0]
        self._promised = {
            k: (ports, at)
            for k, (ports, at) in self._promised.items()
            if now - at < KEPT_S and (k == key or k.rpartition(".")[0] != replica)
        }


def _free(address: str, port: int) -> bool:
    """Whether a program could listen there, on the address as on all of them."""
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
    """The name of the network interface that has an IPv4 address; empty where none does, or for IPv6."""
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
