"""The results file: one JSON line for each figure, with the machine, the versions, the command and the GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpupool.bench.figures import CaseOutcome, Figure
from gpupool.domain.errors import ErrorCode, GpupoolError

FORMAT = 1
_FIGURE_FIELDS = tuple(one.name for one in fields(Figure))


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a results file: a figure, the case that measured it, and the conditions."""

    case: str
    figure: Figure
    facts: Mapping[str, Any]  # format, measured_at, quick, emulated, machine, pool, command

    @property
    def emulated(self) -> bool:
        """Return whether the GPUs were emulated."""
        return bool(self.facts["emulated"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"case": self.case, **asdict(self.figure), **self.facts}


class ResultsFile:
    """Appends figures to a file; a file that exists is continued."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        self._facts = facts
        self.results = read_results(path) if path.exists() else []
        self._check_same_run()
        if self.results:
            self._rewrite()  # without a last line that a crash cut off

    def _check_same_run(self) -> None:
        for result in self.results:
            for name in ("quick", "emulated"):
                if result.facts[name] != self._facts[name]:
                    raise GpupoolError(
                        ErrorCode.INVALID_REQUEST,
                        f"{self.path} was measured with {name}={result.facts[name]}; this run has {self._facts[name]}.",
                        "Resume with the same options on the same pool, or write to another file.",
                    )

    def completed_cases(self, part: str) -> set[str]:
        """Return the cases of a benchmark that are measured or were skipped; failed ones are measured again."""
        failed = {result.case for result in self.results if result.figure.outcome is CaseOutcome.FAILED}
        return {result.case for result in self.results if result.figure.part == part} - failed

    def forget(self, part: str, case: str) -> None:
        """Remove the figures of a case that is measured again."""
        kept = [one for one in self.results if (one.figure.part, one.case) != (part, case)]
        if len(kept) != len(self.results):
            self.results = kept
            self._rewrite()

    def _rewrite(self) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text("".join(json.dumps(one.to_dict()) + "\n" for one in self.results), encoding="utf-8")
        temporary.replace(self.path)

    def add(self, case: str, figure: Figure) -> Result:
        """Write one figure at once. After Ctrl-C during the write, the table has every figure of the file."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        result = Result(case, figure, {"format": FORMAT, "measured_at": now, **self._facts})
        self.results.append(result)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result.to_dict()) + "\n")
        return result


def read_results(path: Path) -> list[Result]:
    """Return the figures of a file. A last line that was cut off by a crash is left out.

    Raises ``GpupoolError`` (INVALID_FILE) if the file is not a results file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, f"it cannot be read ({error})") from error
    return list(_parsed(path, [line for line in lines if line.endswith("\n")]))


def _parsed(path: Path, lines: list[str]) -> Iterator[Result]:
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            if values["format"] != FORMAT:
                raise _invalid(path, f"line {number} has format {values['format']}, not {FORMAT}")
            figure = Figure(**{name: values.pop(name) for name in _FIGURE_FIELDS})
            case = values.pop("case")
        except (ValueError, KeyError, TypeError) as error:
            raise _invalid(path, f"line {number} is not a figure") from error
        yield Result(case, _typed(figure), values)


def _typed(figure: Figure) -> Figure:
    return Figure(**{name: getattr(figure, name) for name in _FIGURE_FIELDS} | {"outcome": CaseOutcome(figure.outcome)})


def _invalid(path: Path, why: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_FILE, f"{path} is not a results file: {why}.", "Give a file that 'gpupool bench' wrote."
    )
