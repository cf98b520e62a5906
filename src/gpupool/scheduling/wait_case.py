"""A waiting replica before the rules that may stand in its way, and what a rule says when it does."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.claims import Bools, Ints
from gpupool.scheduling.gang import place
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.session import Session
from gpupool.scheduling.usable import Relax, fitting_rows, usable_slots
from gpupool.scheduling.values import PendingReplica
from gpupool.scheduling.words import what

Numbers = dict[str, float | int | str]


class WaitCode(StrEnum):
    """Why a replica waits."""

    NO_SUCH_MODEL = "NO_SUCH_MODEL"
    TOO_LARGE = "TOO_LARGE"
    DEPENDENCY = "DEPENDENCY"
    SUSPENDED = "SUSPENDED"
    PARALLELISM = "PARALLELISM"
    WINDOW = "WINDOW"
    FOLDER = "FOLDER"
    BACK_OFF = "BACK_OFF"
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
    WAITING_FOR_GPU = "WAITING_FOR_GPU"
    NOT_WAITING = "NOT_WAITING"  # it runs, or has ended


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that stands in the way, in words and numbers, and what would take it out of the way."""

    code: WaitCode
    sentence: str
    numbers: Numbers = field(default_factory=dict)
    would_help: tuple[str, ...] = ()


class Case:
    """One replica before the rules."""

    def __init__(self, session: Session, replica: PendingReplica) -> None:
        self.session, self.replica = session, replica
        self.placer, self.cluster = session.placer, session.cluster
        self.shape = session.demand.shape_of(replica)
        self.account = session.demand.account_of(replica)
        group = session.demand.group_of(replica.key)
        self.size = 1 if group is None else group.size  # who have to start together
        self.need = self.placer.least_permille(self.shape) * self.size
        self.ghost = session.ghosts.get(replica.key)
        self.ahead, self.ahead_total = _ahead(session.demand, replica)

    @property
    def wants(self) -> str:
        """What it needs, in words."""
        return what(self.shape) + (f" for each of {self.size} members" if self.size > 1 else "")

    def fits_if(self, relax: Relax) -> int:
        """On how many nodes it would fit with some rules left out."""
        return len(fitting_rows(self.cluster, self.shape, relax))

    def fits(self) -> bool:
        """Whether there is a place now, for all who have to start together."""
        if self.size == 1:
            return self.placer.fits_anywhere(self.shape)
        mark = self.session.log.checkpoint()
        members = [r for r in self.session.demand.together_with(self.replica) if r.key not in self.session.gone]
        found = place(self.session, members, self.shape, self.account, self.size)
        self.session.log.rollback(mark)
        return found is not None

    def usable(self, rows: Ints) -> Bools:
        """Which GPUs of some nodes would do if nobody else held anything of them; [R, G]."""
        accept = self.placer.accepted(self.shape)
        return usable_slots(self.cluster, self.shape, rows, accept, None, Relax(use=True))[0]

    def most_free(self) -> int:
        """Thousandths free on the best GPU that could serve it; for several GPUs, on as many of the best node's."""
        free = self._free()
        if self.shape.whole and self.shape.request.count > 1:
            free = np.where(free == WHOLE_GPU, free, 0)
        return int(free.sum(axis=1).max(initial=0))

    def most_free_parts(self) -> int:
        """The largest part that is free of as many GPUs of one node as it asks for."""
        free = self._free()
        return int(free[:, -1].max(initial=0)) if 0 < free.shape[1] == self.shape.request.count else 0

    def _free(self) -> Ints:
        """What is free of the GPUs of each node that would do, of as many as it asks for, the most first."""
        c = self.cluster
        rows = np.flatnonzero(c.present & c.up)
        free = np.where(self.usable(rows), np.clip(c.gpu_free[rows], 0, WHOLE_GPU), 0)
        return np.asarray(np.sort(free, axis=1)[:, ::-1][:, : self.shape.request.count])


def _ahead(demand: Demand, replica: PendingReplica) -> tuple[int, int]:
    """How many are ahead in its project (higher priority, or older), and with those older in other projects."""
    own = demand.group_of(replica.key)
    if own is None:
        return 0, 0
    place, project, priority = demand.arrival_of(replica.key), own.account.project, own.priority
    in_project = elsewhere = 0
    for group in demand.groups():  # there may be tens of thousands
        older = bisect_left(group.entries, place)  # no two arrivals are the same
        if group.account.project != project:
            elsewhere += older
        elif group.priority > priority:
            in_project += len(group.entries)
        elif group.priority == priority:
            in_project += older
    return in_project, in_project + elsewhere
