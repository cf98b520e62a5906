"""A program's output on disk: append-only segments of small records, read by cursor.

A folder holds ``000001.log``, ``000002.log``, ... in the format of ``domain.protocol.log_records``. A segment has at
most an eighth of the size limit; the oldest segments are deleted beyond the limit. A cursor is ``segment:offset`` of a
record, or ``segment:offset:skip`` to skip its first bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.log_records import MAX_RECORD_BYTES, RECORD, LogBatch, LogRecord, parse_records

SEGMENTS = 8
MIB = 1 << 20
# Output must leave space for the records by which the pool notices that a program ended and frees its GPUs.
MAX_RESERVE_BYTES = 64 * MIB
RESERVE_DIVISOR = 16
MAX_LINE_BYTES = 500  # of a line in a message


def _segment_path(folder: Path, number: int) -> str:
    return f"{folder}/{number:06d}.log"


def segments(folder: Path) -> list[int]:
    """Return the numbers of the segments, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only
    except OSError:
        return []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


class LogWriter:
    """Appends records and never raises; records that cannot be written are dropped and ``note`` is set."""

    def __init__(self, folder: Path, limit_mib: int) -> None:
        self.note = ""
        self._folder = folder
        self._segment_limit = max(1, limit_mib) * MIB // SEGMENTS
        self._fd: int | None = None
        self._number = 0
        self._size = 0

    def write(self, stream: int, data: bytes) -> None:
        """Write one record (several for large ``data``)."""
        piece = min(MAX_RECORD_BYTES, self._segment_limit // 2)
        for at in range(0, len(data), piece):
            self._write_record(stream, data[at : at + piece])

    def _write_record(self, stream: int, payload: bytes) -> None:
        record = RECORD.pack(time.time_ns(), stream, len(payload)) + payload
        try:
            if self._fd is None or self._size + len(record) > self._segment_limit:
                self._next_segment()
            self._append(record)
        except OSError as error:
            self._failed(error)

    def _append(self, record: bytes) -> None:
        assert self._fd is not None  # noqa: S101 - for the type checker
        disk = os.fstatvfs(self._fd)
        reserve = min(MAX_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_DIVISOR)
        if disk.f_bavail * disk.f_frsize < reserve + len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(self._fd, record)
        if written < len(record):  # the disk is (nearly) full: remove the incomplete record
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(record)

    def _next_segment(self) -> None:
        if self._fd is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._number = max(segments(self._folder), default=0)
        number = self._number + 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fresh = os.open(_segment_path(self._folder, number), flags, 0o600)
        self.close()
        self._fd, self._number, self._size = fresh, number, 0
        for old in segments(self._folder)[:-SEGMENTS]:
            os.unlink(_segment_path(self._folder, old))  # noqa: PTH108 - plain strings keep the shepherd cheap

    def _failed(self, error: OSError) -> None:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        self.note = f"log truncated: {'disk full' if full else os.strerror(error.errno or 0)}"

    def close(self) -> None:
        """Close the current segment."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a log; ``skip`` bytes of the record there are omitted."""

    segment: int = 0
    offset: int = 0
    skip: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the output of ``str``; empty is the beginning. Raises ``GpupoolError(INVALID_REQUEST)``."""
        parts = text.split(":") if text else []
        if len(text) > 64 or len(parts) > 3 or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"'{text[:40]}' is not a log cursor.",
                "Use a cursor from an earlier answer, or none to start at the beginning.",
            )
        return cls(*(int(p) for p in parts))

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}" + (f":{self.skip}" if self.skip else "")


def read(folder: Path, cursor: str, limit: int) -> list[LogBatch]:
    """Return about ``limit`` bytes of records from a cursor (at least one record); empty at the end of the log.

    A cursor into a deleted segment continues with the oldest segment. An incomplete record at the end of a segment is
    omitted. Raises ``GpupoolError(INVALID_REQUEST)`` for an invalid cursor.
    """
    place = Cursor.parse(cursor)
    found: list[LogBatch] = []
    room = max(1, limit)
    for number in segments(folder):
        if number < place.segment:
            continue
        at = place if number == place.segment else Cursor(number)
        while room > 0 and (batch := _read_segment(folder, at, room)) is not None:
            found.append(batch)
            room -= len(batch.data)
            at = Cursor(number, batch.after)
    return found


def _read_segment(folder: Path, place: Cursor, room: int) -> LogBatch | None:
    try:
        file = open(_segment_path(folder, place.segment), "rb", buffering=0)  # noqa: PTH123, SIM115 - closed below
    except OSError:
        return None
    skip = min(place.skip, MAX_RECORD_BYTES)
    with file:
        file.seek(place.offset)
        data = _whole_records(file, room + skip)
    after = place.offset + len(data)
    data = _without(data, skip) if skip and data else data
    if data or after == place.offset:
        return LogBatch(place.segment, after, data) if data else None
    return _read_segment(folder, Cursor(place.segment, after), room)


def _whole_records(file: FileIO, room: int) -> bytes:
    """Return the complete records that fit, or the first one alone."""
    data = _read_up_to(file, room)
    end = _end(data)
    if end == 0 and len(data) == room:  # the first one is longer
        data += _read_up_to(file, MAX_RECORD_BYTES + RECORD.size)
        end = next((piece.end for piece in parse_records(data)), 0)
    return data[:end]


def _read_up_to(file: FileIO, size: int) -> bytes:
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _end(data: bytes) -> int:
    """Return the offset at which the complete records end."""
    end = 0
    for piece in parse_records(data):
        end = piece.end
    return end


def _without(data: bytes, skip: int) -> bytes:
    """Return all but the first bytes of the first record."""
    nanoseconds, stream, begin, end = next(parse_records(data))
    rest = data[begin + skip : end]
    return (RECORD.pack(nanoseconds, stream, len(rest)) + rest if rest else b"") + data[end:]


def backwards(folder: Path) -> Iterator[tuple[bytes, LogRecord]]:
    """Yield all records, newest first, each with the data in which it lies."""
    for number in reversed(segments(folder)):
        data = _whole_segment(folder, number)
        for piece in reversed(list(parse_records(data))):
            yield data, piece


def last_line(folder: Path) -> str:
    """Return the last line that is not blank, without the bytes before the last ``MAX_LINE_BYTES``; else ''."""
    text = b""
    for data, (_, _, begin, end) in backwards(folder):
        text = (data[begin:end] + text)[-MAX_LINE_BYTES:]
        if len(text) == MAX_LINE_BYTES or b"\n" in text.strip():
            break
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def tail(folder: Path, lines: int) -> str:
    """Return the cursor before the last ``lines`` lines (fewer if the log has fewer)."""
    present = segments(folder)
    wanted = max(0, lines)
    last = True
    for number in reversed(present):
        data = _whole_segment(folder, number)
        records = list(parse_records(data))
        if wanted == 0:
            return str(Cursor(number, records[-1].end if records else 0))
        for _, _, begin, end in reversed(records):
            if last and data[end - 1 : end] == b"\n":
                wanted += 1  # a newline at the very end does not start another line
            last = False
            count = data.count(b"\n", begin, end)
            if count >= wanted:
                skip = _after_newline(data[begin:end], count - wanted)
                return str(Cursor(number, begin - RECORD.size, skip))
            wanted -= count
    return str(Cursor(present[0])) if present else ""


def _whole_segment(folder: Path, number: int) -> bytes:
    try:
        return Path(_segment_path(folder, number)).read_bytes()
    except OSError:
        return b""


def _after_newline(data: bytes, skipped: int) -> int:
    """Return the offset after newline number ``skipped`` (from 0) of ``data``."""
    at = -1
    for _ in range(skipped + 1):
        at = data.index(b"\n", at + 1)
    return at + 1


def size(folder: Path) -> int:
    """Return the bytes on disk."""
    total = 0
    for number in segments(folder):
        with contextlib.suppress(OSError):
            total += os.stat(_segment_path(folder, number)).st_size  # noqa: PTH116 - plain strings, many files
    return total
