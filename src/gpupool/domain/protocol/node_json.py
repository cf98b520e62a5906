"""Nodes, GPUs and samples as plain JSON, for messages between the control plane and an agent."""

from __future__ import annotations

from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from gpupool.domain.nodes.gpu import Gpu, NodeReport
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    """Return plain JSON values; the indices of ``links`` become texts, as JSON requires."""
    data = asdict(gpu)
    data["links"] = {str(index): link for index, link in gpu.links.items()}
    return data


def report_to_dict(report: NodeReport) -> dict[str, Any]:
    """Return plain JSON values."""
    data = asdict(report)
    data["gpus"] = [gpu_to_dict(gpu) for gpu in report.gpus]
    return data


def sample_to_list(look: NodeSample) -> list[Any]:
    """Return plain JSON values in field order, without field names and the node's name: samples are frequent."""
    gpus, replicas = [_gpu_row(gpu) for gpu in look.gpus], [_replica_row(replica) for replica in look.replicas]
    return [look.number, look.at, look.cpu_percent, look.memory_used_mib, gpus, replicas]


def sample_from_list(node: str, row: list[Any]) -> NodeSample:
    """Rebuild from ``sample_to_list``; additions of a newer peer at the end of a row are dropped."""
    number, at, cpu_percent, memory_used_mib, gpus, replicas = row[:6]
    gpu_samples = tuple(GpuSample(*gpu[: len(_GPU_FIELDS)]) for gpu in gpus)
    replica_samples = tuple(ReplicaSample(*replica[: len(_REPLICA_FIELDS)]) for replica in replicas)
    return NodeSample(node, number, at, cpu_percent, memory_used_mib, gpu_samples, replica_samples)


_GPU_FIELDS = tuple(f.name for f in fields(GpuSample))
_REPLICA_FIELDS = tuple(f.name for f in fields(ReplicaSample))
_gpu_row = attrgetter(*_GPU_FIELDS)
_replica_row = attrgetter(*_REPLICA_FIELDS)
