"""Form fields: parse the values that users enter, and keep them to show the form again after an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpupool.api.errors import invalid
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import format_permille, parse_duration_s, parse_gpus
from gpupool.web.deps import Form
from gpupool.web.kit.notices import Notice

NONE = "none"
MAX_NAMES = 10_000
MAX_NOTE_LENGTH = 500
_SEPARATORS = re.compile(r"[\s,;]+")
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

Choice = TypeVar("Choice", bound=StrEnum)


class FieldError(GpupoolError):
    """An error of one form field."""

    def __init__(self, name: str, error: GpupoolError) -> None:
        super().__init__(error.code, error.message, error.hint)
        self.field = name


@contextmanager
def name_field_in_errors(name: str) -> Iterator[None]:
    """Raise errors of the block as ``FieldError`` of this field."""
    try:
        yield
    except GpupoolError as error:
        raise FieldError(name, error) from error


@dataclass(frozen=True, slots=True)
class FormValues:
    """Values of form fields: the current values, or the values entered and the error."""

    values: Mapping[str, Any] = field(default_factory=dict)
    error: GpupoolError | None = None

    @classmethod
    def from_form(cls, form: Form, error: GpupoolError) -> FormValues:
        """Return the posted values, to be corrected."""
        return cls({name: every if len(every) > 1 else every[0] for name, every in form.fields.items()}, error)

    def with_defaults(self, values: Mapping[str, Any]) -> FormValues:
        """Return these values with ``values`` for the fields of other forms on the page."""
        return FormValues({**values, **self.values}, self.error)

    def value(self, name: str, otherwise: Any = "") -> Any:
        """Return the value of a field."""
        return self.values.get(name, otherwise)

    def includes(self, name: str, value: str) -> bool:
        """Return True if ``value`` is selected in a field."""
        held = self.values.get(name, ())
        return value == held if isinstance(held, str) else value in held

    def error_of(self, name: str) -> str:
        """Return the error text of a field; empty if it has none."""
        found = self.error if isinstance(self.error, FieldError) and self.error.field == name else None
        return "" if found is None else f"{found.message} {found.hint}".strip()

    @property
    def notice(self) -> Notice | None:
        """Return the error as a notice."""
        return None if self.error is None else Notice.of_error(self.error)


# Reading


def gpus(form: Form, name: str) -> int | None:
    """Read thousandths of GPUs; None for an empty field."""
    text = form.text(name)
    with name_field_in_errors(name):
        return None if text in {"", NONE} else parse_gpus(text)


def seconds(form: Form, name: str, *, zero: bool = False) -> float | None:
    """Read a duration in seconds; None for an empty field. ``zero``: 0 is allowed."""
    text = form.text(name)
    if zero and text in {"0", "0s"}:
        return 0.0
    with name_field_in_errors(name):
        return None if text in {"", NONE} else parse_duration_s(text)


def required_seconds(form: Form, name: str) -> float:
    """Read a required duration in seconds; 0 is allowed."""
    found = seconds(form, name, zero=True)
    if found is None:
        raise FieldError(
            name, GpupoolError(ErrorCode.INVALID_DURATION, "A duration is required.", "Write 5m, 2h or 0.")
        )
    return found


def number(form: Form, name: str) -> float:
    """Read a number of at least 0."""
    text = form.text(name)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        wrong = GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a number.", "Write 0, 1, or 2.5.")
        raise FieldError(name, wrong)
    return value


def count(form: Form, name: str, *, signed: bool = False) -> int | None:
    """Read a whole number, above or equal to 0 unless ``signed``; None for an empty field."""
    text = form.text(name)
    if not text:
        return None
    digits = text.removeprefix("-") if signed else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16):
        wrong = GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a whole number.", "Write 8, for example.")
        raise FieldError(name, wrong)
    return int(text)


def names(form: Form, name: str) -> tuple[str, ...]:
    """Read names separated by spaces, commas or line ends, without duplicates."""
    found = [part for text in form.all_values(name) for part in _SEPARATORS.split(text) if part]
    if len(found) > MAX_NAMES:
        raise FieldError(name, GpupoolError(ErrorCode.TOO_LARGE, "Too many names.", "Enter fewer names."))
    return tuple(dict.fromkeys(found))


def lines(form: Form, name: str) -> tuple[str, ...]:
    """Read one value per line (or separated by semicolons)."""
    parts = re.split(r"[\n;]", form.text(name))
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def pairs(form: Form, name: str) -> dict[str, str]:
    """Read one ``key=value`` per line (or separated by commas)."""
    found: dict[str, str] = {}
    for part in re.split(r"[\n,;]", form.text(name)):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key and equals:
            found[key] = value
        elif part.strip():
            wrong = GpupoolError(ErrorCode.INVALID_REQUEST, f"'{part.strip()[:40]}' has no =.", "Write key=value.")
            raise FieldError(name, wrong)
    return found


def choice(form: Form, name: str, kind: type[Choice]) -> Choice | None:
    """Read a choice; None for an empty field."""
    text = form.text(name)
    if not text:
        return None
    if text not in list(kind):
        sentence = f"'{text[:40]}' is not a valid choice."
        raise FieldError(name, GpupoolError(ErrorCode.INVALID_REQUEST, sentence, f"Choose {', '.join(kind)}."))
    return kind(text)


def choices(form: Form, name: str, kind: type[Choice]) -> tuple[Choice, ...]:
    """Return the selected choices in the order of the enum."""
    ticked = form.all_values(name)
    return tuple(word for word in kind if word.value in ticked)


def note(form: Form, name: str = "note") -> str:
    """Read a note; raise TOO_LARGE if it is too long."""
    text = form.text(name).replace("\0", "")
    if len(text) > MAX_NOTE_LENGTH:
        wrong = GpupoolError(ErrorCode.TOO_LARGE, f"A note has at most {MAX_NOTE_LENGTH} characters.", "Shorten it.")
        raise FieldError(name, wrong)
    return text


def validate(body: type[BaseModel], fields: Mapping[str, Any]) -> None:
    """Check fields with an API model; raise ``GpupoolError(INVALID_REQUEST)`` that names the first invalid one."""
    try:
        body.model_validate(fields)
    except ValidationError as error:
        said = invalid(error.errors())
        raise GpupoolError(said.code, said.message, "Correct the field and submit the form again.") from error


# Formatting for input fields


def gpus_text(permille: int | None) -> str:
    """Format GPUs as ``2.5``; empty for None."""
    if permille is None:
        return ""
    text = format_permille(permille)
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds_text(value: float | None) -> str:
    """Format a duration exactly as ``1h30m``; empty for None."""
    if value is None:
        return ""
    left, text = round(value * 1000), ""
    for length, unit in _UNITS:
        whole, left = divmod(left, length * 1000)
        text += f"{whole}{unit}" if whole else ""
    return text + (f"{left}ms" if left else "") or "0"
