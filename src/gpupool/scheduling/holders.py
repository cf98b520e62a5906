"""Everybody who runs, as arrays, so that a cycle can look for victims without a step of Python for each of them."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.cluster import ClusterState
from gpupool.scheduling.modes import mark_of
from gpupool.scheduling.undo import grown
from gpupool.scheduling.values import ReplicaKey, RunningReplica

Floats = npt.NDArray[np.float64]
NO_GANG = -1
_NO_NODE = -1
_FIRST_SIZE = 64
_MOST_DOUBLINGS = 30
LONGEST_SHIELD_S = 86_400.0


class Holders:
    """One slot per running replica, M in all, some of them spare; ``keys`` names who is in which.

    ``row`` is where it runs (-1: spare, or on no node that is known), ``gpu``, ``gmem``, ``cpu`` and ``mem`` what it
    takes there as in ``claims.Claim``, ``marks`` what it adds to ``ClusterState.guests``; ``permille`` is what the
    ledger counts for it. ``evictable`` are the preemptible ones that have not been told to end. ``min_runtime_s`` is
    NaN where the scheduler's setting holds, ``ends`` infinite where nobody knows. ``born`` grows with every start,
    ``served_s`` is how long it had run before, ``evictions`` how often the pool has taken its GPUs away.
    ``gang`` numbers the gangs whose members run: ``gang_least`` and ``gang_size`` (members that stay) are by number.
    """

    def __init__(self) -> None:
        self.keys: list[ReplicaKey | None] = []
        self.slots: dict[ReplicaKey, int] = {}
        self._spare: list[int] = []
        self._stale: set[ReplicaKey] = set()  # told of since the last ``catch_up``
        self._births = 0
        self._gangs: dict[str, int] = {}
        self._gang_members: list[set[ReplicaKey]] = []
        self._spare_gangs: list[int] = []
        m = _FIRST_SIZE
        self.row, self.gang = np.full(m, _NO_NODE, np.int64), np.full(m, NO_GANG, np.int64)
        self.cpu, self.mem, self.permille = np.zeros(m, np.int64), np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.project, self.user = np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.priority, self.born = np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.started_at, self.ends, self.min_runtime_s = np.zeros(m), np.zeros(m), np.zeros(m)
        self.served_s, self.evictions = np.zeros(m), np.zeros(m, np.int64)
        self.evictable, self.releasing = np.zeros(m, np.bool_), np.zeros(m, np.bool_)
        self.gpu, self.gmem = np.zeros((m, 1), np.int64), np.zeros((m, 1), np.int64)
        self.marks = np.zeros((m, 1), np.int64)
        self.gang_least, self.gang_size = np.zeros(8, np.int64), np.zeros(8, np.int64)

    def start(self, replica: RunningReplica, project: int, user: int) -> None:
        """A replica runs, project and user being those numbers of the ledger; ``finish`` it first if it is known."""
        key = replica.key
        at = self._slot_for(key)
        self._births += 1
        self.project[at], self.user[at] = project, user
        self.priority[at], self.born[at] = replica.priority, self._births
        self.started_at[at], self.permille[at] = replica.started_at, replica.lease.permille
        self.served_s[at], self.evictions[at] = replica.served_s, replica.evictions
        self.ends[at] = inf if replica.expected_end is None else replica.expected_end
        self.min_runtime_s[at] = nan if replica.min_runtime_s is None else replica.min_runtime_s
        self.releasing[at] = replica.releasing
        self.evictable[at] = replica.preemptible and not replica.releasing
        if replica.gang is not None:
            number = self.gang[at] = self._gang_number(replica.lease.workload)
            self._gang_members[number].add(key)
            self.gang_least[number] = replica.gang.least
            self.gang_size[number] += not replica.releasing
        self._stale.add(key)

    def leaves(self, key: ReplicaKey) -> None:
        """It has been told to end, for the first time."""
        at = self.slots[key]
        self.evictable[at], self.releasing[at] = False, True
        if self.gang[at] != NO_GANG:
            self.gang_size[self.gang[at]] -= 1

    def finish(self, key: ReplicaKey) -> None:
        """It runs no more; unknown ones are ignored."""
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
        """The slots of the running members of a gang, oldest first."""
        slots = [self.slots[key] for key in self._gang_members[gang]]
        return sorted(slots, key=lambda at: (self.started_at[at], self.born[at]))

    def catch_up(self, cluster: ClusterState) -> None:
        """Take over the claims that are new or have changed; done at the start of each search."""
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

    def ripe_at(self, slots: Ints, default_s: float) -> Floats:
        """When each of some slots has run for as long as it may not be evicted."""
        least = self.min_runtime_s[slots]
        return np.asarray(self.started_at[slots] + np.where(np.isnan(least), default_s, least))

    def shielded_until(self, slots: Ints, default_s: float) -> Floats:
        """Until when each of some slots is left alone by those who take what nobody has promised them.

        The minimum run time, doubled with each time that it was evicted, up to a day: so an amount of work is evicted
        a few times at most, which grows with its logarithm.
        """
        least = self.ripe_at(slots, default_s) - self.started_at[slots]
        doubled = least * 2.0 ** np.minimum(self.evictions[slots], _MOST_DOUBLINGS)
        return np.asarray(self.started_at[slots] + np.maximum(least, np.minimum(doubled, LONGEST_SHIELD_S)))

    def occupied(self) -> Bools:
        """Which slots hold somebody on a node that is known."""
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
