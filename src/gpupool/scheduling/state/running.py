"""All running replicas as arrays, so that a search for victims needs no Python loop over them."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import ClusterState
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.sharing_modes import mark_of
from gpupool.scheduling.state.undo import grown
from gpupool.scheduling.values import ReplicaKey, RunningReplica

Floats = npt.NDArray[np.float64]
NO_GANG = -1
_NO_NODE = -1
_FIRST_SIZE = 64
_MAX_DOUBLINGS = 30
MAX_SHIELD_S = 86_400.0


class RunningTable:
    """One slot per running replica, M in all, some of them spare; ``keys`` has the replica of each slot.

    ``row`` is its node (-1: spare, or on an unknown node). ``gpu``, ``gmem``, ``cpu`` and ``mem`` are its allocation
    there as in ``Claim``, ``marks`` is its part of ``ClusterState.guests``; ``permille`` is the amount in the ledger.
    ``evictable`` marks preemptible replicas that were not asked to end. ``min_runtime_s`` is NaN where the scheduler's
    setting applies, ``ends`` is infinite where the end is unknown.

    ``born`` grows with every start, ``served_s`` is the run time of earlier attempts, ``evictions`` the number of
    earlier evictions, ``unsaved`` marks replicas without a declared checkpoint interval: they would lose all work since
    ``saved_at``, their start or their last reported checkpoint. ``gang`` is the number of the gang: ``gang_least`` and
    ``gang_size`` (members that stay) are indexed by it.
    """

    def __init__(self) -> None:
        self.keys: list[ReplicaKey | None] = []
        self.slots: dict[ReplicaKey, int] = {}
        self._spare: list[int] = []
        self._stale: set[ReplicaKey] = set()  # changed since the last ``catch_up``
        self._births = 0
        self._gangs: dict[str, int] = {}
        self._gang_members: list[set[ReplicaKey]] = []
        self._spare_gangs: list[int] = []
        m = _FIRST_SIZE
        self.row, self.gang = np.full(m, _NO_NODE, np.int64), np.full(m, NO_GANG, np.int64)
        self.cpu, self.mem, self.permille = np.zeros(m, np.int64), np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.project, self.user, self.pair = np.zeros(m, np.int64), np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.priority, self.born = np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.started_at, self.ends, self.min_runtime_s = np.zeros(m), np.zeros(m), np.zeros(m)
        self.served_s, self.evictions, self.saved_at = np.zeros(m), np.zeros(m, np.int64), np.zeros(m)
        self.evictable, self.releasing = np.zeros(m, np.bool_), np.zeros(m, np.bool_)
        self.unsaved, self.protected = np.zeros(m, np.bool_), np.zeros(m, np.bool_)
        self.gpu, self.gmem = np.zeros((m, 1), np.int64), np.zeros((m, 1), np.int64)
        self.marks = np.zeros((m, 1), np.int64)
        self.gang_least, self.gang_size = np.zeros(8, np.int64), np.zeros(8, np.int64)

    def start(self, replica: RunningReplica, account: Account) -> None:
        """Add a running replica of an account. Call ``finish`` first if it is known."""
        key = replica.key
        at = self._slot_for(key)
        self._births += 1
        self.project[at], self.user[at], self.pair[at] = account.project, account.user, account.pair
        self.priority[at], self.born[at] = replica.priority, self._births
        self.started_at[at], self.permille[at] = replica.started_at, replica.lease.permille
        self.served_s[at], self.evictions[at] = replica.served_s, replica.evictions
        self.saved_at[at] = max(replica.started_at, replica.saved_at or 0.0)
        self.ends[at] = inf if replica.expected_end is None else replica.expected_end
        self.min_runtime_s[at] = nan if replica.min_runtime_s is None else replica.min_runtime_s
        self.releasing[at] = replica.releasing
        self.unsaved[at], self.protected[at] = replica.checkpoint_s is None, not replica.preemptible
        self.evictable[at] = replica.preemptible and not replica.releasing
        if replica.gang is not None:
            number = self.gang[at] = self._gang_number(replica.lease.workload)
            self._gang_members[number].add(key)
            self.gang_least[number] = replica.gang.least
            self.gang_size[number] += not replica.releasing
        self._stale.add(key)

    def saved(self, key: ReplicaKey, at: float) -> None:
        """Note a checkpoint of a replica; unknown replicas are ignored."""
        slot = self.slots.get(key)
        if slot is not None:
            self.saved_at[slot] = max(self.saved_at[slot], at)

    def leaves(self, key: ReplicaKey) -> None:
        """Mark a replica as ending, once."""
        at = self.slots[key]
        self.evictable[at], self.releasing[at] = False, True
        if self.gang[at] != NO_GANG:
            self.gang_size[self.gang[at]] -= 1

    def finish(self, key: ReplicaKey) -> None:
        """Remove a replica; unknown replicas are ignored."""
        at = self.slots.pop(key, None)
        if at is None:
            return
        if self.gang[at] != NO_GANG:
            self._leave_gang(key, int(self.gang[at]), stayed=not self.releasing[at])
        self.keys[at] = None
        self._spare.append(at)
        self._stale.discard(key)
        self.row[at], self.gang[at], self.evictable[at], self.releasing[at] = _NO_NODE, NO_GANG, False, False
        for grid in (self.gpu, self.gmem, self.marks):
            grid[at] = 0

    def members(self, gang: int) -> list[int]:
        """Return the slots of the running members of a gang, oldest first."""
        slots = [self.slots[key] for key in self._gang_members[gang]]
        return sorted(slots, key=lambda at: (self.started_at[at], self.born[at]))

    def catch_up(self, cluster: ClusterState) -> None:
        """Update claims that are new or changed; called at the start of each search."""
        if self.gpu.shape[1] < cluster.slots:
            for name in ("gpu", "gmem", "marks"):
                setattr(self, name, grown(getattr(self, name), (len(self.row), cluster.slots)))
        stale = self._stale | cluster.claims_changed
        for key in stale:
            at = self.slots.get(key)
            if at is not None:
                self._place(at, key, cluster)
        self._stale.clear()
        cluster.claims_changed.clear()

    def _place(self, at: int, key: ReplicaKey, cluster: ClusterState) -> None:
        claim = cluster.claims.get(key)
        if claim is None or claim.row == _NO_NODE:
            self.row[at] = _NO_NODE
            for grid in (self.gpu, self.gmem, self.marks):
                grid[at] = 0
            return
        self.row[at], self.cpu[at], self.mem[at] = claim.row, claim.cpu_milli, claim.mem_mib
        self.gpu[at], self.gmem[at] = claim.gpu, claim.gmem
        self.marks[at] = (claim.gpu > 0) * mark_of(claim.mode, claim.user)

    def evictable_at(self, slots: Ints, default_s: float) -> Floats:
        """Return when the min-runtime of each slot ends."""
        least = self.min_runtime_s[slots]
        return np.asarray(self.started_at[slots] + np.where(np.isnan(least), default_s, least))

    def shielded_until(self, slots: Ints, default_s: float) -> Floats:
        """Return until when each slot is protected from projects that have no quota for what they take.

        That is the min-runtime, doubled with each earlier eviction, up to one day. So a workload is evicted only a few
        times: the number grows with the logarithm of its length.
        """
        least = self.evictable_at(slots, default_s) - self.started_at[slots]
        doubled = least * 2.0 ** np.minimum(self.evictions[slots], _MAX_DOUBLINGS)
        return np.asarray(self.started_at[slots] + np.maximum(least, np.minimum(doubled, MAX_SHIELD_S)))

    def at_stake(self, slots: Ints, now: float, after_s: float) -> Floats:
        """Return the thousandth-seconds that the eviction of each slot would lose.

        Work since the start or the last reported checkpoint counts if it is longer than ``after_s``. Work with a
        declared checkpoint interval counts as 0.
        """
        unsaved_s = now - self.saved_at[slots]
        return np.asarray(np.where(self.unsaved[slots] & (unsaved_s > after_s), self.permille[slots] * unsaved_s, 0.0))

    def occupied(self) -> Bools:
        """Return a mask of the slots with a replica on a known node."""
        return np.asarray(self.row >= 0)

    def _slot_for(self, key: ReplicaKey) -> int:
        if not self._spare:
            at = len(self.keys)
            self.keys.append(None)
            if at >= len(self.row):
                self._grow(2 * at)
        else:
            at = self._spare.pop()
        self.keys[at] = key
        self.slots[key] = at
        return at

    def _grow(self, m: int) -> None:
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray) and name not in {"gang_least", "gang_size"}:
                shape = (m,) if column.ndim == 1 else (m, column.shape[1])
                setattr(self, name, grown(column, shape, NO_GANG if name in {"row", "gang"} else 0))

    def _gang_number(self, workload: str) -> int:
        if workload not in self._gangs:
            number = self._spare_gangs.pop() if self._spare_gangs else len(self._gang_members)
            if number == len(self._gang_members):
                self._gang_members.append(set())
            if number >= len(self.gang_size):
                self.gang_least = grown(self.gang_least, (2 * number,))
                self.gang_size = grown(self.gang_size, (2 * number,))
            self._gangs[workload] = number
            self.gang_size[number] = 0
        return self._gangs[workload]

    def _leave_gang(self, key: ReplicaKey, number: int, *, stayed: bool) -> None:
        self._gang_members[number].remove(key)
        self.gang_size[number] -= stayed
        if not self._gang_members[number]:
            del self._gangs[key[0]]
            self._spare_gangs.append(number)
