"""Parsing and formatting of quantities: durations, sizes, shares of a GPU.

Internally a share of one GPU is an integer number of thousandths (``permille``): sums are exact, and the sum over a
GPU can be compared with 1000 without a tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from gpupool.domain.errors import ErrorCode, GpupoolError

WHOLE_GPU = 1000  # permille
MAX_GPUS_PERMILLE = 1_000_000 * WHOLE_GPU
MAX_QUANTITY_LENGTH = 40  # of a quantity in user input
MAX_DURATION_S = 10 * 366 * 86400
MAX_NAMED_HOLDERS = 3  # of a GPU in a list

_DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?")
_SIZE_UNITS = {"": 1, "m": 1, "mi": 1, "mb": 1, "mib": 1, "g": 1024, "gi": 1024, "gb": 1024, "gib": 1024}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_duration_s(text: str) -> float:
    """Return the seconds in ``90``, ``30s``, ``30m``, ``1h30m``, ``2d``; a bare number is seconds.

    Raises ``GpupoolError(INVALID_DURATION)`` for other text, zero, or more than ten years.
    """
    cleaned = text.strip().lower().replace(" ", "") if len(text) <= MAX_QUANTITY_LENGTH else ""
    parts = list(_DURATION.finditer(cleaned))
    if not parts or "".join(m.group(0) for m in parts) != cleaned:
        raise _bad_duration(text)
    total = sum(float(m.group(1)) * _DURATION_UNITS[m.group(2) or ""] for m in parts)
    if not 0 < total <= MAX_DURATION_S:
        raise _bad_duration(text)
    return total


def _bad_duration(text: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_DURATION,
        f"'{text[:40]}' is not a duration.",
        "Write it like 30s, 20m, 1h30m or 2d.",
    )


def format_duration(seconds: float | None, *, tenths: bool = False) -> str:
    """Return a short form for people: ``42s``, ``3m10s``, ``2h05m``, ``4d03h``; ``-`` for none.

    ``tenths``: below ten seconds with a tenth, such as ``0.3s`` or ``<0.1s``, where a zero would be wrong.
    """
    if seconds is None:
        return "-"
    if tenths and 0 < seconds < 9.95:
        return "<0.1s" if seconds < 0.05 else f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    if minutes:
        return f"{minutes}m{secs:02d}s"
    return f"{secs}s"


def parse_memory_mib(text: str) -> int:
    """Return the MiB in ``2048``, ``2048M``, ``4G``, ``1.5GiB``; a bare number is MiB.

    Raises ``GpupoolError(INVALID_SIZE)`` for other text, zero, or less than a MiB.
    """
    match = _SIZE.fullmatch(text.strip()) if len(text) <= MAX_QUANTITY_LENGTH else None
    unit = _SIZE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None or float(match.group(1)) * unit < 1:
        raise GpupoolError(
            ErrorCode.INVALID_SIZE,
            f"'{text[:40]}' is not an amount of memory.",
            "Write MiB as a number (2048) or with a unit (4G).",
        )
    return int(float(match.group(1)) * unit)


def parse_fraction(text: str) -> int:
    """Return the thousandths of a GPU in ``0.1``, ``1``, ``25%``: from 0.001 to 1.

    Raises ``GpupoolError(INVALID_FRACTION)`` outside (0, 1] and for parts smaller than a thousandth.
    """
    cleaned = text.strip()
    try:
        value = Decimal(cleaned[:-1]) / 100 if cleaned.endswith("%") else Decimal(cleaned)
        return fraction_to_permille(value)
    except (ArithmeticError, ValueError) as error:
        raise _bad_fraction(text) from error


def fraction_to_permille(value: Decimal | float) -> int:
    """Return the thousandths in a numeric fraction; see ``parse_fraction`` for the errors."""
    exact = Decimal(str(value)) * WHOLE_GPU
    if not exact.is_finite() or not 0 < exact <= WHOLE_GPU or exact != exact.to_integral_value():
        raise _bad_fraction(str(value))
    return int(exact)


def parse_gpus(text: str) -> int:
    """Return the thousandths in a number of GPUs: ``2``, ``0.5``, ``12.25``; 0 or more, in steps of 0.001.

    Raises ``GpupoolError(INVALID_COUNT)``.
    """
    try:
        permille = round(float(text) * WHOLE_GPU, 6)
    except ValueError:
        permille = -1.0
    if not (0 <= permille <= MAX_GPUS_PERMILLE and permille.is_integer()):
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a number of GPUs.", "Write 2, 0.5 or none.")
    return int(permille)


def _bad_fraction(text: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_FRACTION,
        f"'{text[:40]}' is not a fraction of a GPU.",
        "Give a number above 0 and up to 1 in steps of 0.001, for example 0.1 for a tenth.",
    )


def format_permille(permille: int) -> str:
    """Return a share for people: ``1.00``, ``0.50``, ``0.025``."""
    text = f"{permille / WHOLE_GPU:.3f}"
    return text.removesuffix("0")


def format_holders(held: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return phrases about the (user, workload, permille) that hold a GPU.

    One for each workload, ``ann/train 0.50`` or for several replicas ``ann/sweep x50 1.00``; with more workloads than
    ``MAX_NAMED_HOLDERS`` one for each user with several, ``ann 0.80 (20 workloads)``.
    """
    by_user: dict[str, dict[str, list[int]]] = {}
    for user, name, permille in held:
        by_user.setdefault(user, {}).setdefault(name, []).append(permille)
    many = sum(map(len, by_user.values())) > MAX_NAMED_HOLDERS
    phrases = []
    for user, workloads in by_user.items():
        if many and len(workloads) > 1:
            total = sum(map(sum, workloads.values()))
            phrases.append(f"{user} {format_permille(total)} ({len(workloads)} workloads)")
            continue
        for name, parts in workloads.items():
            several = f" x{len(parts)}" if len(parts) > 1 else ""
            phrases.append(f"{user}/{name}{several} {format_permille(sum(parts))}")
    return phrases


def format_mib(mib: int) -> str:
    """Return memory for people: ``512 MiB``, ``1.6 GiB``, ``80 GiB``."""
    if mib < 1024:
        return f"{mib} MiB"
    gib = f"{mib / 1024:.1f}".removesuffix(".0")
    return f"{gib} GiB"
