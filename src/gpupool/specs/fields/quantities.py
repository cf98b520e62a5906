"""Types of single fields: accepted input, and its normal form."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name
from gpupool.domain.units import (
    MAX_DURATION_S,
    fraction_to_permille,
    parse_duration_s,
    parse_fraction,
    parse_memory_mib,
)
from gpupool.domain.work.time_windows import MAX_WINDOWS, parse_window
from gpupool.specs import limits
from gpupool.specs.text.error_messages import refusal, reworded

T = TypeVar("T")
NAMED_PRIORITIES = {"low": -100, "normal": 0, "high": 100}
_MAX_QUANTITY = 64  # characters


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _domain(parse: Callable[[str], T], code: ErrorCode, text: str) -> T:
    """Apply a parser of the domain to a text; refuse numbers that overflow."""
    if len(text) > _MAX_QUANTITY:
        raise refusal(code, f"'{text[:40]}...' is too long.")
    try:
        return parse(text)
    except GpupoolError as error:
        raise reworded(error) from error
    except (ArithmeticError, ValueError) as error:
        raise refusal(code, f"'{text[:40]}' is too large or too small.") from error


def _duration(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise refusal(ErrorCode.INVALID_DURATION, "must be a duration.", "Write it like 30s, 20m, 1h30m or 2d.")
    if isinstance(value, str):
        return _domain(parse_duration_s, ErrorCode.INVALID_DURATION, value)
    if not 0 < value <= MAX_DURATION_S:
        raise refusal(
            ErrorCode.INVALID_DURATION,
            f"{value} seconds is not a duration the pool can keep.",
            "Give seconds above 0 and up to ten years, or write it like 30s, 20m, 1h30m or 2d.",
        )
    return float(value)


def _duration_or_zero(value: object) -> float | None:
    if _number(value) and value == 0:
        return 0.0
    if isinstance(value, str) and value.strip().lower() in {"0", "0s", "none"}:
        return 0.0
    return _duration(value)


def _duration_or_none(value: object) -> float | None:
    never = isinstance(value, str) and value.strip().lower() == "none"
    return None if never else _duration_or_zero(value)


def _size(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _bad_size(value)
    mib = _domain(parse_memory_mib, ErrorCode.INVALID_SIZE, value) if isinstance(value, str) else value
    if not 1 <= mib <= limits.MAX_MEMORY_MIB:
        raise _bad_size(value)
    return mib


def _bad_size(value: object) -> PydanticCustomError:
    shown = isinstance(value, str | int)
    return refusal(
        ErrorCode.INVALID_SIZE,
        f"'{str(value)[:40]}' is not an amount of memory." if shown else "must be an amount of memory.",
        "Write MiB as a whole number (2048) or text with a unit (4G).",
    )


def _fraction(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _domain(parse_fraction, ErrorCode.INVALID_FRACTION, value) / 1000
    if not _number(value):
        raise refusal(ErrorCode.INVALID_FRACTION, "must be a number above 0 and up to 1.")
    permille = _domain(lambda text: fraction_to_permille(Decimal(text)), ErrorCode.INVALID_FRACTION, str(value))
    return permille / 1000


def _priority(value: object) -> object:
    if isinstance(value, str):
        if value not in NAMED_PRIORITIES:
            raise refusal(ErrorCode.INVALID_REQUEST, "must be low, normal, high or a number from -1000 to 1000.")
        return NAMED_PRIORITIES[value]
    return value


def _umask(value: object) -> object:
    if isinstance(value, str):
        if not value or len(value) > 5 or set(value) - set("01234567"):
            raise refusal(ErrorCode.INVALID_REQUEST, "must be octal digits such as '022'.")
        return int(value, 8)
    return value


def _count(most: int, least: int = 1) -> Callable[[object], object]:
    def check(value: object) -> object:
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most):
            raise refusal(ErrorCode.INVALID_COUNT, f"must be a whole number from {least} to {most}.")
        return value

    return check


def _written(value: object) -> object:
    """Accept numbers and truth values as text where text is wanted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else value


def checked_by(check: Callable[[str], object]) -> BeforeValidator:
    """Return a validator that applies a check of the domain to text; pydantic refuses other types."""

    def validate(value: object) -> object:
        if isinstance(value, str):
            try:
                check(value)
            except GpupoolError as error:
                raise reworded(error) from error
        return value

    return BeforeValidator(validate)


def _check_label_key(text: str) -> None:
    """Check a name with an optional prefix: ``team``, ``nvidia.com/gpu.family``."""
    prefix, slash, rest = text.rpartition("/")
    for part in (prefix, rest) if slash else (rest,):
        check_name(part, "label")


def _without_controls(value: str) -> str:
    """Refuse control characters: they would act on the terminal that lists them."""
    found = next((c for c in value if unicodedata.category(c) == "Cc"), None)
    if found is not None:
        raise refusal(ErrorCode.INVALID_REQUEST, f"must not have control characters (U+{ord(found):04X}).")
    return value


def _schema(*types: dict[str, Any], null: bool = False) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*types, *([{"type": "null"}] if null else [])]})


_TEXT = {"type": "string", "minLength": 1, "maxLength": _MAX_QUANTITY}
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DURATION_S}
_SECONDS_OR_ZERO = {"type": "number", "minimum": 0, "maximum": MAX_DURATION_S}
_MIB = {"type": "integer", "minimum": 1, "maximum": limits.MAX_MEMORY_MIB}
_FRACTION = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_PRIORITY = {"type": "integer", "minimum": -limits.MAX_PRIORITY, "maximum": limits.MAX_PRIORITY}
_OCTAL = {"type": "string", "pattern": "^[0-7]{1,5}$"}
_UMASK = {"type": "integer", "minimum": 0, "maximum": 0o777}

Duration = Annotated[float | None, BeforeValidator(_duration), _schema(_SECONDS, _TEXT, null=True)]
DurationOrZero = Annotated[
    float | None, BeforeValidator(_duration_or_zero), _schema(_SECONDS_OR_ZERO, _TEXT, null=True)
]
DurationOrNone = Annotated[
    float | None, BeforeValidator(_duration_or_none), _schema(_SECONDS_OR_ZERO, _TEXT, null=True)
]
Size = Annotated[int | None, BeforeValidator(_size), _schema(_MIB, _TEXT, null=True)]
Fraction = Annotated[float | None, BeforeValidator(_fraction), _schema(_FRACTION, _TEXT, null=True)]
Priority = Annotated[
    int,
    Field(ge=-limits.MAX_PRIORITY, le=limits.MAX_PRIORITY),
    BeforeValidator(_priority),
    _schema(_PRIORITY, {"enum": list(NAMED_PRIORITIES)}),
]
Umask = Annotated[int | None, Field(ge=0, le=0o777), BeforeValidator(_umask), _schema(_UMASK, _OCTAL, null=True)]
GpuCount = Annotated[
    int,
    BeforeValidator(_count(limits.MAX_GPUS, 0)),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": limits.MAX_GPUS}),
]
_REPLICAS = {"type": "integer", "minimum": 1, "maximum": limits.MAX_REPLICAS}
ReplicaCount = Annotated[int, BeforeValidator(_count(limits.MAX_REPLICAS)), WithJsonSchema(_REPLICAS)]
OptionalReplicaCount = Annotated[
    int | None, BeforeValidator(_count(limits.MAX_REPLICAS)), _schema(_REPLICAS, null=True)
]
Windows = Annotated[list[Annotated[str, checked_by(parse_window)]], Field(max_length=MAX_WINDOWS)]
Text = Annotated[str, BeforeValidator(_written), WithJsonSchema({"type": ["string", "number", "boolean"]})]
Name = Annotated[str, checked_by(check_name)]
ProjectName = Annotated[str, checked_by(partial(check_name, what="project"))]
LabelKey = Annotated[str, checked_by(_check_label_key)]
LabelValue = Annotated[
    str,
    Field(max_length=limits.MAX_LABEL_VALUE),
    AfterValidator(_without_controls),
    BeforeValidator(_written),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
