"""Compare the figures of two results files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.bench.figures import CaseOutcome, Figure
from gpupool.bench.results import Result


@dataclass(frozen=True, slots=True)
class Pair:
    """The same figure in both files. ``ratio`` is that of the second to the first; None if one was not measured."""

    part: str
    name: str
    first: Figure | None
    second: Figure | None

    @property
    def ratio(self) -> float | None:
        """Return the value of the second file divided by that of the first."""
        values = [figure.value for figure in (self.first, self.second) if figure is not None and _is_measured(figure)]
        if len(values) != 2 or not values[0] or values[1] is None:
            return None
        return values[1] / values[0]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        figures = [figure for figure in (self.first, self.second) if figure is not None]
        values = [None if figure is None else figure.value for figure in (self.first, self.second)]
        unit = next((figure.unit for figure in figures if figure.unit), "")
        return {
            "part": self.part,
            "name": self.name,
            "a": values[0],
            "b": values[1],
            "unit": unit,
            "ratio": self.ratio,
        }


def _is_measured(figure: Figure) -> bool:
    return figure.outcome is CaseOutcome.MEASURED


def compare(first: Sequence[Result], second: Sequence[Result]) -> list[Pair]:
    """Return all figures of both files, those of the first one first."""
    a = {(one.figure.part, one.figure.name): one.figure for one in first}
    b = {(one.figure.part, one.figure.name): one.figure for one in second}
    return [Pair(*key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b])]


def differences(first: Sequence[Result], second: Sequence[Result]) -> list[str]:
    """Return the conditions that differ, as sentences: such figures are no fair comparison."""
    if not first or not second:
        return ["One of the files has no figure."]
    a, b = first[0].facts, second[0].facts
    found = [
        (what, one, other)
        for what, one, other in (
            ("emulated GPUs", a["emulated"], b["emulated"]),
            ("--quick", a["quick"], b["quick"]),
            ("the CPU", a["machine"]["cpu"], b["machine"]["cpu"]),
            ("the number of cores", a["machine"]["cores"], b["machine"]["cores"]),
            ("the GPUs", _gpus(a), _gpus(b)),
            ("gpupool", a["machine"]["versions"]["gpupool"], b["machine"]["versions"]["gpupool"]),
        )
        if one != other
    ]
    return [f"The files differ in {what}: {one} and {other}." for what, one, other in found]


def _gpus(facts: Any) -> str:
    return ", ".join(gpu for node in facts["pool"]["nodes"] for gpu in node["gpus"]) or "none"
