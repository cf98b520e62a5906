"""Nodes, GPUs and looks as plain JSON, for what travels between the control plane and an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from gpupool.domain.gpu import ForeignProcess, Gpu, GpuHealth, NodeReport
from gpupool.domain.telemetry import GpuSample, NodeSample, ReplicaSample


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


def look_to_list(look: NodeSample) -> list[Any]:
    """Plain JSON values in the order of the fields, without their names and the node's: looks are many."""
    gpus, replicas = [_gpu_row(gpu) for gpu in look.gpus], [_replica_row(replica) for replica in look.replicas]
    return [look.number, look.at, look.cpu_percent, look.memory_used_mib, gpus, replicas]


def look_from_list(node: str, row: list[Any]) -> NodeSample:
    """The inverse of ``look_to_list``; what a newer peer has added at the end of a row is dropped."""
    number, at, cpu_percent, memory_used_mib, gpus, replicas = row[:6]
    gpu_samples = tuple(GpuSample(*gpu[: len(_GPU_FIELDS)]) for gpu in gpus)
    replica_samples = tuple(ReplicaSample(*replica[: len(_REPLICA_FIELDS)]) for replica in replicas)
    return NodeSample(node, number, at, cpu_percent, memory_used_mib, gpu_samples, replica_samples)


_GPU_FIELDS = tuple(f.name for f in fields(GpuSample))
_REPLICA_FIELDS = tuple(f.name for f in fields(ReplicaSample))
_gpu_row = attrgetter(*_GPU_FIELDS)
_replica_row = attrgetter(*_REPLICA_FIELDS)
