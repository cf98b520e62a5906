"""The command line that submits the same request as a form."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpupool.domain.work.workload import WorkloadKind
from gpupool.specs.fields.templates import as_text
from gpupool.specs.job_options import JOB_FIELDS, OptionKind

Body = Mapping[str, Any]

# Fields that one option carries as it is. The name is an argument of ``submit``.
_FIELDS = [field for field in JOB_FIELDS if field.kind is not OptionKind.FLAG and field.name != "name"]
_PLAIN = {"workdir": "--workdir", **{field.name: field.long for field in _FIELDS}, "lifetime": "--for"}
_DURATIONS = frozenset({"lifetime", *(field.name for field in _FIELDS if field.metavar == "TIME")})
_OF_GPUS = {"compute": "--compute", "sharing": "--sharing", "placement": "--placement"}


def command_line(body: Body, kept_env: Iterable[str] = ()) -> str:
    """Return ``gpupool submit ...`` (``request_gpus`` for a lease) for the plain values of a request.

    ``kept_env`` are variables that the shell has anyway. What no option can say (parameter sets of a list) is left to
    a job file: see ``needs_file``.
    """
    lease = body.get("kind") == WorkloadKind.LEASE
    words = ["gpupool", "request_gpus" if lease else "submit"]
    if body.get("name"):
        words += ["--name", str(body["name"])] if lease else [str(body["name"])]
    words += _options(body, frozenset(kept_env))
    command = [str(word) for word in body.get("command", ())]
    return shlex.join(words) if lease else f"{shlex.join(words)} -- {shlex.join(command) or 'COMMAND'}"


def needs_file(body: Body) -> bool:
    """Return True if command line options cannot express the request."""
    sweep = body.get("sweep") or {}
    return (
        bool(body.get("roles"))
        or "list" in sweep
        or "random" in sweep
        or body.get("kind") not in {None, "training", "interactive", "lease"}
    )


def _options(body: Body, kept_env: frozenset[str]) -> list[str]:
    words: list[str] = []
    if body.get("kind") == WorkloadKind.INTERACTIVE:
        words.append("--interactive")
    words += _gpus(body.get("gpus") or {})
    for field, option in _PLAIN.items():
        if body.get(field) not in {None, ""}:
            words += _option(option, _value(field, body[field]))
    words += _flags(body)
    words += _repeated(body, kept_env)
    return words


def _option(option: str, value: str) -> list[str]:
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def _value(field: str, value: Any) -> str:
    if field in _DURATIONS and isinstance(value, int | float):
        return f"{value:g}s" if value else "0"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _gpus(gpus: Body) -> Iterator[str]:
    count, fraction = gpus.get("count", 1), gpus.get("fraction")
    if gpus.get("memory_mib") is not None:
        yield from (["-n", str(count)] if count != 1 else [])
        yield from ("-m", str(gpus["memory_mib"]))
    elif fraction in {None, 1}:
        yield from ("-g", str(count))
    elif count == 1:
        yield from ("-g", f"{fraction:g}" if isinstance(fraction, float) else str(fraction))
    else:
        yield from ("-n", str(count), "-p", f"{fraction:g}" if isinstance(fraction, float) else str(fraction))
    for model in gpus.get("models") or ():
        yield from ("--model", str(model))
    for name, option in _OF_GPUS.items():
        if gpus.get(name) is not None:
            yield from (option, str(gpus[name]))
    for key, value in (gpus.get("labels") or {}).items():
        yield from ("--pool", str(value)) if key == "pool" else ("--filter", f"{key}={value}")


def _flags(body: Body) -> Iterator[str]:
    interactive = body.get("kind") == WorkloadKind.INTERACTIVE
    preemptible = body.get("preemptible")
    if preemptible is not None and bool(preemptible) != (body.get("kind", "training") == "training"):
        yield "--preemptible" if preemptible else "--no-preemptible"
    if bool(body.get("tty")) != interactive:
        yield "--tty" if body.get("tty") else "--no-tty"
    if body.get("stdin"):
        yield "--stdin"


def _repeated(body: Body, kept_env: frozenset[str]) -> Iterator[str]:
    for name, value in (body.get("env") or {}).items():
        if name not in kept_env:
            yield from ("--env", f"{name}={value}")
    for key, value in (body.get("labels") or {}).items():
        yield from ("--label", f"{key}={value}")
    for window in body.get("windows") or ():
        yield from ("--window", str(window))
    for after in body.get("after") or ():
        yield from ("--after", _after(after))
    yield from _gang(body.get("gang") or {})
    for name, values in ((body.get("sweep") or {}).get("grid") or {}).items():
        yield from ("--sweep", f"{name}={','.join(as_text(value) for value in values)}")


def _after(after: Any) -> str:
    if isinstance(after, str):
        return after
    condition = after.get("condition", "success")
    return str(after["workload"]) + ("" if condition == "success" else f":{condition}")


def _gang(gang: Body) -> Iterator[str]:
    if not gang:
        return
    yield from ("--workers", str(gang["workers"]))
    if gang.get("min") is not None:
        yield from ("--min-workers", str(gang["min"]))
    if gang.get("within"):
        yield from ("--within-strictly" if gang.get("strict") else "--within", str(gang["within"]))
    if gang.get("mixed_models"):
        yield "--mixed-models"
