"""Background data of an explanation, in addition to the state of the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType

from gpupool.scheduling.explain.calibration import NO_SLIP, Slip
from gpupool.scheduling.holds.runtime_model import History
from gpupool.scheduling.values import ReplicaKey


def plain_name(key: ReplicaKey) -> str:
    """Return the name of a replica from the id of its workload: ``id``, or ``id/3`` for one of several."""
    return f"{key[0]}/{key[1]}" if key[1] else str(key[0])


@dataclass(frozen=True, slots=True)
class Background:
    """Past run times, how far off past estimates were, and the names of replicas for users."""

    history: History = field(default_factory=lambda: MappingProxyType({}))
    slip: Slip = NO_SLIP
    name: Callable[[ReplicaKey], str] = plain_name
