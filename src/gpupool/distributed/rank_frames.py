"""What a rank host and those who start programs through it say to each other.

The host sends a nonce; the other side answers with one of its own and proves that it knows the gang's secret; the host
proves the same. Then come frames: a kind, a length, the content. The secret itself never travels, and a request is
bound to both nonces, so what somebody else recorded is of no use.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

NONCE_BYTES = 16
PROOF_BYTES = 32
MOST_BYTES = 1 << 20  # of one frame

COMMAND, INPUT, OUTPUT, ERRORS, EXIT = range(5)
_HEAD = struct.Struct("!BI")
HEAD_BYTES = _HEAD.size


def proof(secret: str, who: str, nonces: bytes, content: bytes = b"") -> bytes:
    """That ``who`` knows the secret, and says ``content`` in this conversation and in no other."""
    return hmac.new(secret.encode(), who.encode() + b"\0" + nonces + content, hashlib.sha256).digest()


def proves(given: bytes, secret: str, who: str, nonces: bytes, content: bytes = b"") -> bool:
    """Whether a proof is right; takes as long when it is wrong."""
    return hmac.compare_digest(given, proof(secret, who, nonces, content))


def frame(kind: int, content: bytes) -> bytes:
    """One frame as it travels."""
    return _HEAD.pack(kind, len(content)) + content


def head(data: bytes) -> tuple[int, int]:
    """Kind and length of the frame that begins so; raises ``ValueError`` for one that is too long."""
    kind, length = _HEAD.unpack(data)
    if length > MOST_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return kind, length
