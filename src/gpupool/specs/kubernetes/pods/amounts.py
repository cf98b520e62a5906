"""Quantities in Kubernetes' format: ``500m`` processors, ``4Gi`` or ``4G`` of memory."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.reading import ManifestView

_AMOUNT = re.compile(r"([+-]?[0-9]{0,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?)([numkMGTPE]|[KMGTPE]i)?")
_SUFFIX = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
MIB = 2**20


def amount(value: ManifestView) -> Decimal | None:
    """Return the number of a quantity; record a fault and return None if it is invalid or negative."""
    text = value.scalar()
    match = _AMOUNT.fullmatch(text)
    number = match.group(1) if match else ""
    if match is None or not any(c.isdigit() for c in number.lower().partition("e")[0]) or number.startswith("-"):
        value.refuse(f"is '{text[:40]}', which is not a quantity.", "Write it like 500m, 2, 512Mi or 4Gi.")
        return None
    return Decimal(number) * _SUFFIX[match.group(2) or ""]


def processors(value: ManifestView) -> float | None:
    """Return the processors in ``2`` or ``500m``; None for none."""
    found = amount(value)
    return float(found) if found else None


def memory_mib(value: ManifestView) -> int | None:
    """Return the MiB, rounded up, in ``4Gi`` or a number of bytes; None for none."""
    found = amount(value)
    return math.ceil(found / MIB) if found else None


def whole(value: ManifestView, most: int = 1_000_000) -> int | None:
    """Return a whole number; record a fault and return None if it is not one."""
    found = amount(value)
    if found is None:
        return None
    if found != found.to_integral_value() or found > most:
        value.refuse("must be a whole number.", code=ErrorCode.INVALID_COUNT)
        return None
    return int(found)
