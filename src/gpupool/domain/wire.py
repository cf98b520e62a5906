"""Nodes, GPUs and pieces of log as plain JSON values, for what travels between the control plane and an agent."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from gpupool.domain.gpu import ForeignProcess, Gpu, GpuHealth, NodeReport
from gpupool.domain.supervision import LogChunk


def _known(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    """Only the keys that this version knows: a newer peer may send more."""
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in data.items() if key in names}


def _each(make: Callable[..., Any], kind: type[Any], rows: Any) -> tuple[Any, ...]:
    return tuple(make(**_known(kind, row)) for row in rows)


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    """Plain JSON values; the indices of ``links`` become texts, as JSON wants."""
    data = asdict(gpu)
    data["links"] = {str(index): link for index, link in gpu.links.items()}
    return data


def gpu_from_dict(data: dict[str, Any]) -> Gpu:
    """The inverse of ``gpu_to_dict``; unknown keys are dropped."""
    known = _known(Gpu, data)
    known["health"] = GpuHealth(known.get("health", GpuHealth.OK))
    known["links"] = {int(index): link for index, link in known.get("links", {}).items()}
    known["foreign"] = _each(ForeignProcess, ForeignProcess, known.get("foreign", ()))
    return Gpu(**known)


def report_to_dict(report: NodeReport) -> dict[str, Any]:
    """Plain JSON values."""
    data = asdict(report)
    data["gpus"] = [gpu_to_dict(gpu) for gpu in report.gpus]
    return data


def report_from_dict(data: dict[str, Any]) -> NodeReport:
    """The inverse of ``report_to_dict``; unknown keys are dropped."""
    known = _known(NodeReport, data)
    known["gpus"] = tuple(gpu_from_dict(gpu) for gpu in known.get("gpus", ()))
    known["warnings"] = tuple(known.get("warnings", ()))
    known["sharing"] = tuple(known.get("sharing", ()))
    return NodeReport(**known)


def chunk_to_dict(chunk: LogChunk) -> dict[str, Any]:
    """Plain JSON values; the bytes are base64."""
    text = base64.b64encode(chunk.data).decode()
    return {"at": chunk.at, "stream": chunk.stream, "data": text, "cursor": chunk.cursor}


def chunk_from_dict(data: dict[str, Any]) -> LogChunk:
    """The inverse of ``chunk_to_dict``."""
    return LogChunk(data["at"], data["stream"], base64.b64decode(data["data"]), data["cursor"])
