"""Who could be asked to leave, as arrays, and the fewest of them that make room on one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpupool.scheduling.cluster import Bools, Claim, ClusterState, Ints
from gpupool.scheduling.modes import mark_of
from gpupool.scheduling.placement import labelled, mode_fits
from gpupool.scheduling.session import Session
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import ReplicaKey

Allowed = Callable[[Sequence[int]], bool]  # may these candidates (positions in the pool) all be evicted?


@dataclass(frozen=True, slots=True)
class Solution:
    """Whom to evict so that a replica fits on a row."""

    row: int
    keys: tuple[ReplicaKey, ...]


class VictimPool:
    """All running replicas that may be evicted at all, least important first: lowest priority, then newest.

    Left out: protected work, whoever is on the way out, whoever has run for less than the minimum, and holders on
    nodes that are gone or take no work. The arrays have one row per candidate.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        running, claims = session.demand.running, session.cluster.claims
        ripe_before = session.now - session.settings.min_runtime_s
        found = []
        for key, replica in running.items():
            claim = claims.get(key)
            if not replica.preemptible or key in session.leaving or claim is None or claim.row < 0:
                continue
            if replica.started_at > ripe_before:
                session.later.append(replica.started_at + session.settings.min_runtime_s)
            elif session.cluster.up[claim.row]:
                found.append((replica.priority, -replica.started_at, key, claim))
        found.sort(key=lambda item: item[:3])
        self.keys = [item[2] for item in found]
        self._fill([item[3] for item in found])
        self.priority = np.array([item[0] for item in found], np.int64)
        self.newness = np.array([-item[1] for item in found], np.float64)
        accounts = [session.demand.accounts[key] for key in self.keys]
        self.project = np.array([account.project for account in accounts], np.int64)
        self.alive = np.ones(len(self.keys), np.bool_)

    def _fill(self, claims: list[Claim]) -> None:
        width = self._session.cluster.slots
        self.row = np.array([claim.row for claim in claims], np.int64)
        self.gpu = np.array([claim.gpu for claim in claims], np.int64).reshape(-1, width)
        self.gmem = np.array([claim.gmem for claim in claims], np.int64).reshape(-1, width)
        self.marks = (self.gpu > 0) * np.array([mark_of(claim.mode, claim.user) for claim in claims], np.int64)[:, None]
        self.cpu = np.array([claim.cpu_milli for claim in claims], np.int64)
        self.mem = np.array([claim.mem_mib for claim in claims], np.int64)
        self.freeing: tuple[Ints, ...] = (self.gpu, self.gmem, self.cpu, self.mem, self.marks)
        self.permille = self.gpu.sum(axis=1)

    def search(self, shape: Shape, among: Bools, allowed: Allowed, budget: int) -> Solution | None:
        """The cheapest set on one node: fewest, then lowest priority, then least GPU, then newest.

        ``among`` masks the candidates, ``allowed`` judges sets of several. Exact for sets of one; for larger ones
        the first fitting prefix of each node's candidates is thinned out, on the most promising nodes.
        """
        at = np.flatnonzero(among & self.alive)
        if not len(at):
            return None
        alone = at[self._fits(shape, self.row[at], tuple(column[at] for column in self.freeing), budget)]
        if len(alone):
            order = np.lexsort((-self.newness[alone], self.permille[alone], self.priority[alone]))
            best = int(alone[order[0]])
            return Solution(int(self.row[best]), (self.keys[best],))
        return self._search_sets(shape, at, allowed, budget)

    def _search_sets(self, shape: Shape, at: Ints, allowed: Allowed, budget: int) -> Solution | None:
        at = at[np.argsort(self.row[at], kind="stable")]
        rows = self.row[at]
        first = np.searchsorted(rows, rows)
        freed = tuple(_prefix(column[at], first) for column in self.freeing)
        fitting = np.flatnonzero(self._fits(shape, rows, freed, budget))
        if not len(fitting):
            return None
        nodes, where = np.unique(rows[fitting], return_index=True)
        ends = fitting[where]  # the first fitting prefix of each node
        lengths = ends - first[ends]
        order = np.lexsort((nodes, self.priority[at[ends]], lengths))[: self._session.settings.max_nodes_searched]
        best: tuple[tuple[int, int, int, float], Solution] | None = None
        for i in order.tolist():
            candidates = at[first[ends[i]] : np.searchsorted(rows, nodes[i], side="right")].tolist()
            found = self._thin(shape, int(nodes[i]), candidates, allowed, budget)
            if found and (best is None or self._cost(found) < best[0]):
                best = (self._cost(found), Solution(int(nodes[i]), tuple(self.keys[v] for v in found)))
        return None if best is None else best[1]

    def _thin(self, shape: Shape, row: int, candidates: list[int], allowed: Allowed, budget: int) -> list[int]:
        chosen: list[int] = []
        for victim in candidates:
            if allowed([*chosen, victim]):
                chosen.append(victim)
                if self._enough(shape, row, chosen, budget):
                    break
        else:
            return []
        for victim in reversed(chosen.copy()):  # the most important are given back first
            rest = [v for v in chosen if v != victim]
            if self._enough(shape, row, rest, budget):
                chosen = rest
        return chosen

    def _enough(self, shape: Shape, row: int, chosen: list[int], budget: int) -> bool:
        freed = tuple(column[chosen].sum(axis=0)[None] for column in self.freeing)
        return bool(self._fits(shape, np.array([row]), freed, budget)[0])

    def _cost(self, chosen: list[int]) -> tuple[int, int, int, float]:
        priority = int(self.priority[chosen].max())
        return len(chosen), priority, int(self.permille[chosen].sum()), -float(self.newness[chosen].min())

    def _fits(self, shape: Shape, rows: Ints, freed: tuple[Ints, ...], budget: int) -> Bools:
        cluster = self._session.cluster
        accept = self._session.placer.accepted(shape)
        return fits_with(cluster, shape, rows, accept, freed, budget)


def fits_with(c: ClusterState, shape: Shape, rows: Ints, accept: Bools, freed: tuple[Ints, ...], budget: int) -> Bools:
    """Whether a shape fits on each of ``rows`` if that much more were free: GPU, GPU memory, CPU, memory, guests."""
    gpu, gmem, cpu, mem, marks = freed
    need, need_mem = shape.needs(c.gmem_total[rows])
    ok = accept[c.model[rows]] & c.available[rows] & (need * shape.request.count <= budget)
    ok &= (c.gpu_free[rows] + gpu >= need) & (c.gmem_free[rows] + gmem >= need_mem)
    if shape.mode is not None or not shape.whole:
        ok &= mode_fits(c, shape, rows, c.guests[rows] - marks)
    fits = c.up[rows] & (ok.sum(axis=1) >= shape.request.count)
    if shape.cpu_milli:
        fits &= c.cpu_free[rows] + cpu >= shape.cpu_milli
    if shape.mem_mib:
        fits &= c.mem_free[rows] + mem >= shape.mem_mib
    if shape.picky:
        fits &= np.array([labelled(c, row, shape) for row in rows.tolist()], dtype=np.bool_)
    return np.asarray(fits)


def _prefix(column: npt.NDArray[Any], first: Ints) -> Ints:
    """Running sums that begin anew where ``first`` says each run begins."""
    total = column.cumsum(axis=0)
    before = np.concatenate([np.zeros_like(total[:1]), total])[first]
    return np.asarray(total - before)
