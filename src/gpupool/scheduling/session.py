"""One cycle at work: the state it tries things on, and what it has decided so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.claims import Claim, Holding
from gpupool.scheduling.cluster import MILLI
from gpupool.scheduling.fairshare import Shares
from gpupool.scheduling.guarantees import Guarantees
from gpupool.scheduling.lanes import Lane
from gpupool.scheduling.ledger import Account
from gpupool.scheduling.placement import Kept, Placer
from gpupool.scheduling.queue import Demand, Group
from gpupool.scheduling.shape import Shape
from gpupool.scheduling.values import Eviction, Grant, Hold, HoldKind, PendingReplica, ReplicaKey, Settings


@dataclass(slots=True, eq=False)
class Ghost:
    """A hold that is charged as if its replica ran, so that nobody else gets the space."""

    hold: Hold
    claim: Claim
    account: Account


class Session:
    """The cluster and the ledger under trial, with holds charged as ghosts; ``close`` puts all back as it was.

    ``gone`` are pending replicas that this cycle granted or that have a ghost: nobody considers them twice.
    ``leaving`` are running replicas told to end, before or by this cycle.
    """

    def __init__(self, placer: Placer, demand: Demand, now: float, settings: Settings) -> None:
        self.placer, self.demand, self.now, self.settings = placer, demand, float(now), settings
        self.cluster, self.ledger = placer.cluster, demand.ledger
        self.log = self.cluster.log
        self._start = self.log.checkpoint()
        self.ghosts: dict[ReplicaKey, Ghost] = {}
        self.promised: Counter[int] = Counter()  # project -> thousandths counted for ghosts: not held yet
        self.reserved: Counter[int] = Counter()  # the part of it for which nobody is on the way out
        capacity = self.cluster.capacity_permille()
        self.shares = Shares(self.ledger, capacity, self.now, self.promised, self.reserved)
        self.gone: set[ReplicaKey] = set()
        self.leaving: set[ReplicaKey] = set(demand.releasing)
        self.grants: list[Grant] = []
        self.placed: list[tuple[PendingReplica, Claim, Account]] = []
        self.evictions: list[Eviction] = []
        self.backfills_left = settings.max_backfills
        self.likely_s: dict[tuple[str, str, int], float | None] = {}  # see ``backfill``
        self.slot_ends: npt.NDArray[np.float64] | None = None  # see ``reserve.slot_ends``
        self._guarantees: Guarantees | None = None
        self._uncounted: set[ReplicaKey] = set()  # those who run that ``guarantees`` left out
        self._stirred: set[int] = set()  # projects whose use is not what it was
        self.hasty = False  # what takes long is left to the next cycle as soon as somebody was granted something
        self.cut_short = False  # and that has happened
        self.exhausted = False  # the bound on looks for victims was reached
        self.later: list[float] = []  # moments at which time alone may change the answer for those who wait
        self.alarms: list[float] = []  # and for those who run

    def close(self) -> None:
        """Take everything back."""
        self.log.rollback(self._start)

    def others_wait(self) -> bool:
        """Whether anybody waits who was neither granted anything nor has a hold."""
        return len(self.gone) < len(self.demand.pending)

    # --- moves

    def charge(self, claim: Claim, account: Account) -> None:
        """Count a claim in the cluster and in the ledger."""
        self.cluster.charge(claim)
        self._count(account, claim.permille)
        if self._guarantees:
            self._guarantees.count(self.log, account, claim, 1)

    def discharge(self, claim: Claim, account: Account) -> None:
        """Take a claim out of the cluster and the ledger."""
        self.cluster.discharge(claim)
        self._count(account, -claim.permille)
        if self._guarantees:
            self._guarantees.count(self.log, account, claim, -1)

    def lift_running(self, key: ReplicaKey) -> None:
        """As if a running replica had gone."""
        claim, account = self.cluster.claims.get(key), self.demand.accounts[key]
        if claim is not None:
            self.cluster.discharge(claim)
            if self._guarantees and key not in self._uncounted:
                self._guarantees.count(self.log, account, claim, -1)
        self._count(account, -self.demand.running[key].lease.permille)

    def _count(self, account: Account, permille: int) -> None:
        self.ledger.add(self.log, account, permille)
        self._stirred.add(account.project)

    def leaving_of(self, account: Account) -> list[ReplicaKey]:
        """Those on the way out who are of the same project, or of the same user."""
        accounts = self.demand.accounts
        return [
            key
            for key in self.leaving
            if accounts[key].project == account.project or accounts[key].user == account.user
        ]

    def grant(self, replica: PendingReplica, claim: Claim, account: Account) -> None:
        """Decide that a replica starts."""
        self.charge(claim, account)
        self.note_grant(replica, claim, account)

    def note_grant(self, replica: PendingReplica, claim: Claim, account: Account) -> None:
        """Decide that a replica starts whose claim is charged already."""
        self.gone.add(replica.key)
        self.placed.append((replica, claim, account))
        shares = self.cluster.shares_of(claim)
        node = self.cluster.name_of(claim.row)
        self.grants.append(Grant(replica.workload, replica.index, node, shares, claim.mode))

    def revoke(self, workload: WorkloadId) -> None:
        """Take back the grants of this cycle to a workload."""
        for replica, claim, account in [placed for placed in self.placed if placed[0].workload == workload]:
            self.discharge(claim, account)
            self.placed.remove((replica, claim, account))
        self.grants = [grant for grant in self.grants if grant.workload != workload]

    # --- holds

    def haunt(self, holds: Iterable[Hold]) -> None:
        """Charge holds given from earlier cycles; those whose replica neither waits nor is being moved fall away."""
        known, self.placer.kept = self.placer.kept, {}
        for hold in holds:
            found = self._holder(hold)
            if found is None or hold.key in self.ghosts:
                continue
            account, user = found
            claim = self._claim_of(hold, user, known.get(hold.key))
            if claim.row >= 0 and claim.permille == sum(share.permille for share in hold.shares):
                self.add_ghost(Ghost(hold, claim, account))

    def _claim_of(self, hold: Hold, user: str, known: Kept | None) -> Claim:
        """What a hold takes; most are the same cycle after cycle."""
        generation = self.cluster.generation
        if known is None or known[0] is not hold or known[1] != generation or known[2].user != user:
            held = Holding(hold.node, hold.shares, round(hold.cpus * MILLI), hold.memory_mib, hold.sharing, user)
            known = hold, generation, self.cluster.claim_of(held)
        self.placer.kept[hold.key] = known
        return known[2]

    def _holder(self, hold: Hold) -> tuple[Account, str] | None:
        group = self.demand.group_of(hold.key)
        if group is not None:
            return group.account, self.demand.pending[hold.key].user
        if hold.kind is HoldKind.MOVED and hold.key in self.demand.releasing:
            return self.demand.accounts[hold.key], self.demand.running[hold.key].lease.user
        return None

    def hold_for(
        self,
        replica: PendingReplica,
        claim: Claim,
        account: Account,
        kind: HoldKind,
        starts_at: float | None = None,
        *,
        charged: bool = False,
    ) -> None:
        """Keep a claim for a replica, from now on or from ``starts_at``; it may be ``charged`` already."""
        hold = Hold(
            workload=replica.workload,
            index=replica.index,
            node=self.cluster.name_of(claim.row),
            shares=self.cluster.shares_of(claim),
            cpus=claim.cpu_milli / MILLI,
            memory_mib=claim.mem_mib,
            kind=kind,
            starts_at=self.now if starts_at is None else starts_at,
            sharing=claim.mode,
            since=self.now,
        )
        self.add_ghost(Ghost(hold, claim, account), charged=charged)

    def add_ghost(self, ghost: Ghost, *, charged: bool = False) -> None:
        """Keep space for a replica from now on."""
        if not charged:
            self.charge(ghost.claim, ghost.account)
        self._promise(ghost, 1)
        self.ghosts[ghost.hold.key] = ghost
        self.gone.add(ghost.hold.key)

    def _promise(self, ghost: Ghost, sign: int) -> None:
        reserved = ghost.hold.kind is HoldKind.RESERVED
        self.promised[ghost.account.project] += sign * ghost.claim.permille
        self.reserved[ghost.account.project] += sign * ghost.claim.permille * reserved
        if self._guarantees:
            self._guarantees.promise(ghost.account, ghost.claim, sign, reserved=reserved)

    def drop_ghost(self, key: ReplicaKey) -> Ghost:
        """Keep it no longer; its replica is like any other again."""
        ghost = self.ghosts.pop(key)
        self.discharge(ghost.claim, ghost.account)
        self._promise(ghost, -1)
        self.gone.discard(key)
        return ghost

    # --- looks

    def guarantees(self) -> Guarantees:
        """What is guaranteed of GPU models, counted from the first call on; not to be made in the middle of a trial.

        Whoever is ``leaving`` is not counted, lifted or not.
        """
        if self._guarantees is None:
            made = self._guarantees = Guarantees(self.ledger, self.cluster)
            if made:
                holders = self.demand.holders
                holders.catch_up(self.cluster)
                self._uncounted = self.leaving & holders.slots.keys()
                made.take_over(holders, [holders.slots[key] for key in self._uncounted])
                for _, claim, account in self.placed:
                    made.count(self.log, account, claim, 1)
                for ghost in self.ghosts.values():
                    made.count(self.log, ghost.account, ghost.claim, 1)
                    made.promise(ghost.account, ghost.claim, 1, reserved=ghost.hold.kind is HoldKind.RESERVED)
        return self._guarantees

    def find(self, shape: Shape, account: Account) -> Claim | None:
        """A place within all bounds on use, or None."""
        room = self.ledger.room(account)
        fixed = shape.fixed_permille
        if (1 if fixed is None else fixed) > room and not shape.gpuless:
            return None
        return self.placer.find(shape, None if fixed is not None else room)

    def first(
        self, project: int, among: AbstractSet[Shape], wanted: Callable[[int, Shape], bool]
    ) -> tuple[Group, PendingReplica] | None:
        """Who is first in the lane of a project that nothing has happened to; None when that is not known."""
        if project in self._stirred:
            return None
        known = self.demand.heads(project)
        heads = [known[shape] for shape in known.keys() & among if wanted(project, shape)]
        if not heads:
            return None
        _, group = min(heads, key=itemgetter(0))
        replica = group.entries[0][2]
        return None if replica.key in self.gone else (group, replica)

    def lane(self, project: int, among: AbstractSet[Shape], wanted: Callable[[int, Shape], bool]) -> Lane:
        """The waiting groups of a project, in order, of the shapes that are wanted."""
        shapes = self.demand.lanes.get(project, {})
        groups: list[Group] = []
        for shape in shapes.keys() & among:
            if wanted(project, shape):
                groups.extend(shapes[shape].values())
        return Lane(self.demand, groups, self.gone)
