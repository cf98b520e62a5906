"""Conversion of pydantic's errors to one sentence that names the field."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gpupool.domain.errors import ErrorCode, GpupoolError

Path = tuple[str | int, ...]


class RequestError(GpupoolError):
    """An invalid request; ``path`` leads to the wrong field (``("gpus", "count")``)."""

    def __init__(self, code: ErrorCode, message: str, hint: str = "", path: Path = ()) -> None:
        super().__init__(code, message, hint)
        self.path = path


def refusal(code: ErrorCode, sentence: str, hint: str = "", path: Path = ()) -> PydanticCustomError:
    """Return the error that a validator raises: pydantic passes its code on, and ``path`` is appended to the field's.

    A sentence that begins with a lower-case letter is completed with the field's name in front.
    """
    return PydanticCustomError(code.value, "{sentence}", {"sentence": sentence, "hint": hint, "path": path})


def reworded(error: GpupoolError) -> PydanticCustomError:
    """Return the same for an error that the domain raised."""
    return refusal(error.code, error.message, error.hint)


def dotted(path: Sequence[str | int]) -> str:
    """Return a path in readable form: ``sweep.grid.lr[2]``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text if len(text) <= 120 else text[:117] + "..."


def translate(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """Return the most important fault as an error of the pool."""
    details = error.errors(include_url=False, include_input=False)
    return _translate_one(_most_telling(details), model)


def _most_telling(details: list[ErrorDetails]) -> ErrorDetails:
    """Prefer a misspelt field to the errors that its absence causes."""
    return next((d for d in details if d["type"] == "extra_forbidden"), details[0])


def _translate_one(detail: ErrorDetails, model: type[BaseModel]) -> RequestError:
    path: Path = tuple(step for step in detail["loc"] if step != "[key]")
    context: dict[str, Any] = detail.get("ctx", {})
    if detail["type"] in ErrorCode.__members__:
        path += tuple(context["path"])
        return RequestError(ErrorCode(detail["type"]), _sentence(path, context["sentence"]), context["hint"], path)
    if detail["type"] == "extra_forbidden":
        return _unknown_field(path, model)
    if detail["type"] == "missing":
        return RequestError(ErrorCode.INVALID_REQUEST, f"'{dotted(path)}' is missing.", path=path)
    wording = _WORDINGS.get(detail["type"])
    said = wording(context) if wording else detail["msg"].removeprefix("Input should be").strip()
    return RequestError(ErrorCode.INVALID_REQUEST, _sentence(path, f"must be {said}."), path=path)


def _sentence(path: Path, text: str) -> str:
    if not path:
        return f"The request {text}" if text[:1].islower() else text
    return f"'{dotted(path)}' {text}" if text[:1].islower() else f"'{dotted(path)}': {text}"


_WORDINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "string_type": lambda _: "text",
    "bool_type": lambda _: "true or false",
    "int_type": lambda _: "a whole number",
    "float_type": lambda _: "a number",
    "list_type": lambda _: "a list ([a, b])",
    "dict_type": lambda _: "a mapping of names to values",
    "model_type": lambda _: "a mapping of fields to values",
    "model_attributes_type": lambda _: "a mapping of fields to values",
    "enum": lambda context: str(context["expected"]).replace("'", ""),
    "greater_than": lambda context: f"above {context['gt']}",
    "greater_than_equal": lambda context: f"at least {context['ge']}",
    "less_than_equal": lambda context: f"at most {context['le']}",
    "too_long": lambda context: f"at most {context['max_length']} long",
    "string_too_long": lambda context: f"at most {context['max_length']} characters",
    "string_too_short": lambda _: "non-empty",
}


def _unknown_field(path: Path, model: type[BaseModel]) -> RequestError:
    known = _fields_at(model, path[:-1])
    wanted = str(path[-1])[:80]
    close = difflib.get_close_matches(wanted.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    hint = f"Did you mean '{close[0]}'?" if close else f"Known fields: {', '.join(known)}."
    return RequestError(ErrorCode.INVALID_REQUEST, f"There is no field '{dotted(path)}'.", hint, path)


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """Return the names of the fields of the model at a path of field names (and indexes or keys)."""
    for step in path:
        field = next((f for name, f in model.model_fields.items() if step in {name, f.alias}), None)
        if field is not None:
            model = _model_within(field.annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_within(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_within(part) for part in getattr(annotation, "__args__", ()))
    return next((found for found in inner if found is not None), None)
