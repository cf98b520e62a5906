"""A program's output on the node's disk and on the network: small consecutive records.

A record is eight bytes of nanoseconds since the epoch, one byte of stream, four bytes of length (big-endian), and the
payload. On the way to a client, each batch of records is followed by a *mark*: a record of stream 0 with the cursor
after the batch. A mark without bytes says that the answer is complete. Pure functions over bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

RECORD = struct.Struct(">QBI")
MARK = 0
OUT = 1
ERR = 2
STREAMS = {OUT: "out", ERR: "err"}
MAX_RECORD_BYTES = 1 << 20  # bytes; a longer length means that this is not a record
MAX_BATCH_BYTES = 2 * MAX_RECORD_BYTES  # bytes of a batch, regardless of the requested number
MAX_MARK_BYTES = 64  # bytes of a cursor
WHOLE = RECORD.pack(0, MARK, 0)


class LogChunk(NamedTuple):
    """A piece of a program's output: ``stream`` is ``out`` or ``err``; ``cursor`` is where the next one begins."""

    at: float
    stream: str
    data: bytes
    cursor: str


class LogRecord(NamedTuple):
    """One record: its time in nanoseconds, its stream, and the bounds of its payload."""

    nanoseconds: int
    stream: int
    begin: int
    end: int


def parse_records(data: bytes) -> Iterator[LogRecord]:
    """Yield the complete records at the front of some bytes, up to a torn or invalid one."""
    at, size = 0, len(data)
    while at + RECORD.size <= size:
        nanoseconds, stream, length = RECORD.unpack_from(data, at)
        begin, at = at + RECORD.size, at + RECORD.size + length
        if stream not in STREAMS or length > MAX_RECORD_BYTES or at > size:
            return
        yield LogRecord(nanoseconds, stream, begin, at)


class LogBatch(NamedTuple):
    """Consecutive complete records in a segment of a log; ``after`` is the offset of the next record there."""

    segment: int
    after: int
    data: bytes

    @property
    def cursor(self) -> str:
        """Return the cursor of the next record."""
        return f"{self.segment}:{self.after}"

    def chunks(self) -> Iterator[LogChunk]:
        """Yield the records, each with the cursor after it."""
        base = self.after - len(self.data)
        for at, stream, begin, end in parse_records(self.data):
            yield LogChunk(at / 1e9, STREAMS[stream], self.data[begin:end], f"{self.segment}:{base + end}")

    def output(self) -> bytes:
        """Return the program's output, both streams in their order."""
        return b"".join([self.data[piece.begin : piece.end] for piece in parse_records(self.data)])

    def runs(self) -> Iterator[tuple[str, bytes]]:
        """Yield the output grouped by stream: ``out`` or ``err`` and the bytes."""
        for stream, together in groupby(parse_records(self.data), attrgetter("stream")):
            yield STREAMS[stream], b"".join([self.data[piece.begin : piece.end] for piece in together])

    def since(self, moment: float) -> list[LogBatch]:
        """Return the records not older than ``moment`` (seconds since the epoch), in as few batches as possible."""
        base, kept = self.after - len(self.data), list[LogBatch]()
        begin = end = 0
        for piece in parse_records(self.data):
            if piece.nanoseconds / 1e9 < moment:
                kept += self._part(base, begin, end)
                begin = piece.end
            end = piece.end
        return kept + self._part(base, begin, end)

    def _part(self, base: int, begin: int, end: int) -> list[LogBatch]:
        return [LogBatch(self.segment, base + end, self.data[begin:end])] if end > begin else []

    def encode(self) -> bytes:
        """Return the records and their mark."""
        cursor = self.cursor.encode()
        return b"".join((self.data, RECORD.pack(0, MARK, len(cursor)), cursor))


def skips_segments(cursor: str, later: str) -> bool:
    """Return whether a segment between a cursor (empty: the start) and a later one was deleted.

    Segments have consecutive numbers from 1. The oldest are deleted when a log reaches its size limit.
    """
    return _segment(later) > _segment(cursor) + 1


def _segment(cursor: str) -> int:
    number = cursor.partition(":")[0]
    return int(number) if number.isdecimal() else 0


class LogDecoder:
    """Parses the bytes of an answer, in pieces of any size, into batches."""

    def __init__(self) -> None:
        self.whole = False  # whether the answer has ended with its final mark
        self._buffer = bytearray()
        self._looked = 0  # bytes of complete records at the front

    def feed(self, data: bytes) -> list[LogBatch]:
        """Return the batches that are complete now; raise ``ValueError`` if the bytes are not such an answer."""
        self._buffer += data
        found, begin, at = list[LogBatch](), 0, self._looked
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
        bounds = {MARK: MAX_MARK_BYTES, OUT: MAX_RECORD_BYTES, ERR: MAX_RECORD_BYTES}
        if self.whole or length > bounds.get(stream, -1) or size > MAX_BATCH_BYTES + MAX_MARK_BYTES:
            raise ValueError("the answer is not program output in the format of a pool")

    def _marked(self, begin: int, at: int, end: int) -> list[LogBatch]:
        cursor = self._buffer[at + RECORD.size : end].decode("ascii")
        if not cursor:
            self.whole = True
            return []
        segment, _, after = cursor.partition(":")
        return [LogBatch(int(segment), int(after), bytes(self._buffer[begin:at]))]


ERROR_LINE = (
    r"\b(?:[A-Za-z_.]*(?:Error|Exception)\b|ERROR|FATAL|CRITICAL|error:|fatal:|Traceback \(most recent call last\)"
    r"|panic:|core dumped|Segmentation fault|Killed|[Oo]ut of memory|No such file or directory)"
)
