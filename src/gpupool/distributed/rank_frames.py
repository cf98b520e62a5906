"""The protocol between a rank host and the programs that start commands through it.

The host sends a nonce. The client answers with its own nonce and proves that it knows the gang's secret; the host
proves the same. Then frames follow: kind, length, content. The secret is never sent, and a request is bound to both
nonces, so a recorded conversation cannot be replayed.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

NONCE_BYTES = 16
PROOF_BYTES = 32
MAX_FRAME_BYTES = 1 << 20  # content

COMMAND, INPUT, OUTPUT, ERRORS, EXIT = range(5)
_HEAD = struct.Struct("!BI")
HEAD_BYTES = _HEAD.size


def proof(secret: str, who: str, nonces: bytes, content: bytes = b"") -> bytes:
    """Return the proof that ``who`` knows the secret and sends ``content`` in this conversation."""
    return hmac.new(secret.encode(), who.encode() + b"\0" + nonces + content, hashlib.sha256).digest()


def proves(given: bytes, secret: str, who: str, nonces: bytes, content: bytes = b"") -> bool:
    """Return True if a proof is valid, in constant time."""
    return hmac.compare_digest(given, proof(secret, who, nonces, content))


def frame(kind: int, content: bytes) -> bytes:
    """Encode one frame."""
    return _HEAD.pack(kind, len(content)) + content


def head(data: bytes) -> tuple[int, int]:
    """Return kind and length of a frame from its header; raise ``ValueError`` if it is too long."""
    kind, length = _HEAD.unpack(data)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return kind, length
