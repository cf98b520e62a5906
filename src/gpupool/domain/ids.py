"""Names and identifiers: how to create, parse and check them."""

from __future__ import annotations

import re
from typing import NewType

from gpupool.domain.errors import ErrorCode, GpupoolError

WorkloadId = NewType("WorkloadId", str)
Epoch = NewType("Epoch", int)
AttemptKey = NewType("AttemptKey", str)

ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letter that looks like a digit
ID_LENGTH = 10
ID_BITS = 5 * ID_LENGTH
MAX_NAME_LENGTH = 63
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,18}")
_ID = re.compile(rf"w[{ID_ALPHABET}]{{{ID_LENGTH}}}")


def workload_id(random_bits: int) -> WorkloadId:
    """Return an identifier like ``w3k9x2m4qp7``: ``w`` and ``ID_BITS`` random bits, which the caller supplies."""
    chars = [ID_ALPHABET[(random_bits >> (5 * i)) & 31] for i in range(ID_LENGTH)]
    return WorkloadId("w" + "".join(chars))


def is_workload_id(text: str) -> bool:
    """Return whether a user's text is an identifier and not a name."""
    return _ID.fullmatch(text) is not None


def workspace_id(random_bits: int) -> str:
    """Return the identifier of a workspace, like ``h3k9x2m4qp7``, from ``ID_BITS`` random bits."""
    return "h" + workload_id(random_bits)[1:]


def is_workspace_id(text: str) -> bool:
    """Return whether a text is the identifier of a workspace or of a snapshot."""
    return text.startswith("h") and is_workload_id("w" + text[1:])


def service_id(random_bits: int) -> str:
    """Return the identifier of a service, like ``s3k9x2m4qp7``, from ``ID_BITS`` random bits."""
    return "s" + workload_id(random_bits)[1:]


def attempt_key(workload: WorkloadId, index: int, attempt: int) -> AttemptKey:
    """Return the key of one attempt of one replica: ``w3k9x2m4qp7.0.1``. It also names its folder on the node."""
    return AttemptKey(f"{workload}.{index}.{attempt}")


def split_attempt_key(key: str) -> tuple[WorkloadId, int, int]:
    """Split an ``attempt_key`` into its parts; raise ``GpupoolError(INVALID_NAME)`` for any other text."""
    parts = key.split(".")
    if len(parts) != 3 or not is_workload_id(parts[0]) or not all(_COUNT.fullmatch(part) for part in parts[1:]):
        raise GpupoolError(
            ErrorCode.INVALID_NAME, f"'{key[:80]}' does not name a replica's attempt.", "Write it like w3k9x2m4qp7.0.1."
        )
    return WorkloadId(parts[0]), int(parts[1]), int(parts[2])


def check_name(text: str, what: str = "name") -> str:
    """Return the text if it can name a workload, project, user or label.

    A name has up to 63 letters, digits, ``.``, ``_`` and ``-``. It begins and ends with a letter or digit and does not
    have the form of an identifier. Raises ``GpupoolError(INVALID_NAME)``.
    """
    if _NAME.fullmatch(text) is None or is_workload_id(text):
        raise GpupoolError(
            ErrorCode.INVALID_NAME,
            f"'{text[:80]}' cannot be a {what}.",
            f"Use up to {MAX_NAME_LENGTH} letters, digits, '.', '_' and '-'; begin and end with a letter or digit.",
        )
    return text
