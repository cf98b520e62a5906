"""Selection of lines from output: those that match, with lines around them, as ``grep -C`` does."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")  # a carriage return is part of its line
SEPARATOR = b"--\n"
MAX_LINE_BYTES = 1 << 20  # bytes of an incomplete line; it is then taken as a line

Line = tuple[str, bytes, float]  # the stream, the line with its end, and its time


@dataclass(slots=True)
class LineFilter:
    """Yields the matching lines of two streams with ``context`` lines around them. ``found`` counts matches.

    Escape sequences are not searched, and stay in what is yielded.
    """

    pattern: re.Pattern[bytes]
    context: int = 0
    found: int = 0
    _open: dict[str, tuple[bytearray, float]] = field(default_factory=dict)
    _before: deque[Line] = field(default_factory=deque)
    _after: int = 0
    _skipped: bool = False

    def feed(self, stream: str, data: bytes, at: float) -> Iterator[Line]:
        """Take output in any pieces, and yield complete lines."""
        for piece in _LINES.findall(data):
            buffer, begun = self._open.setdefault(stream, (bytearray(), at))
            buffer += piece
            if piece.endswith(b"\n") or len(buffer) > MAX_LINE_BYTES:
                del self._open[stream]
                yield from self._take((stream, bytes(buffer), begun))

    def finish(self) -> Iterator[Line]:
        """Yield what the incomplete last lines add."""
        for stream, (buffer, at) in list(self._open.items()):
            yield from self._take((stream, bytes(buffer) + b"\n", at))
        self._open.clear()

    def _take(self, line: Line) -> Iterator[Line]:
        if self.pattern.search(_ESCAPES.sub(b"", line[1])):
            if self._skipped and self.context and self.found:
                yield "out", SEPARATOR, 0.0
            yield from self._before
            yield line
            self._before.clear()
            self.found, self._after, self._skipped = self.found + 1, self.context, False
        elif self._after:
            self._after -= 1
            yield line
        else:
            self._before.append(line)
            if len(self._before) > self.context:
                self._before.popleft()
                self._skipped = True


@dataclass(frozen=True, slots=True)
class LineSearch:
    """A search with one filter for each member whose output is printed."""

    pattern: re.Pattern[bytes]
    context: int = 0
    _filters: list[LineFilter] = field(default_factory=list)

    def filter(self) -> LineFilter:
        """Return the filter for one member."""
        self._filters.append(LineFilter(self.pattern, self.context))
        return self._filters[-1]

    @property
    def found(self) -> int:
        """Return the number of matching lines so far."""
        return sum(each.found for each in self._filters)
