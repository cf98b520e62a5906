"""The shared state of one cycle: the cluster that changes are tried on, and the active holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final
from weakref import proxy

import numpy as np

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.fairness.fair_share import HeldAmounts, Shares
from gpupool.scheduling.fairness.model_quotas import Guarantees
from gpupool.scheduling.fairness.whole_quotas import WholeQuotas
from gpupool.scheduling.outcome import CycleOutcome
from gpupool.scheduling.placement.replica import Placer
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.state.allocation import Bools, Claim, Ints
from gpupool.scheduling.state.cluster import MILLI, Shape
from gpupool.scheduling.state.ledger import Account
from gpupool.scheduling.state.queue import Demand, Group, ProjectQueue
from gpupool.scheduling.state.sharing_modes import mark_of
from gpupool.scheduling.values import Hold, HoldKind, PendingReplica, ReplicaKey


@dataclass(slots=True, eq=False)
class ActiveHold:
    """A hold that is charged as if its replica ran, so that no other replica gets the GPUs."""

    hold: Hold
    claim: Claim
    account: Account


class SchedulingSession:
    """The cluster and the ledger during a cycle, with active holds charged; ``close`` reverts all changes.

    Actions read the inputs (``placer``, ``demand``, ``settings``) and change the cluster with the methods. State of
    their own is in objects of their own.
    """

    def __init__(self, placer: Placer, demand: Demand, now: float, settings: Settings) -> None:
        self.placer: Final = placer
        self.demand: Final = demand
        self.settings: Final = settings
        self.cluster: Final = placer.cluster
        self.ledger: Final = demand.ledger
        self.log: Final = self.cluster.log
        self._now = float(now)
        self._start = self.log.checkpoint()
        self.outcome: Final = CycleOutcome(self.cluster, demand.releasing)
        self.holds: Final = ActiveHolds(self)
        capacity, holds = self.cluster.capacity_permille(), self.holds
        self.shares: Final = Shares(self.ledger, capacity, self._now, holds.promised, holds.reserved)
        self._guarantees: Guarantees | None = None
        self._whole_quotas = WholeQuotas(self.cluster, self.ledger, demand.holders, self.log)
        self._uncounted: AbstractSet[ReplicaKey] = frozenset()  # running replicas that ``guarantees`` left out
        self._changed: set[int] = set()  # see ``changed_projects``
        self._moves = 0
        self._leaving_slots = np.zeros(0, np.int64)

    @property
    def now(self) -> float:
        """Return the time of the cycle, in seconds since the epoch."""
        return self._now

    def set_time(self, now: float) -> None:
        """Set the time of a simulation."""
        self._now = now

    def close(self) -> None:
        """Revert all changes."""
        self.log.rollback(self._start)

    @property
    def change_counts(self) -> tuple[int, int]:
        """Return how often replicas and nodes have changed; equal in two cycles if only time has passed."""
        return self.demand.changes, self.cluster.generation

    @property
    def moves(self) -> int:
        """Return how often this cycle has changed the use of a project: equal if no grant, hold or trial was made."""
        return self._moves

    @property
    def changed_projects(self) -> AbstractSet[int]:
        """Return the projects whose use has changed in this cycle."""
        return self._changed

    def others_wait(self) -> bool:
        """Return True if a waiting replica was neither granted nor has a hold."""
        return len(self.outcome.settled) < len(self.demand.pending)

    # --- moves

    def charge(self, claim: Claim, account: Account) -> None:
        """Charge a claim to the cluster and the ledger."""
        self.cluster.charge(claim)
        self._count(account, claim.permille)
        self._whole_quotas.count(account, claim, 1)
        if self._guarantees:
            self._guarantees.count(self.log, account, claim, 1)

    def discharge(self, claim: Claim, account: Account) -> None:
        """Remove a claim from the cluster and the ledger."""
        self.cluster.discharge(claim)
        self._count(account, -claim.permille)
        self._whole_quotas.count(account, claim, -1)
        if self._guarantees:
            self._guarantees.count(self.log, account, claim, -1)

    def discharge_running(self, key: ReplicaKey) -> None:
        """Remove the claim of a running replica, as if it had ended."""
        claim, account = self.cluster.claims.get(key), self.demand.accounts[key]
        if claim is not None:
            self.cluster.discharge(claim)
            self._whole_quotas.count(account, claim, -1)
            if self._guarantees and key not in self._uncounted:
                self._guarantees.count(self.log, account, claim, -1)
        self._count(account, -self.demand.running[key].lease.permille)

    def charge_all(self, charges: Iterable[tuple[Claim, Account]]) -> None:
        """Charge claims, several at once if possible."""
        together = list[tuple[Claim, Account]]()
        for claim, account in charges:
            if account.preemptible and claim.row >= 0 and not self._guarantees:
                together.append((claim, account))
            else:
                self.charge(claim, account)
        if not together:
            return
        claims, accounts = zip(*together, strict=True)
        used, memory = np.array([claim.gpu for claim in claims]), np.array([claim.gmem for claim in claims])
        marks = np.array([mark_of(claim.mode, claim.user) for claim in claims])
        hosts = np.array([(claim.cpu_milli, claim.mem_mib) for claim in claims]).T
        amounts = -used, -memory, (used > 0) * marks[:, None], *-hosts
        self.cluster.add_each(np.array([claim.row for claim in claims]), amounts)
        projects, users, pairs = np.array([(of.project, of.user, of.pair) for of in accounts]).T
        self._count_each(projects, users, pairs, np.array([claim.permille for claim in claims]))

    def discharge_leaving(self) -> None:
        """Remove the claims of all replicas that were asked to end, as if they had ended."""
        h, at = self.demand.holders, self.leaving_slots()
        # quotas for protected work and of GPU models are counted one by one
        alone = h.protected[at] | (h.row[at] < 0) | bool(self._guarantees)
        for slot in at[alone].tolist():
            if (key := h.keys[slot]) is not None:
                self.discharge_running(key)
        at = at[~alone]
        self.cluster.add_each(h.row[at], (h.gpu[at], h.gmem[at], -h.marks[at], h.cpu[at], h.mem[at]))
        self._count_each(h.project[at], h.user[at], h.pair[at], -h.permille[at])

    def leaving_slots(self) -> Ints:
        """Return the slots in ``RunningTable`` of the replicas that were asked to end."""
        h, leaving = self.demand.holders, self.outcome.leaving
        if len(self._leaving_slots) != len(leaving):  # it only grows
            self._leaving_slots = np.array([h.slots[key] for key in leaving], np.int64)
        h.catch_up(self.cluster)
        return self._leaving_slots

    def _count_each(self, projects: Ints, users: Ints, pairs: Ints, permille: Ints) -> None:
        self.ledger.add_each(self.log, projects, users, pairs, permille)
        self._changed.update(projects.tolist())
        self._moves += len(projects)

    def _count(self, account: Account, permille: int) -> None:
        self.ledger.add(self.log, account, permille)
        self._changed.add(account.project)
        self._moves += 1

    def revoke(self, workload: WorkloadId) -> None:
        """Revert the grants of this cycle to a workload."""
        for claim, account in self.outcome.revoke(workload):
            self.discharge(claim, account)

    def promise(self, active: ActiveHold, sign: int) -> None:
        """Count a hold (1) or its end (-1) in the model quotas."""
        if self._guarantees:
            reserved = active.hold.kind is HoldKind.RESERVED
            self._guarantees.promise(active.account, active.claim, sign, reserved=reserved)

    # --- queries

    def guarantees(self) -> Guarantees:
        """Return the GPU model quotas, counted since the first call; the first call must be outside of a trial.

        Replicas in ``leaving`` are not counted.
        """
        if self._guarantees is None:
            made = self._guarantees = Guarantees(self.ledger, self.cluster)
            if made:
                holders = self.demand.holders
                holders.catch_up(self.cluster)
                self._uncounted = self.outcome.leaving & holders.slots.keys()
                made.take_over(holders, [holders.slots[key] for key in self._uncounted])
                for _, claim, account in self.outcome.placed:
                    made.count(self.log, account, claim, 1)
                for active in self.holds.active.values():
                    made.count(self.log, active.account, active.claim, 1)
                    self.promise(active, 1)
        return self._guarantees

    def find(self, shape: Shape, account: Account) -> Claim | None:
        """Return a place within all quotas and limits, or None."""
        room = self.ledger.room(account)
        fixed = shape.fixed_permille
        if (1 if fixed is None else fixed) > room and not shape.gpuless:
            return None
        budget = None if fixed is not None else room
        return self.permitted(shape, account, self.placer.find(shape, budget), budget)

    def permitted(
        self, shape: Shape, account: Account, claim: Claim | None, budget: int | None, row: int | None = None
    ) -> Claim | None:
        """Return the claim if all quotas stay available in whole GPUs with it; else another claim or None."""
        if claim is None or self.may_charge(shape, account, [claim]):
            return claim
        placer = self.placer
        return self._whole_quotas.find_on_used_gpu(shape, placer.accepted(shape), placer.late_keys, budget, row)

    def may_charge(self, shape: Shape, account: Account, claims: Sequence[Claim]) -> bool:
        """Return whether all quotas stay available in whole GPUs with some claims; see ``whole_quotas``."""
        return not self.depends_on_protected(shape, account) or self._whole_quotas.permits(account, claims)

    def depends_on_protected(self, shape: Shape, account: Account) -> bool:
        """Return whether ``may_charge`` depends on the protected work of the project for a shape."""
        return self._whole_quotas.concerns(shape, account)

    def waiting_with(self, replica: PendingReplica) -> list[PendingReplica]:
        """Return the replicas of ``Demand.together_with`` that are not settled yet."""
        return [member for member in self.demand.together_with(replica) if member.key not in self.outcome.settled]

    def first(self, project: int, shapes: Sequence[Shape]) -> tuple[Group, PendingReplica] | None:
        """Return the first replica of some waiting shapes of an unchanged project; None if a full search is needed."""
        if project in self._changed:
            return None
        _, group = min(map(self.demand.heads(project).__getitem__, shapes), key=itemgetter(0))
        replica = group.entries[0][2]
        return None if replica.key in self.outcome.settled else (group, replica)

    def project_queue(self, project: int, shapes: Iterable[Shape]) -> ProjectQueue:
        """Return the waiting groups of a project, in order, restricted to some shapes."""
        queues = self.demand.project_queues.get(project, {})
        groups = [group for shape in shapes for group in queues[shape].values()]
        return ProjectQueue(self.demand, groups, self.outcome.settled)


class ActiveHolds:
    """The holds of a cycle, charged in its session.

    ``promised`` are the thousandths charged for holds, which are not used yet. ``reserved`` is the part of it for which
    no victim is ending.
    """

    def __init__(self, session: SchedulingSession) -> None:
        # no reference cycle: sessions are large, and the garbage collector would free many of them in one decision
        self._session: SchedulingSession = proxy(session)
        self._active: dict[ReplicaKey, ActiveHold] = {}
        self.active: Mapping[ReplicaKey, ActiveHold] = self._active
        self._reservations: tuple[int, int] | None = None  # their number and thousandths, once counted
        self._taken: Bools | None = None  # once known
        self.promised, self.reserved = HeldAmounts(session.ledger), HeldAmounts(session.ledger)

    def apply(self, holds: Iterable[Hold]) -> None:
        """Charge the holds of earlier cycles; drop those whose replica neither waits nor is being moved."""
        placer = self._session.placer
        placer.begin_cycle()
        for hold in holds:
            found = self._holder(hold)
            if found is None or hold.key in self._active:
                continue
            account, user = found
            claim = placer.claim_of(hold, user)
            if claim.row >= 0 and claim.permille == sum(share.permille for share in hold.shares):
                self.add(ActiveHold(hold, claim, account), charged=True)
        self._session.charge_all((active.claim, active.account) for active in self._active.values())

    def _holder(self, hold: Hold) -> tuple[Account, str] | None:
        demand = self._session.demand
        group = demand.group_of(hold.key)
        if group is not None:
            return group.account, demand.pending[hold.key].user
        if hold.kind is HoldKind.MOVED and hold.key in demand.releasing:
            return demand.accounts[hold.key], demand.running[hold.key].lease.user
        return None

    def hold(
        self,
        replica: PendingReplica,
        claim: Claim,
        account: Account,
        kind: HoldKind,
        starts_at: float | None = None,
        *,
        charged: bool = False,
    ) -> None:
        """Hold a claim for a replica, from now on or from ``starts_at``; ``charged``: it is charged already."""
        cluster, now = self._session.cluster, self._session.now
        hold = Hold(
            workload=replica.workload,
            index=replica.index,
            node=cluster.name_of(claim.row),
            shares=cluster.shares_of(claim),
            cpus=claim.cpu_milli / MILLI,
            memory_mib=claim.mem_mib,
            kind=kind,
            starts_at=now if starts_at is None else starts_at,
            sharing=claim.mode,
            since=now,
        )
        self.add(ActiveHold(hold, claim, account), charged=charged)

    def add(self, active: ActiveHold, *, charged: bool = False) -> None:
        """Add an active hold."""
        if not charged:
            self._session.charge(active.claim, active.account)
        self._promise(active, 1)
        self._active[active.hold.key] = active
        self._reservations = self._taken = None
        self._session.outcome.settle(active.hold.key)

    def remove(self, key: ReplicaKey) -> ActiveHold:
        """Remove and return an active hold; its replica is like any other again."""
        active = self._active.pop(key)
        self._reservations = self._taken = None
        self._session.discharge(active.claim, active.account)
        self._promise(active, -1)
        self._session.outcome.unsettle(key)
        return active

    def reservations(self) -> dict[ReplicaKey, list[ActiveHold]]:
        """Return the holds of each reservation, by the first replica of its gang (or the replica alone)."""
        leader, reserved = self._session.demand.gangs.leader, dict[ReplicaKey, list[ActiveHold]]()
        for key, active in self._active.items():
            if active.hold.kind is HoldKind.RESERVED:
                reserved.setdefault(leader(key), []).append(active)
        return reserved

    def count_reservations(self) -> tuple[int, int]:
        """Return the number of reservations, a gang counted once, and the thousandths that they hold."""
        if self._reservations is None:
            reserved = self.reservations()
            held = sum(active.claim.permille for found in reserved.values() for active in found)
            self._reservations = len(reserved), held
        return self._reservations

    def taken(self) -> Bools:
        """Return which GPUs are held, [N, G]. Do not change it."""
        if self._taken is None:
            self._taken = np.zeros(self._session.cluster.gpu_free.shape, np.bool_)
            for active in self._active.values():
                self._taken[active.claim.row] |= active.claim.gpu > 0
        return self._taken

    def move_to_end(self, key: ReplicaKey) -> None:
        """Move a hold behind all others."""
        self._active[key] = self._active.pop(key)

    def set_start(self, active: ActiveHold, starts_at: float) -> None:
        """Set when the GPUs of a hold are expected to be free."""
        active.hold = replace(active.hold, starts_at=starts_at)

    def _promise(self, active: ActiveHold, sign: int) -> None:
        permille = sign * active.claim.permille
        self.promised.add(active.account.project, permille)
        if active.hold.kind is HoldKind.RESERVED:
            self.reserved.add(active.account.project, permille)
        self._session.promise(active, sign)
