"""What telemetry asks of the store: rows of what was measured, added to, read and dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpupool.domain.ids import WorkloadId
from gpupool.domain.telemetry import GpuUse, NodeUse, ReplicaUse, Step, Uses


class UseRows(Protocol):
    """Each method is one transaction; errors are ``GpupoolError`` (DATABASE_*)."""

    async def save(self, uses: Uses, numbers: Mapping[str, int]) -> None:
        """Add rows of minutes to those there are, and to those of their hours.

        ``numbers`` says by node which look is the last that is in them: with them, or not at all.
        """

    async def written(self) -> Mapping[str, int]:
        """By node the number of the last look that is in the rows."""

    async def of_gpu(self, uuid: str, step: Step, since: float, until: float) -> Sequence[GpuUse]:
        """The rows of a GPU that begin between two times, by time."""

    async def of_replica(
        self, workload: WorkloadId, index: int, step: Step, since: float, until: float
    ) -> Sequence[ReplicaUse]:
        """The rows of a replica, all its attempts, that begin between two times, by time."""

    async def of_node(self, node: str, step: Step, since: float, until: float) -> Sequence[NodeUse]:
        """The rows of a node that begin between two times, by time."""

    async def forget(self, step: Step, before: float, limit: int) -> int:
        """Drop rows that begin before a time, at most so many of a kind; how many those were."""
