"""Template filters that format values."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from markupsafe import Markup

from gpupool.domain.units import format_mib, format_permille

COLOURS = 8  # of owners; after that they repeat
_COMMAND = re.compile("`([^`]+)`")
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

# Colour and symbol of each state, so that colour is never the only sign. CSS classes are ``state-<tone>``.
_TONES: dict[str, tuple[str, str]] = {
    "running": ("good", "▶"),
    "up": ("good", "●"),
    "ok": ("good", "●"),
    "active": ("good", "●"),
    "succeeded": ("done", "✓"),
    "queued": ("wait", "◷"),
    "pending": ("wait", "◷"),
    "starting": ("wait", "◔"),
    "stopping": ("wait", "◕"),
    "creating": ("wait", "◔"),
    "importing": ("wait", "◔"),
    "copying": ("wait", "◔"),
    "deleting": ("wait", "◕"),
    "suspended": ("wait", "‖"),
    "upcoming": ("wait", "◷"),
    "cordoned": ("wait", "◐"),
    "degraded": ("wait", "▲"),
    "warning": ("wait", "▲"),
    "idle": ("wait", "○"),
    "failed": ("bad", "✕"),
    "down": ("bad", "✕"),
    "error": ("bad", "✕"),
    "revoked": ("off", "■"),
    "expired": ("off", "■"),
    "disabled": ("off", "■"),
    "stopped": ("off", "■"),
    "over": ("off", "■"),
}


def word(value: Any) -> str:
    """Return an enum value or word as text."""
    return str(value.value) if isinstance(value, Enum) else str(value)


def tone(value: Any) -> str:
    """Return the colour of a state: good, done, wait, bad or off."""
    return _TONES.get(word(value).lower(), ("off", "○"))[0]


def shape(value: Any) -> str:
    """Return the symbol of a state."""
    return _TONES.get(word(value).lower(), ("off", "○"))[1]


def with_code(text: str) -> Markup:
    """Escape a text, and mark commands between backticks as code."""
    parts = _COMMAND.split(text)  # every second one is a command
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def number(value: float) -> str:
    """Format a number with digit groups: ``12 345``, ``3.25``."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.2f}".replace(",", " ")
    return f"{int(value):,}".replace(",", " ")


def percent(value: float) -> str:
    """Format a percentage: ``42 %``, with one decimal below ten."""
    return f"{value:.0f} %" if value >= 10 or value == int(value) else f"{value:.1f} %"


def size(value: float) -> str:
    """Format bytes: ``1.5 GiB``."""
    left = float(value)
    for unit in _BYTE_UNITS[:-1]:
        if left < 1024:
            return f"{left:.0f} {unit}" if unit == "B" or left >= 100 else f"{left:.1f} {unit}"
        left /= 1024
    return f"{left:.1f} {_BYTE_UNITS[-1]}"


def gpus(permille: int) -> str:
    """Format thousandths as GPUs: ``1``, ``0.5``, ``0.025``, ``12``."""
    text = format_permille(permille)
    return text.rstrip("0").rstrip(".") if "." in text else text


def memory(mib: int) -> str:
    """Format MiB: ``16 GiB``."""
    return format_mib(int(mib))


def colour(slot: int) -> int:
    """Return the colour number of an owner."""
    return slot % COLOURS
