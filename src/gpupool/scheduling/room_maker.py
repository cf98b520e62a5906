"""Room for somebody: places held for all who start at once, at the cost of others who are told to end.

Victims take time to go, so nothing is granted here: the space is held (nominated) and granted by the cycle that finds
it free.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gpupool.scheduling.capacity import Need
from gpupool.scheduling.claims import Bools, Claim
from gpupool.scheduling.clearing import Clearing, Refused, Search, Work
from gpupool.scheduling.clearing_gangs import clear_for_gang
from gpupool.scheduling.evict import evict, reason_of, reason_of_model
from gpupool.scheduling.gang import place
from gpupool.scheduling.ledger import UNBOUNDED
from gpupool.scheduling.queue import Group
from gpupool.scheduling.rights import Rights
from gpupool.scheduling.session import Session
from gpupool.scheduling.topology import domains
from gpupool.scheduling.values import EvictionKind, HoldKind, PendingReplica
from gpupool.scheduling.victims import VictimPool

OTHERS = -1  # in the place of a project: all from which anybody may take


class RoomMaker:
    """The searches for victims of one cycle: what they work on, and what is done with what they find."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.work = Work(session.settings.max_looks)
        self.rights = Rights(session)
        self._pools: dict[int, VictimPool] = {}

    # --- for whom

    def permille(self, group: Group) -> int:
        """The least thousandths with which a group starts."""
        return self.session.placer.least_permille(group.shape) * group.size

    def is_owed(self, group: Group) -> bool:
        """Whether a group may take what it needs from anybody."""
        return self.rights.may_reclaim(group.account, self.permille(group))

    def promised(self, group: Group) -> bool:
        """Whether a group needs no more than a quota that was set promises it."""
        need, rights = self.permille(group), self.rights
        return rights.promised(group.account.project, need) or rights.models.may_take(group.account, need)

    def gives_way(self, group: Group) -> bool:
        """Whether what is reserved for a group goes to those who were promised it: this one was not, or has it."""
        return not (self.is_owed(group) and self.promised(group))

    # --- from whom

    def pool(self, project: int) -> VictimPool:
        """Who may be evicted of a project, or of OTHERS."""
        if project not in self._pools:
            chosen = self.rights.sources()
            if project != OTHERS:
                chosen = np.arange(len(chosen)) == project
            self._pools[project] = VictimPool(self.session, chosen, self.rights.over)
        return self._pools[project]

    def search(self, group: Group, pool: VictimPool, among: Bools, refused: Refused, budget: int) -> Search | None:
        """A search for room among some pieces, as far as ``refused`` agrees; None when there are none."""
        session, cluster, gang = self.session, self.session.cluster, group.gang
        if gang is not None and gang.strict and group.joins is not None:  # only near those who run
            where, members = domains(cluster, gang.within), session.demand.gangs.get(group.joins)
            rows = [cluster.claims[key].row for key in (members.running if members else ()) if key in cluster.claims]
            among &= np.isin(where[pool.pieces.row], where[[row for row in rows if row >= 0]])
        if not among.any():
            return None
        need = Need(group.shape, session.placer.accepted(group.shape), min(budget, UNBOUNDED), group.size)
        return Search(cluster, pool, need, among, refused, self.work, session.settings.max_nodes_searched)

    # --- what comes of it

    def claims(self, group: Group, replica: PendingReplica, row: int | None = None) -> list[Claim] | None:
        """Places for all who have to start at once, charged; on a row if one is named."""
        session, account = self.session, group.account
        if group.gang is not None:
            return place(session, self._members(group, replica), group.shape, account, group.size)
        room = session.ledger.room(account)
        claim = session.find(group.shape, account) if row is None else session.placer.on_row(group.shape, row, room)
        if claim is None or claim.permille > room:
            return None
        session.charge(claim, account)
        return [claim]

    def _members(self, group: Group, replica: PendingReplica) -> list[PendingReplica]:
        together = [r for r in self.session.demand.together_with(replica) if r.key not in self.session.gone]
        return together[: group.size]

    def nominate(self, group: Group, replica: PendingReplica, row: int | None = None) -> bool:
        """Hold a place for all who have to start at once, if there is one as things stand in the trial."""
        session, mark = self.session, self.session.log.checkpoint()
        if row is None and not session.placer.fits_anywhere(group.shape):
            return False
        claims = self.claims(group, replica, row)
        if claims is None:
            session.log.rollback(mark)
            return False
        for member, claim in zip(self._members(group, replica), claims, strict=True):
            session.hold_for(member, claim, group.account, HoldKind.NOMINATED, charged=True)
        return True

    def evict(self, group: Group, replica: PendingReplica, search: Search, kind: EvictionKind, model: str = "") -> bool:
        """Evict the best set that a search finds and hold the room for a group; ``model``: by a quota of it."""
        return any(
            self.carry_out(group, replica, search.pool, clearing, kind, model) for clearing in _clearings(search, group)
        )

    def carry_out(
        self,
        group: Group,
        replica: PendingReplica,
        pool: VictimPool,
        clearing: Clearing,
        kind: EvictionKind,
        model: str = "",
    ) -> bool:
        """Evict some, if what they leave (on one row, if the clearing names it) is room for a group; hold it."""
        session, mark = self.session, self.session.log.checkpoint()
        keys = pool.keys(clearing.slots)
        bonds = pool.bonds(clearing.slots)
        why = partial(reason_of_model, model=model, account=group.account) if model else partial(reason_of, kind=kind)
        reasons = [why(session, key, replica) + bond for key, bond in zip(keys, bonds, strict=True)]
        for key in keys:
            session.lift_running(key)
        if not self.nominate(group, replica, clearing.row):
            session.log.rollback(mark)
            return False
        evict(session, keys, replica.key, kind, reasons)
        for each in self._pools.values():
            each.taken(clearing.slots)
        return True


def _clearings(search: Search, group: Group) -> Iterator[Clearing]:
    if group.size > 1:
        yield from clear_for_gang(search, group.gang)
    elif (found := search.for_one()) is not None:
        yield found
