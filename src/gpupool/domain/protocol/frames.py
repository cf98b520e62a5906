"""The frames between a program's shepherd and its attached clients.

One byte of kind, four bytes of length (big-endian), the payload. Pure functions over bytes. Imports only ``struct``,
because the fast path of the command line uses it.

A client sends HELLO first, with JSON ``{"version": 1, "rows": 24, "columns": 80, "stdin": true}``; the shepherd answers
STARTED once the program runs. Only SIGNAL may be sent without a HELLO, on its own connection (useful when the first
one is blocked by input that the program does not read), and NOTE by the agent, for all attached clients. A client that
disconnects without DETACH is gone.

A client whose connection may break adds ``"returns_s": 60``: it is gone only if it does not reconnect within that time,
or if GONE is sent for it. GONE may shorten the time by JSON ``{"returns_s": 10}``, when the process that carried the
stream knows that a live client must have noticed the break. A reconnecting client sends ``"seen": [stdout, stderr]``,
the bytes that it has received of each stream, and the output continues from there. ``stdin`` in the answer is the
number of bytes of input received from it so far.

A connection to a port uses the same frames between control plane and agent, without HELLO: STDIN, STDIN_EOF, STDOUT and
STDOUT_EOF. Each direction ends on its own.
"""

from __future__ import annotations

import struct

VERSION = 1
HEADER = struct.Struct(">BI")
MAX_PAYLOAD_BYTES = 1 << 20  # bytes of payload

# From a client to the shepherd.
STDIN = 1  # bytes for the program
STDIN_EOF = 2  # end of input
RESIZE = 3  # the terminal's new size; see pack_size
SIGNAL = 4  # one byte: the signal's number
DETACH = 5  # this client leaves, the program continues
HELLO = 6  # JSON, once, first
GONE = 7  # sent by the carrier of a stream: its client will not return, or not later than its JSON says

# From the shepherd to a client.
STDOUT = 65  # bytes of the program's output (with a terminal: all output)
STDERR = 66
STARTED = 67  # JSON {"pid": 123, "stdin": 0}
EXIT = 68  # JSON: an ExitReport and the "status" a shell would show; the last frame
NOTE = 69  # text for the user of the client; the agent sends it to the shepherd
STDOUT_EOF = 70  # only from a port: the program has ended its sending side

_SIZE = struct.Struct(">HH")


def encode(kind: int, payload: bytes = b"") -> bytes:
    """Return one frame; raise ``ValueError`` above ``MAX_PAYLOAD_BYTES``."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a frame carries at most {MAX_PAYLOAD_BYTES} bytes")
    return HEADER.pack(kind, len(payload)) + payload


def gone_frame(returns_s: float = 0.0) -> bytes:
    """Return the frame GONE for a client that may return within some seconds, or never."""
    return encode(GONE, b'{"returns_s": %g}' % returns_s if returns_s else b"")


def decode(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Remove all complete frames ``(kind, payload)`` from the front of a buffer; the rest stays for the next call.

    Raises ``ValueError`` for a frame longer than ``MAX_PAYLOAD_BYTES``: the peer uses another protocol.
    """
    frames: list[tuple[int, bytes]] = []
    at = 0
    while len(buffer) - at >= HEADER.size:
        kind, length = HEADER.unpack_from(buffer, at)
        if length > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a frame of {length} bytes is above the limit of {MAX_PAYLOAD_BYTES}")
        end = at + HEADER.size + length
        if len(buffer) < end:
            break
        frames.append((kind, bytes(buffer[at + HEADER.size : end])))
        at = end
    del buffer[:at]
    return frames


def pack_size(rows: int, columns: int) -> bytes:
    """Return the payload of RESIZE; sizes are clipped to 16 bits."""
    return _SIZE.pack(min(max(rows, 0), 0xFFFF), min(max(columns, 0), 0xFFFF))


def unpack_size(payload: bytes) -> tuple[int, int]:
    """Return ``(rows, columns)``; raise ``ValueError`` for a payload of another length."""
    if len(payload) != _SIZE.size:
        raise ValueError("a window size has four bytes")
    rows, columns = _SIZE.unpack(payload)
    return rows, columns
