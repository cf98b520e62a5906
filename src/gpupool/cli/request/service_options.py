"""The options of ``serve`` and ``service update``, and their conversion to a request."""

from __future__ import annotations

import os
import shlex
from typing import Any

from gpupool.cli.request import request_body
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.job_options import (
    CONTAINER_OPTIONS,
    GPU_OPTIONS,
    GPUS,
    HOST_OPTIONS,
    LOG_LIMIT,
    OUTPUT,
    PROGRAM_OPTIONS,
    QUEUE,
    QUEUE_OPTIONS,
    Option,
    OptionKind,
)

SERVICE = "Service"
_NOT_HERE = frozenset({"name", "wait", "no_wait", "idle_timeout", "workspace", "checkpoint", "model"})


def _text(name: str, flags: str, about: str, metavar: str) -> Option:
    return Option(name, flags, OptionKind.TEXT, about, SERVICE, metavar)


SERVICE_OPTIONS = (
    _text("replicas", "--replicas", "Run this number of replicas, or a range: 2, 0..4 (default: 1).", "N"),
    Option("served_model", "--model", OptionKind.REPEATED, "Route OpenAI requests for this model.", SERVICE, "NAME"),
    Option("service_port", "--port", OptionKind.COUNT, "Listen on this port; default: a free one.", SERVICE, "PORT"),
    _text("port_env", "--port-env", "Put the port into this variable (PORT).", "NAME"),
    _text("ready_http", "--ready", "Wait until a GET of this path succeeds; default: until it listens.", "PATH"),
    _text("ready_command", "--ready-command", "Wait until this command succeeds where the replica runs.", "COMMAND"),
    _text("ready_within", "--ready-within", "Restart a replica that is not ready after this time (10m).", "TIME"),
    Option("concurrency", "--concurrency", OptionKind.COUNT, "Scale to this number of requests each.", SERVICE, "N"),
    _text("scale_up", "--scale-up", "Add a replica after more demand for this time (10s).", "TIME"),
    _text("scale_down", "--scale-down", "Remove a replica after less demand for this time (5m).", "TIME"),
    _text("to_zero", "--to-zero", "Stop the last replica after this time without requests (15m).", "TIME"),
    _text("access", "--access", "Answer public, members (of the pool), project (default) or token.", "WHO"),
    Option("host", "--host", OptionKind.REPEATED, "Route requests for this host name; repeatable.", SERVICE, "HOST"),
    Option("surge", "--surge", OptionKind.COUNT, "Use this number of more replicas in updates (1).", SERVICE, "N"),
    _text("drain", "--drain", "Give a replica this time to end its requests (2m).", "TIME"),
    Option("held", "--held", OptionKind.COUNT, "Hold this number of requests until one is ready.", SERVICE, "N"),
)
SERVE = (
    *(option for option in GPU_OPTIONS if option.name not in _NOT_HERE),
    Option(
        "model", "--gpu-model", OptionKind.REPEATED, "Require this GPU model; repeat to accept several.", GPUS, "NAME"
    ),
    *SERVICE_OPTIONS,
    *(option for option in QUEUE_OPTIONS if option.name not in _NOT_HERE),
    Option("preemptible", "--preemptible", OptionKind.FLAG, "Allow preemption of all replicas.", QUEUE),
    *HOST_OPTIONS,
    LOG_LIMIT,
    *(option for option in PROGRAM_OPTIONS if option.name not in _NOT_HERE),
    *CONTAINER_OPTIONS,
    Option("file", "-f --file", OptionKind.TEXT, "Read the service from a YAML or JSON file.", OUTPUT, "FILE"),
    Option("json", "--json", OptionKind.FLAG, "Print the JSON of the API.", OUTPUT),
)
# Where an option's value belongs in the section ``service``.
_PLACES: dict[str, tuple[str, ...]] = {
    "replicas": ("replicas",),
    "served_model": ("model",),
    "service_port": ("port",),
    "port_env": ("port_env",),
    "ready_http": ("ready", "http"),
    "ready_command": ("ready", "command"),
    "ready_within": ("ready", "within"),
    "concurrency": ("scale", "concurrency"),
    "scale_up": ("scale", "up"),
    "scale_down": ("scale", "down"),
    "to_zero": ("scale", "to_zero"),
    "access": ("access",),
    "host": ("hosts",),
    "surge": ("update", "surge"),
    "drain": ("update", "drain"),
    "held": ("held", "requests"),
}


def service_request(name: str, values: dict[str, Any], command: list[str], before: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request: the options over the fields of a file, or of the present definition."""
    body = request_body.workload_body(values, command)
    if log_limit := values.get("log_limit"):
        body["log_limit"] = log_limit
    if values.get("preemptible"):
        body["preemptible"] = True
    spec = _merged(before.get("service") or {}, values)
    merged = {**before, **body, "kind": "service", "service": spec}
    if name:
        merged["name"] = name
    if before and not command:
        merged["env"] = {**(before.get("env") or {}), **request_body.added_environment(values.get("env") or [])}
    if not merged.get("name"):
        raise GpupoolError(ErrorCode.INVALID_NAME, "The service has no name.", "Write `gpupool serve NAME -- COMMAND`.")
    return merged


def _merged(spec: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in spec.items()}
    for option, path in _PLACES.items():
        if (value := values.get(option)) is not None:
            part = merged.setdefault(path[0], {}) if len(path) == 2 else merged
            part[path[-1]] = words(value) if option == "ready_command" else value
    if values.get("ready_http") or values.get("ready_command"):  # one check replaces the other
        merged["ready"].pop("command" if values.get("ready_http") else "http", None)
    return merged


def words(text: str) -> list[str]:
    """Return the words of a command, quoted as in a shell. Raises ``GpupoolError(INVALID_REQUEST)``."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"The command of --ready-command has an open quote: {text[:80]}", "Close it."
        ) from error


def read_service(path: str) -> dict[str, Any]:
    """Return the one service in a job file. Raises ``GpupoolError``."""
    from gpupool.specs.jobfile import load_job_file

    here = os.getcwd()  # noqa: PTH109 - the reader takes text
    found = load_job_file(path, folder=here)
    if len(found) != 1 or found[0].kind != "service":
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} must have one request of the kind service.", "Begin with `kind: service`."
        )
    return found[0].to_body()
