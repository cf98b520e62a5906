"""The frames between a program's shepherd and whoever is attached to it.

One byte of kind, four bytes of length (big-endian), the payload. Pure functions over bytes; imports nothing but
``struct``, because the command line's fast path uses it.

A client says HELLO first, with JSON ``{"version": 1, "rows": 24, "columns": 80, "stdin": true}``; the shepherd answers
STARTED once the program runs. SIGNAL alone may be sent without a HELLO, on a connection of its own (useful when the
first one is clogged with input that the program does not read). A client that hangs up without DETACH is gone.

One whose way to the program may break adds ``"returns_s": 60``: it comes back within so long, and only then, or when
GONE was said for it, is it gone. GONE may shorten the time instead, by JSON ``{"returns_s": 10}``, where whoever
carried the stream knows that a client that lives must have heard of the break. Back again it says
``"seen": [stdout, stderr]``, the bytes that it has had of either, and goes on from there; the answer's ``stdin`` is how
many bytes of input had come from it until then.
"""

from __future__ import annotations

import struct

VERSION = 1
HEADER = struct.Struct(">BI")
LIMIT = 1 << 20  # bytes of payload

# From a client to the shepherd.
STDIN = 1  # bytes for the program
STDIN_EOF = 2  # no more of them
RESIZE = 3  # the terminal's new size: see pack_size
SIGNAL = 4  # one byte: the signal's number
DETACH = 5  # this client leaves, the program stays
HELLO = 6  # JSON, once, first
GONE = 7  # said for a client that will not come back, or not later than its JSON says, by who carried its stream

# From the shepherd to a client.
STDOUT = 65  # bytes of the program's output (all of a terminal's)
STDERR = 66
STARTED = 67  # JSON {"pid": 123, "stdin": 0}
EXIT = 68  # JSON: an ExitReport and the "status" a shell would show; the last frame
NOTE = 69  # text for the person at the other end

_SIZE = struct.Struct(">HH")


def encode(kind: int, payload: bytes = b"") -> bytes:
    """One frame; raises ``ValueError`` above ``LIMIT`` bytes."""
    if len(payload) > LIMIT:
        raise ValueError(f"a frame carries at most {LIMIT} bytes")
    return HEADER.pack(kind, len(payload)) + payload


def gone(returns_s: float = 0.0) -> bytes:
    """The frame GONE for a client that may be back within so many seconds, or never."""
    return encode(GONE, b'{"returns_s": %g}' % returns_s if returns_s else b"")


def decode(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Take all whole frames ``(kind, payload)`` off the front of a buffer; the rest stays for the next call.

    Raises ``ValueError`` when a frame announces more than ``LIMIT`` bytes: the peer speaks something else.
    """
    frames: list[tuple[int, bytes]] = []
    at = 0
    while len(buffer) - at >= HEADER.size:
        kind, length = HEADER.unpack_from(buffer, at)
        if length > LIMIT:
            raise ValueError(f"a frame of {length} bytes is above the limit of {LIMIT}")
        end = at + HEADER.size + length
        if len(buffer) < end:
            break
        frames.append((kind, bytes(buffer[at + HEADER.size : end])))
        at = end
    del buffer[:at]
    return frames


def pack_size(rows: int, columns: int) -> bytes:
    """The payload of RESIZE; sizes are clipped to what fits."""
    return _SIZE.pack(min(max(rows, 0), 0xFFFF), min(max(columns, 0), 0xFFFF))


def unpack_size(payload: bytes) -> tuple[int, int]:
    """``(rows, columns)``; raises ``ValueError`` for a payload of another length."""
    if len(payload) != _SIZE.size:
        raise ValueError("a window size has four bytes")
    rows, columns = _SIZE.unpack(payload)
    return rows, columns
