"""The desired number of replicas, from the requests of a service. Pure.

Requests in flight, and held ones, divided by the requests that a replica should have at a time, give the wanted number.
A change must be wanted for a time: more replicas for ``up_s``, fewer for ``down_s``. The smallest (largest) number
wanted in that time is taken, so that a short peak or pause changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpupool.domain.work.service import ScalePolicy


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """The requests of a service: answered now, and waiting for a replica."""

    in_flight: int = 0
    held: int = 0

    @property
    def total(self) -> int:
        """Return all requests."""
        return self.in_flight + self.held


@dataclass(frozen=True, slots=True)
class Scaler:
    """The present number, and the change that was wanted since ``since`` (None: none).

    ``edge`` is the number nearest to the present one that was wanted since then. ``idle_since``: the time since when
    there are no requests.
    """

    desired: int
    since: float | None = None
    edge: int = 0
    idle_since: float | None = None


def step(policy: ScalePolicy, scaler: Scaler, demand: ServiceDemand, now: float) -> Scaler:
    """Return the scaler after a measurement of the demand at a time that does not decrease."""
    idle_since = None if demand.total else (now if scaler.idle_since is None else scaler.idle_since)
    idle_s = 0.0 if idle_since is None else now - idle_since
    present = min(max(scaler.desired, policy.least), policy.most)
    idle = policy.least == 0 and not demand.total and (present == 0 or idle_s >= policy.to_zero_s)
    wanted = 0 if idle else _wanted(policy, demand)
    if wanted == present:
        return Scaler(present, idle_since=idle_since)
    if present == 0 or wanted == 0:  # from zero at once; to zero after ``to_zero_s``, which has passed
        return Scaler(wanted, idle_since=idle_since)
    more = wanted > present
    going = scaler.since is not None and present == scaler.desired and (scaler.edge > present) is more
    since = scaler.since if going and scaler.since is not None else now
    edge = wanted if not going else min(scaler.edge, wanted) if more else max(scaler.edge, wanted)
    if now - since >= (policy.up_s if more else policy.down_s):
        return Scaler(edge, idle_since=idle_since)
    return replace(scaler, desired=present, since=since, edge=edge, idle_since=idle_since)


def _wanted(policy: ScalePolicy, demand: ServiceDemand) -> int:
    """Return the number of replicas for a demand, at least one."""
    wanted = -(-demand.total // policy.concurrency)
    return min(max(wanted, policy.least, 1), policy.most)
