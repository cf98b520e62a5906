"""What ``Client.submit`` takes beside the command, and how it becomes a request."""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.request import WorkloadRequest, parse_request

Command = str | Sequence[str]
Quantity = str | float


class ApplyOptions(TypedDict, total=False):
    """What may be said besides manifests: as the options of ``gpupool apply``."""

    project: str | None
    no_container: bool
    container: str
    claims: dict[str, str]
    env: dict[str, str]
    workdir: str
    force: bool
    dry_run: bool


class SubmitOptions(TypedDict, total=False):
    """Fields of a request by their names; durations and sizes are numbers (seconds, MiB) or text (30m, 4G).

    ``gpus`` is a number of GPUs, or the whole mapping of a job file; ``fraction`` or ``memory_mib`` is the part of
    each, ``models`` those that will do, ``compute`` (guarantee, cap, none) what the part means for time, ``sharing``
    the mode in which it is kept apart, ``placement`` (pack, spread) where it goes of several places. ``env`` is added
    to what the pool sets. ``folder`` is sent along as it is now, without what its .gpupoolignore (with ``gitignore``
    its .gitignore, too) leaves out, and the program starts in that copy, or in ``workdir`` of it; ``tree`` names one
    that was sent before. ``lock`` is the file in it from which an environment is made.
    """

    name: str
    kind: str
    gpus: int | Mapping[str, Any]
    fraction: Quantity
    memory_mib: Quantity
    models: Sequence[str]
    compute: str
    sharing: str
    placement: str
    env: Mapping[str, str]
    workdir: str
    folder: str | os.PathLike[str]
    gitignore: bool
    tree: str
    lock: str
    project: str
    priority: int | str
    cpus: float
    memory: Quantity
    wait: Quantity
    max_time: Quantity
    idle_timeout: Quantity
    grace: Quantity
    notice_signal: str
    lifetime: Quantity
    restart: str
    backoff_limit: int
    preemptible: bool
    completions: int
    parallelism: int
    gang: Mapping[str, Any]
    sweep: Mapping[str, Any]
    after: Sequence[str | Mapping[str, Any]]
    windows: Sequence[str]
    on: str
    on_index: int
    labels: Mapping[str, str]
    log_limit: Quantity
    image: str
    volumes: Sequence[str | Mapping[str, Any]]
    pull: str
    entrypoint: Sequence[str]
    container_user: str
    network: str
    read_only: bool
    shm: Quantity
    request_id: str


_GPU_FIELDS = ("fraction", "memory_mib", "models", "compute", "sharing", "placement")
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "LD_LIBRARY_PATH",
)


def build_request(command: Command, options: SubmitOptions, *, local: bool) -> WorkloadRequest:
    """The checked request.

    ``local``: the program runs on this machine, so it starts in the present folder and finds programs as this process
    does, unless told otherwise.
    Raises ``GpupoolError`` as ``specs.request.parse_request`` does; nothing has been sent then.
    """
    fields: dict[str, Any] = dict(options)
    fields["command"] = split_command(command)
    gpus = _gpus(fields)
    if gpus:
        fields["gpus"] = gpus
    if local and fields["command"] and "image" not in fields:
        if "tree" not in fields:
            fields.setdefault("workdir", str(Path.cwd()))
        own = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        fields["env"] = own | dict(fields.get("env") or {})
    fields.setdefault("request_id", uuid.uuid4().hex)
    return parse_request({name: _plain(value) for name, value in fields.items() if value is not None})


def split_command(command: Command) -> list[str]:
    """The program and its arguments; text is split as a shell splits words, but no shell is involved.

    Raises ``GpupoolError(INVALID_REQUEST)`` for text with an open quote.
    """
    if not isinstance(command, str):
        return [os.fspath(word) for word in command]
    try:
        return shlex.split(command)
    except ValueError as error:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"The command cannot be read: {error}.", "Close the quotes, or give a list."
        ) from error


def _gpus(fields: dict[str, Any]) -> dict[str, Any]:
    given = fields.pop("gpus", None)
    parts = {name: fields.pop(name) for name in _GPU_FIELDS if name in fields}
    if isinstance(given, Mapping):
        return {**given, **parts}
    return parts if given is None else {"count": given, **parts}


def _plain(value: object) -> object:
    """Mappings and sequences as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(inner) for inner in value]
    return value
