"""The submission form: from fields to a request, and from a workload to fields.

Each field is read separately, so that all mistakes are shown at once, each at its field.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.fields.templates import as_text
from gpupool.specs.job_options import JOB_FIELDS, OptionKind
from gpupool.specs.options import SweepOptions, parse_after, parse_gpu_amount, parse_pairs
from gpupool.specs.request import RequestError, WorkloadRequest, parse_request
from gpupool.web.pages.submit.command_line import needs_file

T = TypeVar("T")
Values = dict[str, Any]
Path = tuple[str | int, ...]

MAX_PASSES = 12
SHELL = ["sh", "-c"]
KINDS = (
    ("training", "Training: batch job, preemptible"),
    ("interactive", "Interactive session: with a terminal, protected within quota"),
    ("lease", "Lease: hold GPUs and run programs on them later"),
)
INPUTS = {option.name: option for option in JOB_FIELDS if option.form is not None}
SECTIONS = {
    section: [name for name, option in INPUTS.items() if option.form is not None and option.form.section == section]
    for section in ("limits", "program", "course")
}
FIELDS = (
    *("name", "project", "kind", "command", "shell", "workdir", "gpus", "gpu_memory", "models", "sharing", "priority"),
    *("env", "labels", "windows", "after", "sweep", "workers", "min_workers", "preemptible", "tty", "lifetime"),
    "request_id",
    *INPUTS,
)
# Errors after the request was read, and the field where each is shown.
_FIELD_OF_CODE = {
    ErrorCode.NAME_TAKEN: "name",
    ErrorCode.UNKNOWN_PROJECT: "project",
    ErrorCode.FORBIDDEN: "project",
    ErrorCode.UNKNOWN_WORKLOAD: "after",
    ErrorCode.IMPOSSIBLE_REQUEST: "gpus",
    ErrorCode.UNKNOWN_MODEL: "models",
    ErrorCode.OVER_LIMIT: "gpus",
    ErrorCode.INVALID_DURATION: "max_time",
}
_FIELD_OF_STEP = {"memory_mib": "gpu_memory", "gang": "workers", "min": "min_workers"}
_PLAIN = frozenset({*INPUTS, "name", "project", "kind", "workdir", "priority", "lifetime", "preemptible", "tty"})


@dataclass(frozen=True, slots=True)
class FieldMistake:
    """An error of one field (empty name: of the whole form), with a hint."""

    field: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class FormDraft:
    """A form as filled in: its values and mistakes. ``request`` is None if there are mistakes."""

    values: Mapping[str, str]
    body: Values
    wrong: tuple[FieldMistake, ...] = ()
    request: WorkloadRequest | None = None

    def with_wrong(self, error: GpupoolError) -> FormDraft:
        """Return the draft with an error of the pool."""
        return FormDraft(
            self.values, self.body, (*self.wrong, FieldMistake(place_of(error), error.message, error.hint)), None
        )


@dataclass(slots=True)
class _Reading:
    """Collects values and mistakes while a form is read."""

    values: Mapping[str, str]
    body: Values = field(default_factory=dict)
    wrong: list[FieldMistake] = field(default_factory=list)

    def text(self, name: str) -> str:
        return self.values.get(name, "").strip()

    def take(self, name: str, into: str, read: Callable[[str], Any]) -> None:
        """Put what ``read`` makes of a field into the body, or note why it cannot be read."""
        if not self.text(name):
            return
        try:
            self.body[into] = read(self.text(name))
        except GpupoolError as error:
            self.wrong.append(FieldMistake(name, error.message, error.hint))


def read_form(values: Mapping[str, str], defaults: Mapping[str, str], home: str) -> FormDraft:
    """Read the request of a form; ``defaults`` is the default environment, ``home`` the default folder."""
    reading = _Reading(values)
    lease = reading.text("kind") == "lease"
    reading.body["kind"] = reading.text("kind") or "training"
    for name in ("name", "project"):
        reading.take(name, name, str)
    for name, option in INPUTS.items():
        reading.take(name, name, _READERS.get(option.kind, str))
    reading.take("priority", "priority", _priority)
    reading.take("labels", "labels", lambda text: parse_pairs(_lines(text)))
    _read_gpus(reading)
    if lease:
        reading.take("lifetime", "lifetime", str)
    else:
        _read_program(reading, defaults, home)
        _read_course(reading)
    reading.body["request_id"] = reading.text("request_id") or secrets.token_hex(16)
    return _checked(reading)


def _read_gpus(reading: _Reading) -> None:
    gpus: Values = {}
    part = _Reading(reading.values, gpus, reading.wrong)
    if reading.text("gpu_memory"):
        part.take("gpu_memory", "memory_mib", str)
        part.take("gpus", "count", lambda text: parse_gpu_amount(text).get("count", 1))
    else:
        part.take("gpus", "amount", parse_gpu_amount)
        gpus |= gpus.pop("amount", {})
    part.take("models", "models", lambda text: [word for word in text.replace(",", " ").split() if word])
    part.take("sharing", "sharing", str)
    reading.body["gpus"] = gpus


def _read_program(reading: _Reading, defaults: Mapping[str, str], home: str) -> None:
    shell = bool(reading.text("shell"))
    reading.take("command", "command", lambda text: [*SHELL, text] if shell else _words(text))
    reading.body["workdir"] = reading.text("workdir") or home
    reading.body["env"] = dict(defaults)
    env = _Reading(reading.values, {}, reading.wrong)
    env.take("env", "env", read_environment)
    reading.body["env"] |= env.body.get("env", {})
    if reading.text("tty") or reading.body["kind"] == "interactive":
        reading.body["tty"] = True


def _read_course(reading: _Reading) -> None:
    reading.take("windows", "windows", lambda text: _lines(text.replace(";", "\n")))
    reading.take("after", "after", lambda text: parse_after(text.replace(",", " ").split()))
    reading.take("sweep", "sweep", lambda text: SweepOptions(grid=tuple(_lines(text))).to_spec())
    reading.take("preemptible", "preemptible", lambda text: text == "yes")
    if reading.text("workers"):
        gang = _Reading(reading.values, {}, reading.wrong)
        gang.take("workers", "workers", _whole)
        gang.take("min_workers", "min", _whole)
        reading.body["gang"] = gang.body


def _checked(reading: _Reading) -> FormDraft:
    """Check the whole; wrong fields are recorded and omitted, so that the rest is checked too."""
    trial: Values = dict(reading.body)
    wrong = list(reading.wrong)
    for _ in range(MAX_PASSES):
        try:
            request = parse_request(trial)
        except RequestError as error:
            place = place_of(error)
            if place not in {w.field for w in wrong}:
                wrong.append(FieldMistake(place, error.message, error.hint))
            if not _without(trial, error.path):
                break
        else:
            return FormDraft(reading.values, reading.body, tuple(wrong), None if wrong else request)
    return FormDraft(reading.values, reading.body, tuple(wrong))


def _without(body: Values, path: Path) -> bool:
    """Take what a path leads to out of a body; False when there is nothing to take out."""
    if not path or path[0] not in body:
        if path == ("command",):
            body["command"] = ["true"]
            return True
        return False
    head = path[0]
    inner = body[head]
    if head == "gpus" and len(path) > 1 and isinstance(inner, dict) and path[1] in inner:
        body[head] = {name: value for name, value in inner.items() if name != path[1]}
    elif head == "command":
        body["command"] = ["true"]
    else:
        del body[str(head)]
    return True


def place_of(error: GpupoolError) -> str:
    """Return the field where an error is shown; empty: above the form."""
    path: Path = error.path if isinstance(error, RequestError) else ()
    if not path:
        return _FIELD_OF_CODE.get(error.code, "")
    steps = [str(step) for step in path]
    for step in reversed(steps[:2]):
        if step in _FIELD_OF_STEP:
            return _FIELD_OF_STEP[step]
    if steps[0] == "gpus":
        return steps[1] if len(steps) > 1 and steps[1] in {"models", "sharing"} else "gpus"
    return steps[0] if steps[0] in FIELDS else ""


# Single values


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"The command cannot be read: {error}.",
            "Close the quotes, or run it in a shell.",
        ) from error


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a whole number.", "Write 4, for example.")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a number.", "Write 4 or 0.5, for example."
        ) from error


_READERS: dict[int, Callable[[str], Any]] = {OptionKind.COUNT: _whole, OptionKind.NUMBER: _number}


def _priority(text: str) -> int | str:
    return int(text) if text.lstrip("+-").isdecimal() and len(text) < 7 else text


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


# Environments: one KEY=VALUE a line; a line's end inside a value is written \n, a backslash \\


def read_environment(text: str) -> dict[str, str]:
    """Read one variable per line; raise ``GpupoolError(INVALID_NAME)`` for an invalid line."""
    env: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.strip().partition("=")
        if not name or not equals:
            raise GpupoolError(ErrorCode.INVALID_NAME, f"'{line[:80]}' is not KEY=VALUE.", "One variable a line.")
        env[name] = _unescaped(value)
    return env


def _unescaped(value: str) -> str:
    parts = value.split("\\\\")
    return "\\".join(part.replace("\\n", "\n") for part in parts)


def write_environment(env: Mapping[str, str]) -> str:
    """Write variables so that ``read_environment`` reads them back."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in env.items()}
    return "\n".join(f"{name}={value}" for name, value in escaped.items())


# Back to fields


def form_values(body: Values, defaults: Mapping[str, str], home: str) -> dict[str, str] | None:
    """Return the form fields of a request; None if the form cannot express it."""
    if needs_file(body) or any(name not in _KNOWN for name in body):
        return None
    values = {name: value for name, value in _values(body, defaults) if value}
    draft = read_form(values, defaults, home)
    return values if draft.request is not None and _same(parse_request(body), draft.request) else None


def _same(wanted: WorkloadRequest, made: WorkloadRequest) -> bool:
    """Return whether a form has the wanted fields; the usual environment and the home folder may be added."""
    mine, theirs = made.to_body(), wanted.to_body()
    usual = {"env": theirs.get("env"), "workdir": theirs.get("workdir") or mine.get("workdir")}
    kept = all(made.env.get(name) == value for name, value in wanted.env.items())
    return kept and {**mine, **usual, "request_id": None} == {**theirs, **usual, "request_id": None}


_TIMES = frozenset({"lifetime", *(name for name, option in INPUTS.items() if option.metavar == "TIME")})
_KNOWN = {*_PLAIN, "command", "gpus", "env", "labels", "windows", "after", "sweep", "gang", "umask", "request_id"}


def _values(body: Values, defaults: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in _PLAIN - {"preemptible", "tty"}:
        value = body.get(name)
        yield name, _duration(value) if name in _TIMES and isinstance(value, int | float) else _text(value)
    command = [str(word) for word in body.get("command", ())]
    shell = len(command) == 3 and command[:2] == SHELL
    yield "command", command[2] if shell else shlex.join(command)
    yield "shell", "on" if shell else ""
    yield "tty", "on" if body.get("tty") else ""
    preemptible = body.get("preemptible")
    yield "preemptible", "" if preemptible is None else "yes" if preemptible else "no"
    yield from _gpu_values(body.get("gpus") or {})
    env = {name: value for name, value in (body.get("env") or {}).items() if defaults.get(name) != value}
    yield "env", write_environment(env)
    yield "labels", "\n".join(f"{key}={value}" for key, value in (body.get("labels") or {}).items())
    yield "windows", "\n".join(body.get("windows") or ())
    yield "after", " ".join(_after(body.get("after") or ()))
    grid = (body.get("sweep") or {}).get("grid") or {}
    yield "sweep", "\n".join(f"{name}={','.join(map(as_text, values))}" for name, values in grid.items())
    gang = body.get("gang") or {}
    yield "workers", _text(gang.get("workers"))
    yield "min_workers", _text(gang.get("min"))


def _gpu_values(gpus: Values) -> Iterator[tuple[str, str]]:
    fraction = gpus.get("fraction")
    yield "gpus", _text(fraction) if fraction not in {None, 1} else _text(gpus.get("count", 1))
    yield "gpu_memory", _text(gpus.get("memory_mib"))
    yield "models", " ".join(gpus.get("models") or ())
    yield "sharing", _text(gpus.get("sharing"))


def _after(after: Iterable[Any]) -> Iterator[str]:
    for one in after:
        condition = one.get("condition", "success")
        yield one["workload"] + ("" if condition == "success" else f":{condition}")


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s" if seconds else "0"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
