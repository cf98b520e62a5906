"""A waiting replica as the wait rules examine it, and the finding of a rule."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from gpupool.domain.events import Reason
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.explain.formatting import describe_shape
from gpupool.scheduling.placement.mig_sites import may_have_site
from gpupool.scheduling.placement.node_filter import Relax, fitting_rows, usable_slots
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Bools, Claim, Ints
from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.queue import Demand
from gpupool.scheduling.values import PendingReplica

Numbers = dict[str, float | int | str]
# the session, members of a shape, its account, how many must fit; see ``gang_placement.place``
Place = Callable[[SchedulingSession, Sequence[PendingReplica], Shape, Account, int], list[Claim] | None]


class WaitCode(StrEnum):
    """The reasons for a wait."""

    NO_SUCH_MODEL = "NO_SUCH_MODEL"
    TOO_LARGE = "TOO_LARGE"
    DEPENDENCY = "DEPENDENCY"
    SUSPENDED = "SUSPENDED"
    PARALLELISM = "PARALLELISM"
    WINDOW = "WINDOW"
    FOLDER = "FOLDER"
    GPU_HOURS = "GPU_HOURS"
    BACK_OFF = "BACK_OFF"
    MANY_REQUESTS = "MANY_REQUESTS"
    PROJECT_QUOTA = "PROJECT_QUOTA"
    PROJECT_LIMIT = "PROJECT_LIMIT"
    DEPARTMENT_QUOTA = "DEPARTMENT_QUOTA"
    DEPARTMENT_LIMIT = "DEPARTMENT_LIMIT"
    USER_LIMIT = "USER_LIMIT"
    STARTING_SOON = "STARTING_SOON"
    RESERVED_FOR_OTHERS = "RESERVED_FOR_OTHERS"
    CPU_OR_MEMORY = "CPU_OR_MEMORY"
    NODE_CORDONED = "NODE_CORDONED"
    GPU_IN_USE_BY_OTHERS = "GPU_IN_USE_BY_OTHERS"
    GPU_UNHEALTHY = "GPU_UNHEALTHY"
    OTHER_SHARING_MODE = "OTHER_SHARING_MODE"
    OTHER_NODE_POOL = "OTHER_NODE_POOL"
    BOOKED = "BOOKED"
    GANG = "GANG"
    MIG_INSTANCE = "MIG_INSTANCE"
    WAITING_FOR_GPU = "WAITING_FOR_GPU"
    NOT_WAITING = "NOT_WAITING"  # it runs, or has ended


@dataclass(frozen=True, slots=True)
class WaitFinding:
    """A rule that keeps a replica waiting, in words and numbers, and suggestions."""

    code: WaitCode
    sentence: str
    numbers: Numbers = field(default_factory=dict)
    would_help: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why does it wait?".

    ``position`` counts from 1 within the project (0: not in the queue). ``ahead_total`` adds the replicas of projects
    that are served before. ``numbers`` are those of the sentence. ``estimate_s`` is seconds from now, None when nothing
    is known, half of the time between ``estimate_low_s`` and ``estimate_high_s``, and nine of ten times between
    ``estimate_least_s`` and ``estimate_most_s`` (None without past estimates); ``estimate_basis`` says what it rests
    on, or why there is none. ``foretold_s`` is the estimate before the correction by past errors, None where it cannot
    be off. For ended work ``code`` is the reason of its end.
    """

    code: WaitCode | Reason
    sentence: str
    position: int = 0
    ahead_in_project: int = 0
    ahead_total: int = 0
    numbers: Numbers = field(default_factory=dict)
    would_help: tuple[str, ...] = ()
    estimate_s: float | None = None
    estimate_basis: str = ""
    estimate_low_s: float | None = None
    estimate_high_s: float | None = None
    estimate_least_s: float | None = None
    estimate_most_s: float | None = None
    foretold_s: float | None = None


class Case:
    """One waiting replica, as the wait rules examine it."""

    def __init__(self, session: SchedulingSession, replica: PendingReplica, turns: list[int], place: Place) -> None:
        """Describe a replica; ``turns`` are the projects in scheduling order, ``place`` finds places for gangs."""
        self.session, self.replica, self.turns, self._place = session, replica, turns, place
        self.placer, self.cluster = session.placer, session.cluster
        self.shape = session.demand.shape_of(replica)
        self.account = session.demand.account_of(replica)
        group = session.demand.group_of(replica.key)
        self.size = 1 if group is None else group.size  # members that have to start together
        self.need = self.placer.least_permille(self.shape) * self.size
        self.active = session.holds.active.get(replica.key)
        self.may_be_created = replica.gang is None and may_have_site(self.cluster, self.shape)
        self.ahead, self.ahead_total = _ahead(session.demand, replica, self.turns)

    @property
    def wants(self) -> str:
        """Return its request in words."""
        return describe_shape(self.shape) + (f" for each of {self.size} members" if self.size > 1 else "")

    def fits_if(self, relax: Relax) -> int:
        """Return on how many nodes it would fit with some rules left out."""
        return len(fitting_rows(self.cluster, self.shape, relax))

    def fits(self) -> bool:
        """Return whether there is a place now, for all members that have to start together."""
        if self.replica.gang is None:
            return self.placer.fits_anywhere(self.shape)
        mark = self.session.log.checkpoint()
        members = self.session.waiting_with(self.replica)
        found = self._place(self.session, members, self.shape, self.account, self.size)
        self.session.log.rollback(mark)
        return found is not None

    def usable(self, rows: Ints) -> Bools:
        """Return which GPUs of some nodes would fit if no other work held a part of them; [R, G]."""
        accept = self.placer.accepted(self.shape)
        return usable_slots(self.cluster, self.shape, rows, accept, None, Relax(use=True))[0]

    def most_free(self) -> int:
        """Return the thousandths free on the best GPU that could serve it.

        For several GPUs, return the sum over as many of the best node's.
        """
        free = self._free()
        if self.shape.whole and self.shape.request.count > 1:
            free = np.where(free == WHOLE_GPU, free, 0)
        return int(free.sum(axis=1).max(initial=0))

    def most_free_parts(self) -> int:
        """Return the largest part that is free on the requested number of GPUs of one node."""
        free = self._free()
        return int(free[:, -1].max(initial=0)) if 0 < free.shape[1] == self.shape.request.count else 0

    def _free(self) -> Ints:
        """Return the free parts of the best fitting GPUs of each node, up to the requested number, largest first."""
        c = self.cluster
        rows = np.flatnonzero(c.present & c.up)
        free = np.where(self.usable(rows), np.clip(c.gpu_free[rows], 0, WHOLE_GPU), 0)
        return np.asarray(np.sort(free, axis=1)[:, ::-1][:, : self.shape.request.count])


def _ahead(demand: Demand, replica: PendingReplica, turns: list[int]) -> tuple[int, int]:
    """Return how many replicas are ahead in its project (higher priority, or older) and in the whole queue."""
    own = demand.group_of(replica.key)
    if own is None:
        return 0, 0
    place, project, priority = demand.arrival_of(replica.key), own.account.project, own.priority
    served_before = set(turns[: turns.index(project)] if project in turns else ())
    in_project = in_others = 0
    for group in demand.groups():  # there may be tens of thousands
        if group.account.project in served_before:
            in_others += len(group.entries)
        elif group.account.project != project:
            continue
        elif group.priority > priority:
            in_project += len(group.entries)
        elif group.priority == priority:
            in_project += bisect_left(group.entries, place)  # no two arrivals are the same
    return in_project, in_project + in_others
