"""The request for a kernel's workload: from its kernel specification, and variables of the notebook."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

KERNEL_LABEL = "jupyter-kernel"
DEFAULT_WAIT = "10m"

# Variables that override the size of a kernel, for one notebook or for a whole Jupyter Server.
FRACTION, MEMORY, GPUS = "GPUPOOL_KERNEL_FRACTION", "GPUPOOL_KERNEL_MEMORY", "GPUPOOL_KERNEL_GPUS"
PROJECT, WAIT, IDLE = "GPUPOOL_KERNEL_PROJECT", "GPUPOOL_KERNEL_WAIT", "GPUPOOL_KERNEL_IDLE_TIMEOUT"
SIZE_VARIABLES = (FRACTION, MEMORY, GPUS, PROJECT, WAIT, IDLE)

NOTEBOOK = "JPY_SESSION_NAME"  # Jupyter Server's name for the path of the notebook; useful to programs, no secret
_SECRET = frozenset({"JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "GPUPOOL_TOKEN", "GPUPOOL_URL", "GPUPOOL_CA"})
_SERVER_PREFIX = "JPY_"  # JPY_PARENT_PID would end the kernel together with the server
_OF_WORKLOAD_PREFIX = "GPUPOOL_"  # of the workload in which Jupyter Server itself may run
_DEVICE_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})


def kernel_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a kernel: the server's, without its secrets and without what its own slice set."""
    in_workload = "GPUPOOL_WORKLOAD_ID" in env
    return {name: value for name, value in env.items() if _is_for_kernel(name, value, in_workload=in_workload)}


def portable_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mean the same on another machine: the name of the notebook, and sizes."""
    return {name: env[name] for name in (NOTEBOOK, *SIZE_VARIABLES) if env.get(name) and _is_text(env[name])}


def _is_for_kernel(name: str, value: str, *, in_workload: bool) -> bool:
    if name == NOTEBOOK:
        return _is_text(value)
    if name in _SECRET or name.startswith(_SERVER_PREFIX) or not _is_text(name + value):
        return False
    if not in_workload:
        return True
    of_slice = name in _DEVICE_VARIABLES or (name == "LD_PRELOAD" and "gpupool" in value)
    return not (of_slice or (name.startswith(_OF_WORKLOAD_PREFIX) and name not in SIZE_VARIABLES))


def _is_text(text: str) -> bool:
    """Return whether JSON can carry a text of the environment."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sizes_in(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that override the size of a kernel."""
    return {name: env[name] for name in SIZE_VARIABLES if env.get(name)}


def build_fields(request: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the kernel's workload. Raises ``GpupoolError(INVALID_COUNT)``."""
    fields = {"wait": DEFAULT_WAIT, **request}
    gpus = dict(fields.pop("gpus", None) or {})
    if GPUS in env or FRACTION in env or MEMORY in env:
        for part in ("fraction", "memory_mib"):
            gpus.pop(part, None)
    if env.get(GPUS):
        gpus["count"] = _count(env[GPUS])
    if env.get(FRACTION):
        gpus["fraction"] = env[FRACTION]
    if env.get(MEMORY):
        gpus["memory_mib"] = env[MEMORY]
    chosen = {"project": env.get(PROJECT), "wait": env.get(WAIT), "idle_timeout": env.get(IDLE)}
    return {**fields, "gpus": gpus, **{name: value for name, value in chosen.items() if value}}


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise GpupoolError(
            ErrorCode.INVALID_COUNT,
            f"{GPUS} is '{text[:40]}', not a number of GPUs.",
            f"For parts of a GPU set {FRACTION} or {MEMORY}.",
        )
    return int(text)


def workload_name(notebook: str, language: str, kernel_id: str) -> str:
    """Return a name for the list of workloads: that of the notebook, else of the language, and of the kernel id."""
    words = [PurePath(notebook).stem or language.lower(), kernel_id[:8]]
    plain = [re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("-._")[:40] for word in words]
    return "-".join(["kernel", *filter(None, plain)])


def notebook_path(env: Mapping[str, str]) -> str:
    """Return the absolute path of the notebook; empty if there is none, as for consoles."""
    path = env.get(NOTEBOOK, "")
    return path if os.path.isabs(path) and os.path.isfile(path) else ""  # noqa: PTH113, PTH117 - text in, text out
