"""GPU capacity over time: which GPUs the pool had, and which of them it could allocate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.nodes.gpu import Gpu, GpuHealth, Node, NodeState


class CapacityStatus(StrEnum):
    """State of a GPU for the capacity: whether it can be allocated."""

    AVAILABLE = "available"
    CORDONED = "cordoned"  # its node accepts no new work
    FAILED = "failed"  # the GPU has failed
    DOWN = "down"  # its node does not respond


@dataclass(frozen=True, slots=True)
class GpuCapacity:
    """A GPU as it counts towards the pool's capacity."""

    gpu_uuid: str
    node: str
    model: str
    status: CapacityStatus


@dataclass(frozen=True, slots=True)
class CapacityChange:
    """A change of a GPU to ``now`` at ``at`` (seconds since the epoch); ``now`` None: the GPU left the pool."""

    gpu_uuid: str
    at: float
    now: GpuCapacity | None


@dataclass(frozen=True, slots=True)
class CapacitySeconds:
    """GPU seconds in a period: of all GPUs in the pool, and of those that could be allocated."""

    present_s: float
    available_s: float


def capacity_of(node: Node) -> Iterable[GpuCapacity]:
    """Yield the GPUs of a node."""
    for gpu in node.report.gpus:
        yield GpuCapacity(gpu.uuid, node.name, gpu.model, _status(node, gpu))


def _status(node: Node, gpu: Gpu) -> CapacityStatus:
    if node.state is NodeState.DOWN:
        return CapacityStatus.DOWN
    if gpu.health is GpuHealth.FAILED:
        return CapacityStatus.FAILED
    cordoned = node.state is NodeState.CORDONED or node.cordon_of(gpu)
    return CapacityStatus.CORDONED if cordoned else CapacityStatus.AVAILABLE


def changes_between(
    before: Mapping[str, GpuCapacity], after: Mapping[str, GpuCapacity], at: float
) -> list[CapacityChange]:
    """Return the changes that turn one set of GPUs, by UUID, into another."""
    gone = [CapacityChange(uuid, at, None) for uuid in before.keys() - after.keys()]
    changed = [CapacityChange(uuid, at, gpu) for uuid, gpu in after.items() if before.get(uuid) != gpu]
    return sorted(gone, key=lambda change: change.gpu_uuid) + changed
