"""Parameter sweeps: a grid, a list, or random draws, each giving one set of parameters per run."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.fields.templates import INDEX, Scalar, read_scalar
from gpupool.specs.limits import MAX_PARAMETERS, MAX_REPLICAS, MAX_VALUE_LENGTH
from gpupool.specs.text.files import decode

Parameters = dict[str, Scalar]
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two bounds, both included; uniform, or log-uniform with ``log``."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


Drawn = Range | tuple[Scalar, ...]


def check_parameter_names(names: Iterable[str]) -> None:
    """Refuse names that cannot be placeholders, or that would share one environment variable.

    Raises ``GpupoolError(INVALID_NAME)``; INVALID_COUNT above ``MAX_PARAMETERS`` names.
    """
    variables: dict[str, str] = {}
    for name in names:
        if _PARAMETER.fullmatch(name) is None or name == INDEX:
            raise GpupoolError(
                ErrorCode.INVALID_NAME,
                f"'{name[:80]}' cannot be a parameter.",
                "Use up to 63 letters, digits, dots, dashes and underscores; 'index' is the number of the run.",
            )
        other = variables.setdefault(variable_of(name), name)
        if other != name:
            raise GpupoolError(
                ErrorCode.INVALID_NAME,
                f"The parameters '{other}' and '{name}' would both be {variable_of(name)}.",
                "Rename one of them.",
            )
    if len(variables) > MAX_PARAMETERS:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"A sweep has at most {MAX_PARAMETERS} parameters.")


def variable_of(name: str) -> str:
    """Return the environment variable of a parameter: ``GPUPOOL_PARAM_LR``."""
    return "GPUPOOL_PARAM_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def grid_size(grid: Mapping[str, Sequence[Scalar]]) -> int:
    """Return the number of runs of a grid."""
    return math.prod(len(values) for values in grid.values())


def expand_grid(grid: Mapping[str, Sequence[Scalar]]) -> tuple[Parameters, ...]:
    """Return every combination; the last declared parameter changes fastest."""
    return tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def draw(parameters: Mapping[str, Drawn], samples: int, seed: int | str) -> tuple[Parameters, ...]:
    """Return random sets of parameters; the same seed repeats them, and more samples extend them."""
    source = random.Random(seed)  # noqa: S311 - a sweep must be repeatable, not secret
    return tuple({name: _draw_one(drawn, source) for name, drawn in parameters.items()} for _ in range(samples))


def _draw_one(drawn: Drawn, source: random.Random) -> Scalar:
    if not isinstance(drawn, Range):
        return source.choice(drawn)
    if drawn.integer and not drawn.log:
        return source.randint(int(drawn.low), int(drawn.high))
    if drawn.log:
        value = math.exp(source.uniform(math.log(drawn.low), math.log(drawn.high)))
    else:
        value = source.uniform(drawn.low, drawn.high)
    bounded = min(max(value, drawn.low), drawn.high)
    return round(bounded) if drawn.integer else bounded


def load_parameter_list(data: bytes, name: str = "sweep") -> list[Parameters]:
    """Return the runs in a list file: CSV with a header, one JSON object per line, or a YAML or JSON list.

    The ending of ``name`` selects the format (``.csv``, ``.jsonl``/``.ndjson``, else YAML); messages begin with it.
    Raises ``GpupoolError``: TOO_LARGE, INVALID_FILE with the line, INVALID_COUNT for none or too many runs.
    """
    text = decode(data, name)
    lowered = name.lower()
    if lowered.endswith(".csv"):
        rows = _read_csv(text, name)
    elif lowered.endswith((".jsonl", ".ndjson")):
        rows = _read_json_lines(text, name)
    else:
        rows = _read_yaml_list(text, name)
    return _checked_rows(rows, name)


def _read_yaml_list(text: str, name: str) -> list[object]:
    from gpupool.specs.text.yaml_nodes import read_yaml

    return [row for root in read_yaml(text, name) for row in _as_list(root.plain(), name)]


def _as_list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{name} does not hold a list of parameter sets.")
    return value


def _read_csv(text: str, name: str) -> list[object]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        if len(set(header)) < len(header):
            raise _bad_line(name, 1, "a column is named twice")
        rows: list[object] = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise _bad_line(name, reader.line_num, f"{len(cells)} cells under {len(header)} columns")
            rows.append({column: read_scalar(cell) for column, cell in zip(header, cells, strict=True)})
    except csv.Error as error:
        raise _bad_line(name, reader.line_num, str(error)) from error
    return rows


def _read_json_lines(text: str, name: str) -> list[object]:
    from gpupool.specs.text.json_input import read_json

    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(read_json(line.encode()))
            except GpupoolError as error:
                raise _bad_line(name, number, error.message.rstrip(".")) from error
    return rows


def _bad_line(name: str, line: int, what: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_FILE, f"{name}:{line}: {what}.")


def _checked_rows(rows: list[object], name: str) -> list[Parameters]:
    if not 1 <= len(rows) <= MAX_REPLICAS:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"{name} has {len(rows)} runs; 1 to {MAX_REPLICAS} are possible.")
    checked: list[Parameters] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not row or not all(_is_scalar(value) for value in row.values()):
            raise GpupoolError(
                ErrorCode.INVALID_FILE,
                f"{name}: run {number} is not a set of parameters.",
                "Give each run as names with text, numbers or true/false.",
            )
        check_parameter_names(row)
        checked.append(row)
    return checked


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_VALUE_LENGTH and "\0" not in value
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def describe_parameters(parameters: Mapping[str, Scalar]) -> str:
    """Return the set of parameters as JSON, in declared order."""
    return json.dumps(dict(parameters))
