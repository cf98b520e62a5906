"""Names and identifiers: how they are formed, read and checked."""

from __future__ import annotations

import re
from typing import NewType

from gpupool.domain.errors import ErrorCode, GpupoolError

WorkloadId = NewType("WorkloadId", str)
Epoch = NewType("Epoch", int)
AttemptKey = NewType("AttemptKey", str)

ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letter that reads as a digit
ID_LENGTH = 10
NAME_LIMIT = 63
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,18}")
_ID = re.compile(rf"w[{ID_ALPHABET}]{{{ID_LENGTH}}}")


def workload_id(random_bits: int) -> WorkloadId:
    """An identifier like ``w3k9x2m4qp7``: ``w`` and 50 bits given by the caller (purity: no randomness here)."""
    chars = [ID_ALPHABET[(random_bits >> (5 * i)) & 31] for i in range(ID_LENGTH)]
    return WorkloadId("w" + "".join(chars))


def is_workload_id(text: str) -> bool:
    """Whether a text a user typed is an identifier rather than a name."""
    return _ID.fullmatch(text) is not None


def attempt_key(workload: WorkloadId, index: int, attempt: int) -> AttemptKey:
    """The name of one try at running one replica: ``w3k9x2m4qp7.0.1``; also its folder on the node."""
    return AttemptKey(f"{workload}.{index}.{attempt}")


def split_attempt_key(key: str) -> tuple[WorkloadId, int, int]:
    """The parts of ``attempt_key``; raises ``GpupoolError(INVALID_NAME)`` for anything else."""
    parts = key.split(".")
    if len(parts) != 3 or not is_workload_id(parts[0]) or not all(_COUNT.fullmatch(part) for part in parts[1:]):
        raise GpupoolError(
            ErrorCode.INVALID_NAME, f"'{key[:80]}' does not name a replica's attempt.", "It looks like w3k9x2m4qp7.0.1."
        )
    return WorkloadId(parts[0]), int(parts[1]), int(parts[2])


def check_name(text: str, what: str = "name") -> str:
    """The text itself if it can name a workload, project, user or label.

    Raises ``GpupoolError(INVALID_NAME)``: up to 63 letters, digits, ``.``, ``_`` and ``-``, beginning and ending with
    a letter or digit, and not of the form of an identifier.
    """
    if _NAME.fullmatch(text) is None or is_workload_id(text):
        raise GpupoolError(
            ErrorCode.INVALID_NAME,
            f"'{text[:80]}' cannot be a {what}.",
            f"Use up to {NAME_LIMIT} letters, digits, '.', '_' and '-'; begin and end with a letter or digit.",
        )
    return text
