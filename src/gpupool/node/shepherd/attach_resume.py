"""Resume of a lost client connection: the output that it missed, and how much of its input had arrived."""

from __future__ import annotations

import time
from pathlib import Path

from gpupool.domain.protocol import frames
from gpupool.domain.protocol.log_records import ERR, OUT
from gpupool.node.shepherd import output_log
from gpupool.node.shepherd.attach import AttachConnection

MAX_REPLAY_BYTES = 8 << 20  # older output is only in the log
_KINDS = {OUT: frames.STDOUT, ERR: frames.STDERR}


class ResumeState:
    """Counts the bytes to and from a program's client, so that another connection can continue."""

    def __init__(self, folder: Path) -> None:
        self.deadline: float | None = None  # monotonic: until when to wait for the client of a bound program
        self.input_bytes = 0
        self._folder = folder
        self._output_bytes = {OUT: 0, ERR: 0}

    def put_out(self, stream: int, size: int) -> None:
        """Count delivered bytes of a stream."""
        self._output_bytes[stream] += size

    def wait_for(self, seconds: float) -> None:
        """Wait for the lost client of a bound program to return."""
        self.deadline = time.monotonic() + seconds

    def expired(self, now: float) -> bool:
        """Return True once, if the client has not returned in time."""
        if self.deadline is None or now < self.deadline:
            return False
        self.deadline = None
        return True

    def replay(self, connection: AttachConnection, seen: tuple[int, int]) -> None:
        """Send the missed output, oldest first, as far as the log has it."""
        left = {stream: max(0, self._output_bytes[stream] - had) for stream, had in zip((OUT, ERR), seen, strict=True)}
        missed = missed_output(self._folder, left)
        for stream, data in missed:
            left[stream] -= len(data)
        if lost := sum(left.values()):
            connection.send(frames.NOTE, f"{lost} bytes of output are omitted here; see the log".encode())
        for stream, data in missed:
            connection.send(_KINDS[stream], data)


def missed_output(folder: Path, left: dict[int, int]) -> list[tuple[int, bytes]]:
    """Return the last ``left`` bytes of each stream, as pieces in the order in which they were written."""
    left, room = dict(left), MAX_REPLAY_BYTES
    found: list[tuple[int, bytes]] = []
    for data, piece in output_log.backwards(folder) if any(left.values()) else ():
        wanted = min(left[piece.stream], room)
        if wanted:
            part = data[max(piece.begin, piece.end - wanted) : piece.end]
            found.append((piece.stream, part))
            left[piece.stream] -= len(part)
            room -= len(part)
        if not room or not any(left.values()):
            break
    return found[::-1]
