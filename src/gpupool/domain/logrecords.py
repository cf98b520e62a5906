"""A program's output as it lies on the node's disk, and as it travels: small records, one after another.

A record is eight bytes of nanoseconds since the epoch, one of stream, four of length (big-endian), and the bytes. On
the way to a client each stretch of them is followed by a *mark*, a record of stream 0 whose bytes are the cursor after
the stretch; a mark without bytes says that the answer is whole. Pure functions over bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from gpupool.domain.supervision import LogChunk

RECORD = struct.Struct(">QBI")
MARK = 0
OUT = 1
ERR = 2
STREAMS = {OUT: "out", ERR: "err"}
PAYLOAD_LIMIT = 1 << 20  # bytes; a record that announces more is not one
STRETCH_LIMIT = 2 * PAYLOAD_LIMIT  # bytes that a stretch may have, whatever was asked for
MARK_LIMIT = 64  # bytes of a cursor
WHOLE = RECORD.pack(0, MARK, 0)


class Piece(NamedTuple):
    """One record: its time in nanoseconds, its stream, and where its bytes begin and end."""

    nanoseconds: int
    stream: int
    begin: int
    end: int


def pieces(data: bytes) -> Iterator[Piece]:
    """The whole records at the front of some bytes, up to what is torn or no record of output."""
    at, size = 0, len(data)
    while at + RECORD.size <= size:
        nanoseconds, stream, length = RECORD.unpack_from(data, at)
        begin, at = at + RECORD.size, at + RECORD.size + length
        if stream not in STREAMS or length > PAYLOAD_LIMIT or at > size:
            return
        yield Piece(nanoseconds, stream, begin, at)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole records that lie one after another in a segment of a log; ``after``: the offset of the next one there."""

    segment: int
    after: int
    data: bytes

    @property
    def cursor(self) -> str:
        """Where the next one begins."""
        return f"{self.segment}:{self.after}"

    def chunks(self) -> Iterator[LogChunk]:
        """The records one by one, each with the cursor after it."""
        base = self.after - len(self.data)
        for at, stream, begin, end in pieces(self.data):
            yield LogChunk(at / 1e9, STREAMS[stream], self.data[begin:end], f"{self.segment}:{base + end}")

    def output(self) -> bytes:
        """What the program wrote, both streams as they came."""
        return b"".join([self.data[piece.begin : piece.end] for piece in pieces(self.data)])

    def runs(self) -> Iterator[tuple[str, bytes]]:
        """The same, what is of one stream together: ``out`` or ``err`` and the bytes."""
        for stream, together in groupby(pieces(self.data), attrgetter("stream")):
            yield STREAMS[stream], b"".join([self.data[piece.begin : piece.end] for piece in together])

    def since(self, moment: float) -> list[Stretch]:
        """What is not older than ``moment`` (seconds since the epoch), in as few stretches as it takes."""
        base, kept = self.after - len(self.data), list[Stretch]()
        begin = end = 0
        for piece in pieces(self.data):
            if piece.nanoseconds / 1e9 < moment:
                kept += self._part(base, begin, end)
                begin = piece.end
            end = piece.end
        return kept + self._part(base, begin, end)

    def _part(self, base: int, begin: int, end: int) -> list[Stretch]:
        return [Stretch(self.segment, base + end, self.data[begin:end])] if end > begin else []

    def encode(self) -> bytes:
        """The records and their mark."""
        cursor = self.cursor.encode()
        return b"".join((self.data, RECORD.pack(0, MARK, len(cursor)), cursor))


class Decoder:
    """Stretches out of the bytes of an answer, in pieces of any size."""

    def __init__(self) -> None:
        self.whole = False  # whether the answer has said that this was all
        self._buffer = bytearray()
        self._looked = 0  # bytes of whole records at the front

    def feed(self, data: bytes) -> list[Stretch]:
        """The stretches that are complete now; raises ``ValueError`` for what is no such answer."""
        self._buffer += data
        found, begin, at = list[Stretch](), 0, self._looked
        while at + RECORD.size <= len(self._buffer):
            _, stream, length = RECORD.unpack_from(self._buffer, at)
            end = at + RECORD.size + length
            self._check(stream, length, end - begin)
            if end > len(self._buffer):
                break
            if stream == MARK:
                found += self._marked(begin, at, end)
                begin = end
            at = end
        del self._buffer[:begin]
        self._looked = at - begin
        return found

    def _check(self, stream: int, length: int, size: int) -> None:
        bounds = {MARK: MARK_LIMIT, OUT: PAYLOAD_LIMIT, ERR: PAYLOAD_LIMIT}
        if self.whole or length > bounds.get(stream, -1) or size > STRETCH_LIMIT + MARK_LIMIT:
            raise ValueError("this is not the output of a program as a pool sends it")

    def _marked(self, begin: int, at: int, end: int) -> list[Stretch]:
        cursor = self._buffer[at + RECORD.size : end].decode("ascii")
        if not cursor:
            self.whole = True
            return []
        segment, _, after = cursor.partition(":")
        return [Stretch(int(segment), int(after), bytes(self._buffer[begin:at]))]
