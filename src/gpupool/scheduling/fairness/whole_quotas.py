"""Quotas stay available in whole GPUs: on which GPUs protected work may start.

Protected work is never evicted, so a part of a GPU keeps the whole GPU from whole-GPU work until it ends. It may start
on a GPU without other protected work only if

- its project then uses no more GPUs than its quota, each GPU divided among the projects with protected work on it; or
- enough GPUs without protected work are left for what all quotas still promise in whole GPUs.

Whole GPUs of a project without a quota are left out: such work has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpupool.domain.nodes.gpu import Placement
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.placement.node_filter import mode_on, usable_rows, usable_slots
from gpupool.scheduling.state.allocation import EPSILON, Bools, Claim, Ints
from gpupool.scheduling.state.cluster import ClusterState, Shape
from gpupool.scheduling.state.ledger import UNBOUNDED, Account, Ledger
from gpupool.scheduling.state.running import Floats, RunningTable
from gpupool.scheduling.state.undo import UndoLog

_Entry = tuple[int, Claim, int]  # project, claim, 1 (charged) or -1 (taken back)


class WholeQuotas:
    """The protected work on every GPU during one cycle, and where more of it may start."""

    def __init__(self, cluster: ClusterState, ledger: Ledger, holders: RunningTable, log: UndoLog) -> None:
        self._cluster, self._ledger, self._holders, self._log = cluster, ledger, holders, log
        self._entries: list[_Entry] = []
        self._count = np.zeros(1, np.int64)  # of the entries that are not rolled back
        self._base: Ints | None = None

    def count(self, account: Account, claim: Claim, sign: int) -> None:
        """Record that a claim of protected work is charged (``sign`` 1) or taken back (-1), through the undo log."""
        if not account.preemptible and claim.row >= 0 and claim.permille:
            del self._entries[int(self._count[0]) :]
            self._entries.append((account.project, claim, sign))
            self._log.add(self._count, 0, 1)

    def concerns(self, shape: Shape, account: Account) -> bool:
        """Return whether the rule may block a shape: it is protected, and some project has a quota of whole GPUs."""
        if account.preemptible or shape.gpuless or (shape.whole and self._quota_of(account.project) is None):
            return False
        quota = self._ledger.quota[: len(self._ledger.projects)]
        return bool(((quota < UNBOUNDED) & (quota >= WHOLE_GPU)).any())

    def permits(self, account: Account, claims: Sequence[Claim]) -> bool:
        """Return whether protected work may be charged with ``claims``, in addition to all that is charged."""
        held = self._held()
        before = _gpus_of(held)
        for claim in claims:
            held = np.concatenate([held, self._rows_of(account.project, claim, 1)])
        after = _gpus_of(held)
        if len(after) == len(before):
            return True
        used = self._used(held)
        own = self._quota_of(account.project)
        if own is not None and used[account.project] <= np.ceil(own / WHOLE_GPU) * WHOLE_GPU + EPSILON:
            return True
        quota = self._ledger.quota[: len(used)]
        left = np.floor((np.where(quota < UNBOUNDED, quota, 0) - used + EPSILON) / WHOLE_GPU)
        capacity = self._cluster.capacity_permille() // WHOLE_GPU
        return bool(len(after) + np.maximum(left, 0.0).sum() <= capacity)

    def find_on_used_gpu(
        self, shape: Shape, accepted: Bools, late_keys: Callable[[Ints], Ints], budget: int | None, row: int | None
    ) -> Claim | None:
        """Return a place on GPUs that other protected work uses already, or None; ``row``: on this row only.

        ``accepted`` are the GPU models of the shape, ``late_keys`` decides between equal nodes (see ``Placer``).
        """
        c = self._cluster
        if shape.whole:
            return None
        taken = np.zeros(c.gpu_free.shape, np.bool_)
        taken.flat[_gpus_of(self._held())] = True
        rows = np.flatnonzero(taken.any(axis=1)) if row is None else np.array([row])
        ok, left = usable_slots(c, shape, rows, accepted, budget)
        ok &= taken[rows]
        fits = np.flatnonzero(usable_rows(c, shape, rows, ok))
        if not len(fits):
            return None
        rows = rows[fits]
        return _best(c, shape, rows, ok[fits], left[fits], late_keys(rows))

    def _quota_of(self, project: int) -> int | None:
        quota = int(self._ledger.quota[project])
        return quota if quota < UNBOUNDED else None

    def _held(self) -> Ints:
        """Return which project has protected work on which GPU: project, GPU, thousandths; [n, 3]."""
        if self._base is None:
            self._base = self._running()
        rows = [self._rows_of(*entry) for entry in self._entries[: int(self._count[0])]]
        return np.concatenate([self._base, *rows])

    def _running(self) -> Ints:
        h, width = self._holders, self._cluster.slots
        h.catch_up(self._cluster)
        at = np.flatnonzero((h.row >= 0) & h.protected)
        which, slot = np.nonzero(h.gpu[at])
        at = at[which]
        return np.stack([h.project[at], h.row[at] * width + slot, h.gpu[at, slot]], axis=1)

    def _rows_of(self, project: int, claim: Claim, sign: int) -> Ints:
        slots = np.flatnonzero(claim.gpu)
        gpus = claim.row * self._cluster.slots + slots
        return np.stack([np.full(len(slots), project), gpus, sign * claim.gpu[slots]], axis=1)

    def _used(self, held: Ints) -> Floats:
        """Return how many GPUs each project uses, in thousandths."""
        gpus, projects = self._cluster.gpu_free.size, len(self._ledger.projects)
        total = np.bincount(held[:, 1], held[:, 2], gpus)
        part = WHOLE_GPU * held[:, 2] / np.maximum(total[held[:, 1]], 1.0)
        return np.bincount(held[:, 0], part, projects).astype(np.float64)


def _gpus_of(held: Ints) -> Ints:
    gpus, back = np.unique(held[:, 1], return_inverse=True)
    return np.asarray(gpus[np.bincount(back, held[:, 2], len(gpus)) > 0])


def _best(c: ClusterState, shape: Shape, rows: Ints, ok: Bools, left: Ints, late_keys: Ints) -> Claim:
    """Return a claim to the fullest GPUs, or to the emptiest for work that is spread."""
    count = shape.request.count
    sign = -1 if shape.request.placement is Placement.SPREAD else 1
    cost = np.where(ok, sign * left, WHOLE_GPU * 2)
    order = np.argsort(cost, axis=1, kind="stable")[:, :count]
    total = np.take_along_axis(cost, order, axis=1).sum(axis=1)
    at = int(np.lexsort((late_keys, total))[0])
    row, chosen = int(rows[at]), order[at]
    need, mem = shape.needs(c.gmem_total[row])
    gpu, gmem = np.zeros(c.slots, np.int64), np.zeros(c.slots, np.int64)
    gpu[chosen], gmem[chosen] = need[chosen], mem[chosen]
    return Claim(row, gpu, gmem, shape.cpu_milli, shape.mem_mib, mode_on(c, shape, row, gpu), shape.user)
