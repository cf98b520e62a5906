"""A rough estimate for a replica far down a long queue, from the rate of released GPUs and the work ahead of it.

GPUs are treated as one flowing quantity. GPUs that running work (and later the work that starts meanwhile) releases go
to the work ahead, in the order of projects, and then to the replica. The need for several free GPUs on one node is
checked separately. The cost is bounded by the number of projects and of running replicas, not by the length of the
queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from math import inf

import numpy as np

from gpupool.scheduling.holds.runtime_model import UNKNOWN, Foreseen, History, Spread, run_spread
from gpupool.scheduling.placement.node_filter import Relax, fitting_rows, usable_slots
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import Account, Bound, Ledger
from gpupool.scheduling.state.queue import Group
from gpupool.scheduling.values import ReplicaKey

MAX_STREAMS = 64  # streams of work ahead that are kept separate
PIECES = 8  # parts of each stream, which are served in turns
MAX_PROJECTS = 128  # other projects; of a larger number, a sample stands for all
HALVINGS = 7
MAX_KINDS = 8  # kinds of work used per project
MAX_FLOWS = 256  # moments at which GPUs are released; of a larger number, some are merged
_FIRM = frozenset({Bound.PROJECT_QUOTA, Bound.MODEL_QUOTA, Bound.DEPARTMENT_QUOTA})
_OF_DEPARTMENT = frozenset({Bound.DEPARTMENT_QUOTA, Bound.DEPARTMENT_LIMIT})
MAX_LOOKS = 2_000  # steps along the releases; after them the pace is extrapolated


@dataclass(slots=True)
class _Stream:
    """Work of one kind ahead: its thousandths, and its run time (low, mid, high; infinite: unknown)."""

    permille: float
    run_s: Spread


def coarse_estimate(session: SchedulingSession, key: ReplicaKey, history: History, foreseen: Foreseen) -> Spread | None:
    """Return in how many seconds ``key`` starts, roughly: early, likely, late.

    Return None if it is not in the queue, or if the known releases are not enough.
    """
    group = session.demand.group_of(key)
    if group is None:
        return None
    site = _FittingGpus(session, group.shape, foreseen)
    own, others = _ahead(session, key, group, history)
    need = session.placer.least_permille(group.shape) * group.size
    bounds = list(_bounds(session, group, foreseen, need + sum(stream.permille for stream in own)))
    found = []
    for which in range(3):
        wanted = [*_in_turns(own + others, which), (need, inf)]
        at = [_flow(session.now, site.free, site.flows(which), wanted), site.one_node(which)]
        wanted = [*_in_turns(own, which), (need, inf)]
        at += [_flow(session.now, left, flows[which], wanted) for left, flows in bounds]
        found.append(max(at) - session.now)
    low, mid, high = found
    return None if mid == inf else (min(low, mid), mid, max(high, mid))


class _FittingGpus:
    """The GPUs that fit a shape: their free part, and the ends of the replicas on them."""

    def __init__(self, session: SchedulingSession, shape: Shape, foreseen: Foreseen) -> None:
        c, self._count, self._now = session.cluster, shape.request.count, session.now
        self._rows = fitting_rows(c, shape, Relax(use=True))
        self._usable = np.zeros((len(c.present), c.slots), np.bool_)
        accept = session.placer.accepted(shape)
        self._usable[self._rows], _ = usable_slots(c, shape, self._rows, accept, None, Relax(use=True))
        self.free = float(np.clip(c.gpu_free, 0, None)[self._usable].sum())
        need, _ = shape.needs(c.gmem_total[self._rows])
        self._ready = c.gpu_free[self._rows] >= need
        self._foreseen = foreseen
        self._ends = foreseen.ends[foreseen.placed]
        self._freed = (foreseen.gpu * self._usable[foreseen.row]).sum(axis=1)

    def flows(self, which: int) -> list[tuple[float, float]]:
        """Return the moments at which GPUs are released, with the thousandths, in order."""
        ends = self._ends[:, which]
        at = np.flatnonzero((self._freed > 0) & (ends < inf))
        at = at[np.argsort(ends[at], kind="stable")]
        size = max(-(-len(at) // MAX_FLOWS), 1)
        whens, sums = ends[at], np.concatenate([[0], self._freed[at].cumsum()])
        edges = [min(edge + size, len(at)) for edge in range(0, len(at), size)]
        return [(float(whens[edge - 1]), float(sums[edge] - sums[max(edge - size, 0)])) for edge in edges]

    def one_node(self, which: int) -> float:
        """Return the first moment at which enough GPUs are free on one node, if no other work takes them."""
        until = self._foreseen.busy_until(self._now, which)
        slots = np.where(self._usable[self._rows], np.where(self._ready, self._now, until[self._rows]), inf)
        return float(np.sort(slots, axis=1)[:, self._count - 1].min(initial=inf))


def _flow(now: float, free: float, flows: list[tuple[float, float]], wanted: Sequence[tuple[float, float]]) -> float:
    """Return when the last of ``wanted`` is served; infinite if too few GPUs are released.

    ``wanted`` has thousandths with their run time; ``flows`` has the moments at which thousandths are released, in
    order.
    """
    left, at, looks = sum(permille for permille, _ in wanted), now, 0
    whole = left
    for permille, run_s in wanted:
        rest = permille
        while rest > 0:
            if free <= 0:
                if not flows:
                    return inf
                at, free = max(at, flows[0][0]), heappop(flows)[1]
                looks += 1
            taken = min(rest, free)
            rest, free, left = rest - taken, free - taken, left - taken
            if run_s < inf:
                heappush(flows, (at + run_s, taken))
            if looks >= MAX_LOOKS and whole > left:
                return now + (at - now) * whole / (whole - left)  # the rest at the same pace
    return at


def _in_turns(streams: Sequence[_Stream], which: int) -> Iterator[tuple[float, float]]:
    for _ in range(PIECES):
        for stream in streams:
            yield stream.permille / PIECES, stream.run_s[which]


def _bounds(
    session: SchedulingSession, group: Group, foreseen: Foreseen, need: float
) -> Iterator[tuple[float, list[list[tuple[float, float]]]]]:
    """Yield the room under each bound that is too tight for ``need``, and the moments and thousandths of releases."""
    demand, ledger, own = session.demand, session.ledger, group.account
    for bound, _, left in ledger.rooms(own):
        if left >= need:
            continue
        firm_only = bound in _FIRM and not own.preemptible and ledger.projects[own.project].over_quota
        counts = [
            i
            for i, key in enumerate(foreseen.keys)
            if _under(bound, ledger, demand.accounts[key], own) and not (firm_only and demand.running[key].preemptible)
        ]
        held = [demand.running[foreseen.keys[i]].lease.permille for i in counts]
        ends = foreseen.ends[counts]
        flows = [sorted(zip(ends[:, which].tolist(), held, strict=True)) for which in range(3)]
        yield max(left, 0), [[flow for flow in each if flow[0] < inf] for each in flows]


def _under(bound: Bound, ledger: Ledger, one: Account, own: Account) -> bool:
    """Return whether the GPUs that ``one`` holds count under a bound of ``own``."""
    if bound is Bound.USER:
        return one.user == own.user
    if bound is Bound.USER_IN_PROJECT:
        return one.pair == own.pair
    if bound is Bound.MODEL_QUOTA:
        return one.model == own.model
    if bound in _OF_DEPARTMENT:
        return bool(ledger.dept[one.project] == ledger.dept[own.project])
    return one.project == own.project


def _ahead(
    session: SchedulingSession, key: ReplicaKey, group: Group, history: History
) -> tuple[list[_Stream], list[_Stream]]:
    """Return the work that is served before: that ahead in its project, and that of projects ahead of it."""
    streams = list(_own(session, key, group, history))
    own = group.account.project
    mine = _standing(session, group, int(sum(s.permille for s in streams)))
    projects = [project for project in session.demand.project_queues if project != own]
    step = -(-len(projects) // MAX_PROJECTS) or 1
    others = []
    for project in projects[::step]:
        first = next(iter(next(iter(session.demand.project_queues[project].values())).values()))
        served = _served_before(session, first, int(session.ledger.waiting[project]), mine)
        if served:
            others.append(_Stream(served * step, _usual(session, project, history)))
    return _fewer(streams), _fewer(others)


def _standing(session: SchedulingSession, group: Group, held: int) -> tuple[float, ...]:
    """Return the sort key of a group's project among the others if it held ``held`` thousandths more."""
    mark, need = session.log.checkpoint(), session.placer.least_permille(group.shape) * group.size
    session.ledger.add(session.log, group.account, held)
    standing = session.shares.order(group.account.project, need)
    session.log.rollback(mark)
    return standing


def _usual(session: SchedulingSession, project: int, history: History) -> Spread:
    """Return how long waiting work of a project runs: the mean of a few of its kinds."""
    kinds = islice(session.demand.project_queues[project].values(), MAX_KINDS)
    found = [run_spread(history, next(iter(groups.values())).entries[0][2])[0] for groups in kinds]
    known = [spread for spread in found if spread[1] < inf]
    if not known:
        return UNKNOWN
    low, mid, high = (sum(spread[i] for spread in known) / len(known) for i in range(3))
    return low, mid, high


def _served_before(session: SchedulingSession, group: Group, waiting: int, mine: tuple[float, ...]) -> int:
    """Return how many ``waiting`` thousandths of a project are served before it stands behind ``mine``."""
    if _standing(session, group, waiting) < mine:
        return waiting
    low, high = 0, waiting
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        low, high = (middle, high) if _standing(session, group, middle) < mine else (low, middle)
    return low


def _own(session: SchedulingSession, key: ReplicaKey, own: Group, history: History) -> Iterator[_Stream]:
    queued_at, arrival = session.demand.arrival_of(key)
    for group in session.demand.groups(own.account.project):
        if group.priority >= own.priority:
            older = group.count_before(queued_at, arrival)
            yield _stream(session, group, older if group.priority == own.priority else len(group.entries), history)


def _stream(session: SchedulingSession, group: Group, count: int, history: History) -> _Stream:
    permille = count * group.size * session.placer.least_permille(group.shape)
    return _Stream(permille, run_spread(history, group.entries[0][2])[0])


def _fewer(streams: Sequence[_Stream]) -> list[_Stream]:
    """Return the largest streams as they are, the others as one."""
    kept = sorted((s for s in streams if s.permille > 0), key=lambda s: -s.permille)
    rest = kept[MAX_STREAMS:]
    if not rest:
        return kept
    total = sum(s.permille for s in rest)
    low, mid, high = (sum(s.permille * s.run_s[i] for s in rest) / total for i in range(3))
    return [*kept[:MAX_STREAMS], _Stream(total, (low, mid, high))]
