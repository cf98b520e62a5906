"""The decisions of one cycle so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.state.allocation import Claim
from gpupool.scheduling.state.cluster import ClusterState
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.values import Eviction, Grant, PendingReplica, ReplicaKey


class CycleOutcome:
    """The decisions of a cycle so far. All actions add to them with the methods and read the fields.

    ``settled`` are pending replicas that were granted in this cycle or that have an active hold; they are not
    considered again. ``leaving`` are running replicas that were asked to end, before or by this cycle.
    """

    def __init__(self, cluster: ClusterState, leaving: Iterable[ReplicaKey]) -> None:
        self._cluster = cluster
        self._settled: set[ReplicaKey] = set()
        self._leaving = set(leaving)
        self._grants: list[Grant] = []
        self._placed: list[tuple[PendingReplica, Claim, Account]] = []
        self._evictions: list[Eviction] = []
        self._wake_times: list[float] = []
        self._running_wake_times: list[float] = []
        self.settled: AbstractSet[ReplicaKey] = self._settled
        self.leaving: AbstractSet[ReplicaKey] = self._leaving
        self.grants: Sequence[Grant] = self._grants
        self.placed: Sequence[tuple[PendingReplica, Claim, Account]] = self._placed  # charged claims of grants
        self.evictions: Sequence[Eviction] = self._evictions
        self.wake_times: Sequence[float] = self._wake_times
        self.running_wake_times: Sequence[float] = self._running_wake_times

    def grant(self, replica: PendingReplica, claim: Claim, account: Account) -> None:
        """Grant a start to a replica whose claim is already charged."""
        self.settle(replica.key)
        self._placed.append((replica, claim, account))
        shares, node = self._cluster.shares_of(claim), self._cluster.name_of(claim.row)
        self._grants.append(Grant(replica.workload, replica.index, node, shares, claim.mode))

    def revoke(self, workload: WorkloadId) -> list[tuple[Claim, Account]]:
        """Revert the grants of this cycle to a workload; return the claims, which are still charged."""
        revoked = [placed for placed in self._placed if placed[0].workload == workload]
        self._placed[:] = [placed for placed in self._placed if placed[0].workload != workload]
        self._grants[:] = [grant for grant in self._grants if grant.workload != workload]
        return [(claim, account) for _, claim, account in revoked]

    def evict(self, eviction: Eviction) -> None:
        """Evict a running replica."""
        self._evictions.append(eviction)
        self.mark_leaving([eviction.key])

    def mark_leaving(self, keys: Iterable[ReplicaKey]) -> None:
        """Record that running replicas were asked to end."""
        self._leaving.update(keys)

    def settle(self, key: ReplicaKey) -> None:
        """Leave a pending replica out of further searches."""
        self._settled.add(key)

    def unsettle(self, key: ReplicaKey) -> None:
        """Consider a pending replica again."""
        self._settled.discard(key)

    def wake_at(self, time: float) -> None:
        """Record a time at which time alone may change the decisions for waiting replicas."""
        self._wake_times.append(time)

    def wake_running_at(self, time: float) -> None:
        """Record a time at which time alone may change the decisions for running replicas."""
        self._running_wake_times.append(time)
