"""A client whose connection broke comes back: what it has missed meanwhile, and how much of its input had arrived."""

from __future__ import annotations

import time
from pathlib import Path

from gpupool.domain import frames
from gpupool.domain.logrecords import ERR, OUT
from gpupool.node import logs
from gpupool.node.viewers import Viewer

MOST_MISSED_BYTES = 8 << 20  # sent again to who comes back: what is older is in the log
_KINDS = {OUT: frames.STDOUT, ERR: frames.STDERR}


class Returning:
    """Counts what goes to a program's client and comes from it, so that another connection can go on with it."""

    def __init__(self, folder: Path) -> None:
        self.deadline: float | None = None  # monotonic: until then the client of a bound program is waited for
        self.input_bytes = 0
        self._folder = folder
        self._output_bytes = {OUT: 0, ERR: 0}

    def put_out(self, stream: int, size: int) -> None:
        """So much was delivered of a stream."""
        self._output_bytes[stream] += size

    def wait_for(self, seconds: float) -> None:
        """The client of a bound program is lost and may come back."""
        self.deadline = time.monotonic() + seconds

    def passed(self, now: float) -> bool:
        """Whether it has not come in time; said once."""
        if self.deadline is None or now < self.deadline:
            return False
        self.deadline = None
        return True

    def welcome(self, viewer: Viewer, seen: tuple[int, int]) -> None:
        """Send what it has missed, oldest first, as far as the log has it."""
        left = {stream: max(0, self._output_bytes[stream] - had) for stream, had in zip((OUT, ERR), seen, strict=True)}
        missed = missed_of(self._folder, left)
        for stream, data in missed:
            left[stream] -= len(data)
        if lost := sum(left.values()):
            viewer.send(frames.NOTE, f"{lost} bytes of output are left out here; see its log".encode())
        for stream, data in missed:
            viewer.send(_KINDS[stream], data)


def missed_of(folder: Path, left: dict[int, int]) -> list[tuple[int, bytes]]:
    """The last so many bytes of each stream, as pieces in the order in which they were written."""
    left, room = dict(left), MOST_MISSED_BYTES
    found: list[tuple[int, bytes]] = []
    for data, piece in logs.backwards(folder) if any(left.values()) else ():
        wanted = min(left[piece.stream], room)
        if wanted:
            part = data[max(piece.begin, piece.end - wanted) : piece.end]
            found.append((piece.stream, part))
            left[piece.stream] -= len(part)
            room -= len(part)
        if not room or not any(left.values()):
            break
    return found[::-1]
