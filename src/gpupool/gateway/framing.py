"""Find the end of a message body in a stream of bytes (RFC 9112, sections 6 and 7). Pure.

``feed`` takes received bytes and returns the index of the first byte after the body. Framing is stricter than the
RFC: a line ends with CR LF, and nothing is repaired. Another parser in the path can therefore not see another end.
"""

from __future__ import annotations

import re
from typing import Protocol

MAX_SIZE_LINE_BYTES = 512  # chunk size with extensions
MAX_TRAILER_BYTES = 8 << 10
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_SIZE_PART = re.compile(rb"[0-9A-Fa-f]{0,15}(?:(?<=[0-9A-Fa-f]);[\t\x20-\x7e\x80-\xff]*)?\r?")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class FramingError(ValueError):
    """Raised for bytes that are not a body in the announced form."""


class Framing(Protocol):
    """The end of one body. ``received`` counts the bytes of its content."""

    done: bool
    received: int

    def feed(self, data: bytes, start: int = 0, content: list[bytes] | None = None) -> int:
        """Consume bytes from ``start`` on; return the index after the body's last one.

        ``content`` gets the content without its framing. Raises ``FramingError``.
        """


class NoBody:
    """A message without a body."""

    __slots__ = ()
    done = True
    received = 0

    def feed(self, data: bytes, start: int = 0, content: list[bytes] | None = None) -> int:  # noqa: ARG002
        """Consume nothing."""
        return start


class LengthBody:
    """A body with a known length."""

    __slots__ = ("_length", "done", "received")

    def __init__(self, length: int) -> None:
        self._length = length
        self.received = 0
        self.done = length == 0

    def feed(self, data: bytes, start: int = 0, content: list[bytes] | None = None) -> int:
        """Consume up to the length."""
        end = min(len(data), start + self._length - self.received)
        if content is not None and end > start:
            content.append(data[start:end])
        self.received += end - start
        self.done = self.received == self._length
        return end


class BodyUntilClose:
    """A body that ends with the connection: only of responses."""

    __slots__ = ("done", "received")

    def __init__(self) -> None:
        self.done = False
        self.received = 0

    def feed(self, data: bytes, start: int = 0, content: list[bytes] | None = None) -> int:
        """Consume everything."""
        if content is not None:
            content.append(data[start:])
        self.received += len(data) - start
        return len(data)


_SIZE, _CONTENT, _CONTENT_END, _TRAILER = range(4)


class ChunkedBody:
    """A body in chunks. Trailers are refused unless allowed: a server may mistake them for headers."""

    __slots__ = ("_left", "_line", "_state", "_trailer_bytes", "_trailers", "done", "received")

    def __init__(self, *, trailers: bool = False) -> None:
        self._trailers = trailers
        self._state = _SIZE
        self._line = b""  # of a line that is not complete
        self._left = 0  # bytes of the present chunk
        self._trailer_bytes = 0
        self.done = False
        self.received = 0

    def feed(self, data: bytes, start: int = 0, content: list[bytes] | None = None) -> int:
        """Consume up to the end of the last chunk and its trailers."""
        size = len(data)
        while start < size and not self.done:
            if self._state == _CONTENT:
                end = min(size, start + self._left)
                if content is not None:
                    content.append(data[start:end])
                self._left -= end - start
                self.received += end - start
                start = end
                if not self._left:
                    self._state = _CONTENT_END
                continue
            end = data.find(b"\n", start) + 1
            line = self._line + data[start : end or size]
            if not end:
                self._check_part(line)
                self._line = line
                return size
            self._line, start = b"", end
            self._take_line(line)
        return start

    def _check_part(self, line: bytes) -> None:
        """Refuse an incomplete line early if it cannot become valid."""
        limit = {_SIZE: MAX_SIZE_LINE_BYTES, _CONTENT_END: 1, _TRAILER: MAX_TRAILER_BYTES}[self._state]
        possible = len(line) <= limit and b"\r" not in line[:-1]
        if self._state == _CONTENT_END:
            possible = line == b"\r"
        elif self._state == _SIZE:
            possible = possible and _SIZE_PART.fullmatch(line) is not None
        if not possible:
            raise FramingError("a line of the chunked body is not valid")

    def _take_line(self, line: bytes) -> None:
        if self._state == _SIZE:
            matched = _SIZE_LINE.fullmatch(line)
            if matched is None or len(line) > MAX_SIZE_LINE_BYTES:
                raise FramingError("the size of a chunk is not valid")
            self._left = int(matched[1], 16)
            self._state = _CONTENT if self._left else _TRAILER
        elif self._state == _CONTENT_END:
            if line != b"\r\n":
                raise FramingError("a chunk does not end after its size")
            self._state = _SIZE
        elif line == b"\r\n":
            self.done = True
        else:
            self._trailer_bytes += len(line)
            if not self._trailers or self._trailer_bytes > MAX_TRAILER_BYTES or not _TRAILER_LINE.fullmatch(line):
                raise FramingError("trailers are not accepted here, or not valid")


def chunk(content: bytes) -> bytes:
    """Return content as one chunk; nothing for no content, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(content), content) if content else b""


LAST_CHUNK = b"0\r\n\r\n"
