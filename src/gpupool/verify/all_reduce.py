"""All-reduce over a ring of TCP connections, with the reduction on the CPU.

Each member sends to the next one and receives from the previous one. In ``count - 1`` steps each member gets one part
reduced over all members, and in as many steps the parts go round (the ring algorithm of NCCL and Horovod). So each
member sends ``2 (count - 1) / count`` of the data: this part divided by the time is the *bus bandwidth*, which does not
depend on the number of members. The reduction is a bitwise exclusive or, whose result is exact.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

try:
    import numpy as np
except ImportError:  # a node needs Python only
    np = None  # type: ignore[assignment]

PATTERN_BYTES = 1 << 20
METHOD = "TCP ring, reduced on the CPU by " + ("Python" if np is None else "NumPy")


class ReduceRing:
    """One member of a ring, with its connections to the next and from the previous member."""

    def __init__(self, rank: int, count: int, to_next: socket.socket, from_previous: socket.socket) -> None:
        self.rank = rank
        self.count = count
        self._to_next = to_next
        self._from_previous = from_previous
        self._sender = ThreadPoolExecutor(1)

    def reduce(self, data: bytearray) -> None:
        """Replace the data by the exclusive or of the data of all members. Raises ``OSError``."""
        whole, parts = memoryview(data), part_bounds(len(data), self.count)
        received = memoryview(bytearray(max(end - begin for begin, end in parts)))
        for step in range(self.count - 1):
            sent, kept = self._part(whole, parts, -step), self._part(whole, parts, -step - 1)
            self._exchange(sent, received[: len(kept)])
            combine(kept, received[: len(kept)])
        for step in range(self.count - 1):
            self._exchange(self._part(whole, parts, 1 - step), self._part(whole, parts, -step))

    def _part(self, whole: memoryview, parts: Sequence[tuple[int, int]], offset: int) -> memoryview:
        begin, end = parts[(self.rank + offset) % self.count]
        return whole[begin:end]

    def _exchange(self, sent: memoryview, received: memoryview) -> None:
        """Send and receive at the same time, because all members do both."""
        sending = self._sender.submit(self._to_next.sendall, sent)
        at = 0
        while at < len(received):
            size = self._from_previous.recv_into(received[at:])
            if not size:
                raise ConnectionError("the previous member closed the connection")
            at += size
        sending.result()

    def close(self) -> None:
        """Close both connections."""
        self._to_next.close()
        self._from_previous.close()
        self._sender.shutdown()


def part_bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Return begin and end of each part of the data."""
    return [(size * part // count, size * (part + 1) // count) for part in range(count)]


def combine(kept: memoryview, other: memoryview) -> None:
    """Replace ``kept`` by the exclusive or of both."""
    if np is None:
        value = int.from_bytes(kept, "little") ^ int.from_bytes(other, "little")
        kept[:] = value.to_bytes(len(kept), "little")
        return
    mine = np.frombuffer(kept, np.uint8)
    np.bitwise_xor(mine, np.frombuffer(other, np.uint8), out=mine)


def pattern(rank: int) -> bytes:
    """Return the data of a member, which is repeated up to the size."""
    return random.Random(rank).randbytes(PATTERN_BYTES)  # noqa: S311 - a reproducible pattern


def expected(count: int) -> bytes:
    """Return the reduced data of all members."""
    data = bytearray(pattern(0))
    for rank in range(1, count):
        combine(memoryview(data), memoryview(pattern(rank)))
    return bytes(data)


def measure_ring(ring: ReduceRing, size_mib: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of each round, and whether all results are correct. Raises ``OSError``.

    The first round is not counted: members begin it at different moments.
    """
    own, wanted = pattern(ring.rank) * size_mib, expected(ring.count) * size_mib
    seconds, correct = [], True
    for _ in range(rounds + 1):
        data = bytearray(own)
        begun = time.monotonic()
        ring.reduce(data)
        seconds.append(time.monotonic() - begun)
        correct = correct and data == wanted
    return {"seconds": seconds[1:], "correct": correct}
