"""Conversion of command-line values to the plain request that ``parse_request`` takes.

Nothing heavy is imported here: the command line must start in milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_fraction, parse_memory_mib
from gpupool.specs.fields.templates import Scalar, read_scalar
from gpupool.specs.limits import MAX_GPUS, MAX_MEMORY_MIB
from gpupool.specs.text.files import read_bounded

_WHOLE = re.compile(r"[0-9]{1,6}")
_DECIMAL = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.?")


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """GPU options as typed: ``-g`` (gpus), ``-n`` (count), ``-p`` (partial), ``-m`` (memory), models and labels."""

    gpus: str | None = None
    count: int | None = None
    partial: str | None = None
    memory: str | None = None
    models: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def to_spec(self) -> dict[str, Any]:
        """Return the ``gpus`` of a request, without unused options.

        Raises ``GpupoolError``: INVALID_REQUEST for options that exclude each other, and INVALID_COUNT,
        INVALID_FRACTION or INVALID_SIZE for their values.
        """
        self._check_combination()
        spec: dict[str, Any] = parse_gpu_amount(self.gpus) if self.gpus is not None else {}
        if self.count is not None:
            spec["count"] = parse_count(self.count)
        if self.partial is not None:
            spec["fraction"] = parse_fraction_option(self.partial)
        if self.memory is not None:
            spec["memory_mib"] = parse_size_option(self.memory)
        if self.models:
            spec["models"] = list(self.models)
        if self.labels:
            spec["labels"] = parse_pairs(self.labels, "--gpu-label")
        return spec

    def _check_combination(self) -> None:
        if self.partial is not None and self.memory is not None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "-p and -m both set the share of a GPU.",
                "Use one of them: -p 0.5 for half a GPU, -m 4G for 4 GiB of its memory.",
            )
        if self.gpus is not None and (self.count, self.partial, self.memory) != (None, None, None):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "-g excludes -n, -p and -m.",
                "Use -g 0.5, or -n 1 -p 0.5.",
            )


def parse_count(count: int) -> int:
    """Return a number of GPUs; raise ``GpupoolError(INVALID_COUNT)`` outside 0 to 1024."""
    if not 0 <= count <= MAX_GPUS:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"{count} is not a number of GPUs.", f"Give 0 to {MAX_GPUS}.")
    return count


def parse_fraction_option(text: str) -> float:
    """Parse the value of ``-p``: ``0.5`` or ``50%``; raise ``GpupoolError(INVALID_FRACTION)``."""
    try:
        return parse_fraction(text[:64]) / 1000
    except ArithmeticError as error:  # exponents beyond the range of Decimal
        raise GpupoolError(
            ErrorCode.INVALID_FRACTION, f"'{text[:40]}' is not a fraction of a GPU.", "Give a number such as 0.5."
        ) from error


def parse_size_option(text: str) -> int:
    """Parse the value of ``-m`` to MiB; raise ``GpupoolError(INVALID_SIZE)``."""
    mib = parse_memory_mib(text) if len(text) <= 64 else MAX_MEMORY_MIB + 1
    if mib > MAX_MEMORY_MIB:
        raise GpupoolError(ErrorCode.INVALID_SIZE, f"'{text[:40]}' is more memory than a GPU can have.", "Try 4G.")
    return mib


def parse_gpu_amount(text: str) -> dict[str, Any]:
    """Parse the value of ``-g``: below 1 a part of one GPU, from 1 a whole number of GPUs.

    Raises ``GpupoolError``: INVALID_FRACTION for a number such as 1.5, else INVALID_COUNT.
    """
    cleaned = text.strip()
    if _WHOLE.fullmatch(cleaned):
        return {"count": parse_count(int(cleaned))}
    if _DECIMAL.fullmatch(cleaned) and len(cleaned) <= 20:
        amount = float(cleaned)
        if 0 < amount < 1:
            return {"count": 1, "fraction": parse_fraction_option(cleaned)}
        if amount >= 1 and amount.is_integer():
            return {"count": parse_count(int(amount))}
        raise GpupoolError(
            ErrorCode.INVALID_FRACTION,
            f"-g {cleaned} is neither a part of one GPU nor a whole number of GPUs.",
            "Give a number below 1 (-g 0.5) or a whole one (-g 2); -n 2 -p 0.75 gives three quarters of two.",
        )
    raise GpupoolError(
        ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not an amount of GPU.", "Give -g 0.5 or -g 2, for example."
    )


def parse_pairs(values: Iterable[str], option: str = "--label") -> dict[str, str]:
    """Parse the values of ``--label``: ``KEY=VALUE``; raise ``GpupoolError(INVALID_REQUEST)``."""
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise _bad_option(option, value, "Write KEY=VALUE.")
        pairs[name] = text
    return pairs


def parse_after(values: Iterable[str]) -> list[dict[str, str]]:
    """Parse the values of ``--after``: ``NAME`` (must succeed), ``NAME:any`` (must end), ``NAME:failure``."""
    found = []
    for value in values:
        workload, _, condition = value.partition(":")
        found.append({"workload": workload, "condition": condition or "success"})
    return found


def read_file(path: str) -> bytes:
    """Return the content of a file; see ``files.read_bounded`` for the errors."""
    return read_bounded(Path(path), path)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Sweep options as typed; ``read`` gives the content of the file that ``--sweep-list`` names."""

    grid: tuple[str, ...] = ()
    list_file: str | None = None
    random: tuple[str, ...] = ()
    samples: int | None = None
    seed: int | None = None
    read: Callable[[str], bytes] = field(default=read_file, repr=False)

    def to_spec(self) -> dict[str, Any] | None:
        """Return the ``sweep`` of a request; None if there are no sweep options.

        Raises ``GpupoolError``: INVALID_REQUEST for options that conflict or cannot be parsed, and the errors of
        ``load_parameter_list``.
        """
        self._check_combination()
        if self.grid:
            return {"grid": _grid(self.grid)}
        if self.list_file is not None:
            from gpupool.specs.fields.sweep import load_parameter_list

            return {"list": load_parameter_list(self.read(self.list_file), self.list_file)}
        if not self.random:
            return None
        draws = {"samples": self.samples, "parameters": dict(map(parse_random, self.random))}
        return {"random": draws if self.seed is None else {**draws, "seed": self.seed}}

    def _check_combination(self) -> None:
        if sum((bool(self.grid), self.list_file is not None, bool(self.random))) > 1:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, "A sweep is a grid, a list or random.", "Give one of those options."
            )
        if bool(self.random) != (self.samples is not None) or (self.seed is not None and not self.random):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "--sweep-random needs --samples, and --samples and --seed need --sweep-random.",
                "For example: --sweep-random 'lr=0.001..0.1:log' --samples 20.",
            )


def _grid(values: Iterable[str]) -> dict[str, list[Scalar]]:
    grid: dict[str, list[Scalar]] = {}
    for value in values:
        name, equals, listed = value.partition("=")
        if not name or not equals or not listed:
            raise _bad_option("--sweep", value, "Write --sweep lr=0.1,0.01.")
        if name in grid:
            raise _bad_option("--sweep", value, f"{name[:80]} is given twice: write all its values after one =.")
        grid[name] = [read_scalar(part) for part in listed.split(",")]
    return grid


def parse_random(value: str) -> tuple[str, dict[str, Any]]:
    """Parse the value of ``--sweep-random``: ``lr=0.001..0.1:log``, ``layers=2..8:int`` or ``opt=adam,sgd``.

    Raises ``GpupoolError(INVALID_REQUEST)``.
    """
    name, equals, drawn = value.partition("=")
    if not name or not equals or not drawn:
        raise _bad_option("--sweep-random", value)
    if ".." not in drawn:
        return name, {"choices": [read_scalar(part) for part in drawn.split(",")]}
    bounds, *flags = drawn.split(":")
    low, _, high = (read_scalar(part) if part else "" for part in bounds.partition(".."))
    if not _is_number(low) or not _is_number(high) or set(flags) - {"log", "int"}:
        raise _bad_option("--sweep-random", value)
    return name, {"min": low, "max": high, "log": "log" in flags, "integer": "int" in flags}


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bad_option(option: str, value: str, hint: str = "") -> GpupoolError:
    examples = "Write lr=0.001..0.1:log, layers=2..8:int or opt=adam,sgd."
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"{option} '{value[:80]}' cannot be read.", hint or examples)
