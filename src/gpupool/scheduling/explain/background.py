"""Background data of an explanation, in addition to the state of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gpupool.scheduling.explain.calibration import NO_SLIP, Slip, slip_of
from gpupool.scheduling.holds.runtime_model import History
from gpupool.scheduling.values import ReplicaKey


def plain_name(key: ReplicaKey) -> str:
    """Return the name of a replica from the id of its workload: ``id``, or ``id/3`` for one of several."""
    return f"{key[0]}/{key[1]}" if key[1] else str(key[0])


@dataclass(frozen=True, slots=True)
class Background:
    """Past run times, how far off past estimates were, and the names of replicas for users.

    ``slips`` are by project; that of "" is of the whole pool.
    """

    history: History = field(default_factory=lambda: MappingProxyType({}))
    slips: Mapping[str, Slip] = field(default_factory=lambda: MappingProxyType({}))
    name: Callable[[ReplicaKey], str] = plain_name

    def slip(self, project: str) -> Slip:
        """Return how far off estimates for a project usually are."""
        return slip_of(self.slips, project) or NO_SLIP
