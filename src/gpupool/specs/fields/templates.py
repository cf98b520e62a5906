"""Values of a sweep's parameters, and placeholders such as ``{lr}`` for them in its command."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from gpupool.domain.errors import ErrorCode, GpupoolError

INDEX = "index"
Scalar = str | int | float | bool
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def placeholders(text: str) -> Iterator[str]:
    """Yield the names between braces, repeated ones too; ``{{`` and ``}}`` are literal braces.

    Raises ``GpupoolError(INVALID_REQUEST)`` for a single brace.
    """
    for match in _TOKEN.finditer(text):
        if match.group(0) in {"{", "}"}:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"Unmatched brace in '{text[:80]}'.",
                "In the command of a sweep, write {{ and }} for literal braces.",
            )
        if match.group(1) is not None:
            yield match.group(1)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders and halve doubled braces; all names must be in ``values``."""

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group(0)[0] if name is None else values[name]

    return _TOKEN.sub(replacement, text)


def fill_index(text: str, index: int) -> str:
    """Replace ``{index}`` and nothing else."""
    return text.replace("{" + INDEX + "}", str(index))


def check_placeholders(argv: Sequence[str], names: set[str]) -> None:
    """Refuse a command that names a parameter its sweep does not have (``GpupoolError(INVALID_REQUEST)``)."""
    known = names | {INDEX}
    for argument in argv:
        for name in placeholders(argument):
            if name not in known:
                listed = ", ".join("{" + n + "}" for n in sorted(known))
                raise GpupoolError(
                    ErrorCode.INVALID_REQUEST,
                    f"The command has the placeholder {{{name[:80]}}}, which is not a parameter of the sweep.",
                    f"There are {listed[:400]}; write {{{{ and }}}} for literal braces.",
                )


def as_text(value: Scalar) -> str:
    """Return a parameter as text for programs: ``true``/``false``, and numbers in their shortest exact form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def read_scalar(text: str) -> Scalar:
    """Parse a value: a whole number, a number, ``true``/``false``, else the text itself.

    Digits with leading zeros stay text, as do whole numbers beyond 64 bits and numbers too large to be finite.
    """
    cleaned = text.strip()
    if cleaned.lower() in {"true", "false"}:
        return cleaned.lower() == "true"
    if _INTEGER.fullmatch(cleaned) and as_text(int(cleaned)) == cleaned.removeprefix("+"):
        return int(cleaned)
    if _FLOAT.fullmatch(cleaned) and not cleaned.lstrip("+-").isdigit():
        number = float(cleaned)
        return number if math.isfinite(number) else text
    return text
