"""The options of ``Client.submit`` besides the command, and their conversion to a request."""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.fields.request import Quantity, RequestOptions
from gpupool.specs.request import WorkloadRequest, parse_request

Command = str | Sequence[str]


class ApplyOptions(TypedDict, total=False):
    """The options of ``Client.apply``, as in ``gpupool apply``."""

    project: str | None
    no_container: bool
    container: str
    claims: dict[str, str]
    env: dict[str, str]
    workdir: str
    force: bool
    dry_run: bool


class SubmitOptions(RequestOptions, total=False):
    """The fields of a request, those of its GPUs by themselves, and the folder to upload.

    ``gpus`` is a number of GPUs, or the whole mapping of a job file. ``fraction`` or ``memory_mib`` is the part of each
    GPU, ``models`` the accepted GPU models, ``compute`` the policy for GPU time (guarantee, cap, none), ``sharing`` the
    sharing mode, ``placement`` the preferred nodes (pack, spread). ``env`` is added to the variables of the pool.

    ``folder`` is uploaded without the files that its .gpupoolignore (with ``gitignore`` also its .gitignore) excludes,
    and the program starts in that copy, or in ``workdir`` of it. ``tree`` names a folder that was uploaded before.
    ``lock`` is the file in it from which an environment is created.
    """

    gpus: int | Mapping[str, Any]
    fraction: Quantity
    memory_mib: Quantity
    models: Sequence[str]
    compute: str
    sharing: str
    placement: str
    folder: str | os.PathLike[str]
    gitignore: bool


_GPU_FIELDS = ("fraction", "memory_mib", "models", "compute", "sharing", "placement")
_COPIED_VARIABLES = (
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
    """Return the validated request.

    ``local``: the program runs on this machine, so by default it starts in the current folder with this process's PATH
    and similar variables. Raises ``GpupoolError`` as ``specs.request.parse_request`` does; nothing has been sent then.
    """
    fields: dict[str, Any] = dict(options)
    fields["command"] = split_command(command)
    gpus = _gpus(fields)
    if gpus:
        fields["gpus"] = gpus
    if local and fields["command"] and "image" not in fields:
        if "tree" not in fields and "workspace" not in fields:
            fields.setdefault("workdir", str(Path.cwd()))
        own = {name: os.environ[name] for name in _COPIED_VARIABLES if name in os.environ}
        fields["env"] = own | dict(fields.get("env") or {})
    fields.setdefault("request_id", uuid.uuid4().hex)
    return parse_request({name: _plain(value) for name, value in fields.items() if value is not None})


def split_command(command: Command) -> list[str]:
    """Return the program and its arguments; text is split like in a shell, without running a shell.

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
    """Convert mappings and sequences to JSON types."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(inner) for inner in value]
    return value
