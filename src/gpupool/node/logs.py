"""A program's output on disk: append-only segments of small records, read by cursor.

A folder holds ``000001.log``, ``000002.log``, ... of ``domain.logrecords``. The newest segment is cut at an eighth of
the limit, the oldest are deleted beyond it. A cursor is ``segment:offset`` of a record, or ``segment:offset:skip`` to
leave out its first bytes.
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
from gpupool.domain.logrecords import PAYLOAD_LIMIT, RECORD, Piece, Stretch, pieces

SEGMENTS = 8
MIB = 1 << 20
# Output must not take the room in which the pool writes that a program has ended and its GPUs are free.
MOST_RESERVE_BYTES = 64 * MIB
RESERVED_PART = 16


def _segment_path(folder: Path, number: int) -> str:
    return f"{folder}/{number:06d}.log"


def segments(folder: Path) -> list[int]:
    """The numbers of the segments present, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only
    except OSError:
        return []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


class LogWriter:
    """Appends records; never raises: what cannot be written is dropped and ``note`` says so."""

    def __init__(self, folder: Path, limit_mib: int) -> None:
        self.note = ""
        self._folder = folder
        self._segment_limit = max(1, limit_mib) * MIB // SEGMENTS
        self._fd: int | None = None
        self._number = 0
        self._size = 0

    def write(self, stream: int, data: bytes) -> None:
        """One record per call (more when ``data`` is large)."""
        piece = min(PAYLOAD_LIMIT, self._segment_limit // 2)
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
        reserve = min(MOST_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVED_PART)
        if disk.f_bavail * disk.f_frsize < reserve + len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(self._fd, record)
        if written < len(record):  # the disk is full, or nearly: leave no torn record for the next one to follow
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
        """Let go of the segment."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a log; ``skip`` bytes of the record there are left out."""

    segment: int = 0
    offset: int = 0
    skip: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read what ``str`` gives; empty is the beginning. Raises ``GpupoolError(INVALID_REQUEST)``."""
        parts = text.split(":") if text else []
        if len(text) > 64 or len(parts) > 3 or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"'{text[:40]}' is not a place in a log.",
                "Use a cursor that an earlier answer gave, or none to begin at the beginning.",
            )
        return cls(*(int(p) for p in parts))

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}" + (f":{self.skip}" if self.skip else "")


def read(folder: Path, cursor: str, limit: int) -> list[Stretch]:
    """About ``limit`` bytes of records from a cursor (at least one if there is one); empty when there is no more.

    A cursor into a deleted segment moves on to the oldest one present; a torn record at the end of a segment is left
    out. Raises ``GpupoolError(INVALID_REQUEST)`` for what is no cursor.
    """
    place = Cursor.parse(cursor)
    found: list[Stretch] = []
    room = max(1, limit)
    for number in segments(folder):
        if number < place.segment:
            continue
        at = place if number == place.segment else Cursor(number)
        while room > 0 and (stretch := _read_segment(folder, at, room)) is not None:
            found.append(stretch)
            room -= len(stretch.data)
            at = Cursor(number, stretch.after)
    return found


def _read_segment(folder: Path, place: Cursor, room: int) -> Stretch | None:
    try:
        file = open(_segment_path(folder, place.segment), "rb", buffering=0)  # noqa: PTH123, SIM115 - closed below
    except OSError:
        return None
    skip = min(place.skip, PAYLOAD_LIMIT)
    with file:
        file.seek(place.offset)
        data = _whole_records(file, room + skip)
    after = place.offset + len(data)
    data = _without(data, skip) if skip and data else data
    if data or after == place.offset:
        return Stretch(place.segment, after, data) if data else None
    return _read_segment(folder, Cursor(place.segment, after), room)


def _whole_records(file: FileIO, room: int) -> bytes:
    """As many as have room, or the first one alone."""
    data = _read_up_to(file, room)
    end = _end(data)
    if end == 0 and len(data) == room:  # the first one is longer
        data += _read_up_to(file, PAYLOAD_LIMIT + RECORD.size)
        end = next((piece.end for piece in pieces(data)), 0)
    return data[:end]


def _read_up_to(file: FileIO, size: int) -> bytes:
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _end(data: bytes) -> int:
    """Where the whole records at the front of some bytes end."""
    end = 0
    for piece in pieces(data):
        end = piece.end
    return end


def _without(data: bytes, skip: int) -> bytes:
    """All but the first bytes of the first record."""
    nanoseconds, stream, begin, end = next(pieces(data))
    rest = data[begin + skip : end]
    return (RECORD.pack(nanoseconds, stream, len(rest)) + rest if rest else b"") + data[end:]


def backwards(folder: Path) -> Iterator[tuple[bytes, Piece]]:
    """All records, newest first, each with the bytes in which it lies."""
    for number in reversed(segments(folder)):
        data = _whole_segment(folder, number)
        for piece in reversed(list(pieces(data))):
            yield data, piece


def tail(folder: Path, lines: int) -> str:
    """The cursor from which the last ``lines`` lines follow (fewer when the log has fewer)."""
    present = segments(folder)
    wanted = max(0, lines)
    last = True
    for number in reversed(present):
        data = _whole_segment(folder, number)
        records = list(pieces(data))
        if wanted == 0:
            return str(Cursor(number, records[-1].end if records else 0))
        for _, _, begin, end in reversed(records):
            if last and data[end - 1 : end] == b"\n":
                wanted += 1  # the newline at the very end closes a line and begins none
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
    """The place after newline number ``skipped`` (from 0) of ``data``."""
    at = -1
    for _ in range(skipped + 1):
        at = data.index(b"\n", at + 1)
    return at + 1


def size(folder: Path) -> int:
    """Bytes on disk."""
    total = 0
    for number in segments(folder):
        with contextlib.suppress(OSError):
            total += os.stat(_segment_path(folder, number)).st_size  # noqa: PTH116 - plain strings, many files
    return total
