"""Estimates of when a service without ready replicas can answer held requests.

A replica that waits for GPUs starts when the scheduler expects it to; then it needs the time that the service's last
replica needed from its start until it was ready.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.workload import Workload
from gpupool.scheduling.explain.wait_reason import Explanation

STEP_S = 5.0  # estimates are rounded up to this, so that the routes do not change each second

AskWhy = Callable[[Workload], Awaitable[Explanation]]


@dataclass(frozen=True, slots=True)
class AwaitedReplica:
    """A replica that is not ready: its workload while it waits for GPUs, else how long it has been running."""

    queued: Workload | None = None
    running_s: float = 0.0


async def expected_in_s(awaited: Sequence[AwaitedReplica], load_s: float | None, why: AskWhy) -> float | None:
    """Return the seconds until the first of these replicas is ready; None if that is not known.

    ``load_s`` is the time from the start of a replica until it is ready, None if none was measured. Without replicas,
    one is about to be started.
    """
    if load_s is None and not any(each.queued for each in awaited):
        return None
    times = [await _one(each, load_s or 0.0, why) for each in awaited or (AwaitedReplica(),)]
    known = [each for each in times if each is not None]
    return min(known) if known else None


async def _one(awaited: AwaitedReplica, load_s: float, why: AskWhy) -> float | None:
    if awaited.queued is None:
        return max(0.0, load_s - awaited.running_s)
    try:
        start_s = (await why(awaited.queued)).estimate_s
    except GpupoolError:
        return None
    return None if start_s is None else start_s + load_s


def rounded(seconds: float) -> float:
    """Return an estimate for clients, in steps."""
    return max(STEP_S, -(-seconds // STEP_S) * STEP_S)
