"""What people type into the forms of administrators: read into changes, and shown again when it cannot be taken."""

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
from gpupool.web.notices import Notice

NONE = "none"
MOST_NAMES = 10_000
LONGEST_NOTE = 500
_SEPARATORS = re.compile(r"[\s,;]+")
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

Choice = TypeVar("Choice", bound=StrEnum)


class FieldError(GpupoolError):
    """What is wrong with one field of a form."""

    def __init__(self, name: str, error: GpupoolError) -> None:
        super().__init__(error.code, error.message, error.hint)
        self.field = name


@contextmanager
def about(name: str) -> Iterator[None]:
    """Say of errors inside that they are about this field."""
    try:
        yield
    except GpupoolError as error:
        raise FieldError(name, error) from error


@dataclass(frozen=True, slots=True)
class Typed:
    """What the fields of a form hold: what is so, or what was typed and could not be taken, and why."""

    values: Mapping[str, Any] = field(default_factory=dict)
    error: GpupoolError | None = None

    @classmethod
    def again(cls, form: Form, error: GpupoolError) -> Typed:
        """What was sent, to be put right."""
        return cls({name: every if len(every) > 1 else every[0] for name, every in form.fields.items()}, error)

    def over(self, values: Mapping[str, Any]) -> Typed:
        """The same on a page with other forms, which hold ``values``."""
        return Typed({**values, **self.values}, self.error)

    def value(self, name: str, otherwise: Any = "") -> Any:
        """What a field holds."""
        return self.values.get(name, otherwise)

    def chosen(self, name: str, value: str) -> bool:
        """Whether a value is among those ticked for a field."""
        held = self.values.get(name, ())
        return value == held if isinstance(held, str) else value in held

    def wrong(self, name: str) -> str:
        """What is wrong with a field."""
        found = self.error if isinstance(self.error, FieldError) and self.error.field == name else None
        return "" if found is None else f"{found.message} {found.hint}".strip()

    @property
    def notice(self) -> Notice | None:
        """What is wrong, above the page."""
        return None if self.error is None else Notice.of_error(self.error)


# Reading


def gpus(form: Form, name: str) -> int | None:
    """Thousandths of GPUs; None for an empty field."""
    text = form.text(name)
    with about(name):
        return None if text in {"", NONE} else parse_gpus(text)


def seconds(form: Form, name: str, *, zero: bool = False) -> float | None:
    """A duration; None for an empty field. ``zero``: none at all may be meant."""
    text = form.text(name)
    if zero and text in {"0", "0s"}:
        return 0.0
    with about(name):
        return None if text in {"", NONE} else parse_duration_s(text)


def needed_seconds(form: Form, name: str) -> float:
    """A duration that must be there, and may be none at all."""
    found = seconds(form, name, zero=True)
    if found is None:
        raise FieldError(name, GpupoolError(ErrorCode.INVALID_DURATION, "A time is needed.", "Write 5m, 2h, or 0."))
    return found


def number(form: Form, name: str) -> float:
    """A number, not below zero."""
    text = form.text(name)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        wrong = GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a number.", "Write 0, 1, or 2.5.")
        raise FieldError(name, wrong)
    return value


def count(form: Form, name: str) -> int | None:
    """A whole number; None for an empty field."""
    text = form.text(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        wrong = GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a whole number.", "Write 8, for example.")
        raise FieldError(name, wrong)
    return int(text)


def names(form: Form, name: str) -> tuple[str, ...]:
    """Names with spaces, commas or line ends between them, each once."""
    found = [part for text in form.every(name) for part in _SEPARATORS.split(text) if part]
    if len(found) > MOST_NAMES:
        raise FieldError(name, GpupoolError(ErrorCode.TOO_LARGE, "That is too many names.", "Name fewer."))
    return tuple(dict.fromkeys(found))


def lines(form: Form, name: str) -> tuple[str, ...]:
    """One value on each line (or between semicolons)."""
    parts = re.split(r"[\n;]", form.text(name))
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def pairs(form: Form, name: str) -> dict[str, str]:
    """``key=value`` on each line (or between commas)."""
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
    """One of some words; None for an empty field."""
    text = form.text(name)
    if not text:
        return None
    if text not in list(kind):
        sentence = f"'{text[:40]}' is not one of them."
        raise FieldError(name, GpupoolError(ErrorCode.INVALID_REQUEST, sentence, f"Choose {', '.join(kind)}."))
    return kind(text)


def choices(form: Form, name: str, kind: type[Choice]) -> tuple[Choice, ...]:
    """Those that are ticked, in their own order."""
    ticked = form.every(name)
    return tuple(word for word in kind if word.value in ticked)


def note(form: Form, name: str = "note") -> str:
    """A remark; raises TOO_LARGE for a long one."""
    text = form.text(name).replace("\0", "")
    if len(text) > LONGEST_NOTE:
        wrong = GpupoolError(ErrorCode.TOO_LARGE, f"A remark has at most {LONGEST_NOTE} characters.", "Shorten it.")
        raise FieldError(name, wrong)
    return text


def accepted(body: type[BaseModel], fields: Mapping[str, Any]) -> None:
    """Hold fields to what the API accepts; raises ``GpupoolError(INVALID_REQUEST)`` that names the first wrong one."""
    try:
        body.model_validate(fields)
    except ValidationError as error:
        said = invalid(error.errors())
        raise GpupoolError(said.code, said.message, "Put it right and send it again.") from error


# Writing what can be read again


def gpus_text(permille: int | None) -> str:
    """``2.5``; empty for none."""
    if permille is None:
        return ""
    text = format_permille(permille)
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds_text(value: float | None) -> str:
    """``1h30m``, exactly; empty for none."""
    if value is None:
        return ""
    left, text = round(value * 1000), ""
    for length, unit in _UNITS:
        whole, left = divmod(left, length * 1000)
        text += f"{whole}{unit}" if whole else ""
    return text + (f"{left}ms" if left else "") or "0"
