"""Why something waits, in words and numbers, as pages show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpupool.domain.units import format_duration, format_permille
from gpupool.scheduling.explain import Explanation

_HIDDEN = frozenset({"ahead", "search"})


@dataclass(frozen=True, slots=True)
class Why:
    """An explanation. ``estimate`` is text such as ``40m00s (25m00s to 1h10m)``, empty when nothing is known.

    ``numbers`` are (name, value) pairs of what the sentence rests on.
    """

    code: str
    sentence: str
    position: int
    ahead_in_project: int
    ahead_total: int
    numbers: tuple[tuple[str, str], ...]
    would_help: tuple[str, ...]
    estimate_s: float | None
    estimate: str
    basis: str


def why_of(found: Explanation) -> Why:
    """An explanation as a page shows it."""
    return Why(
        found.code.value,
        found.sentence[:1].upper() + found.sentence[1:],
        found.position,
        found.ahead_in_project,
        found.ahead_total,
        tuple(_numbers(found.numbers)),
        found.would_help,
        found.estimate_s,
        estimate_text(found),
        found.estimate_basis,
    )


def estimate_text(found: Explanation) -> str:
    """``40m00s (25m00s to 1h10m)``; without the range where there is none, or it says no more; empty: none known."""
    likely, low, high = found.estimate_s, found.estimate_low_s, found.estimate_high_s
    if likely is None:
        return ""
    text = format_duration(likely)
    if low is None or (high is not None and high - low <= likely / 10):
        return text
    if high is None:
        return f"{text} ({format_duration(low)} or more)"
    return f"{text} ({format_duration(low)} to {format_duration(high)})"


def _numbers(numbers: Mapping[str, float | int | str]) -> Iterator[tuple[str, str]]:
    for name, value in numbers.items():
        if name in _HIDDEN:
            continue
        if name.endswith("_permille"):
            yield name.removesuffix("_permille").replace("_", " "), f"{format_permille(int(value))} GPU"
        elif name == "seconds":
            yield "left", format_duration(float(value))
        elif not name.endswith("_at"):
            yield name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value)
