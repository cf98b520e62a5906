"""The scheduler as a state machine: events in, decisions out, nothing rebuilt in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpupool.domain.access import Department, Project, User
from gpupool.domain.booking import Booking
from gpupool.domain.gpu import Gpu, GpuRequest, Node, NodeState
from gpupool.domain.ids import Epoch
from gpupool.domain.workload import Lease
from gpupool.scheduling.background import Background
from gpupool.scheduling.claims import Holding
from gpupool.scheduling.cluster import MILLI, ClusterState
from gpupool.scheduling.cycle import decide
from gpupool.scheduling.explain import Explanation, explain
from gpupool.scheduling.feasible import check_possible
from gpupool.scheduling.modes import serves_users
from gpupool.scheduling.order import Ordering
from gpupool.scheduling.pastruns import PastRuns
from gpupool.scheduling.placement import Placer
from gpupool.scheduling.plan import Plan, plan
from gpupool.scheduling.queue import Demand
from gpupool.scheduling.runtimes import History
from gpupool.scheduling.session import Session
from gpupool.scheduling.standing import Standings, standings
from gpupool.scheduling.values import Decisions, Grant, Hold, PendingReplica, ReplicaKey, RunningReplica, Settings

GRANTED = Epoch(0)  # the epoch of a lease that was granted but not written yet


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node came, or its report or state changed."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node is no longer part of the pool."""

    name: str


@dataclass(frozen=True, slots=True)
class GpusChanged:
    """Health or foreign processes of a node's GPUs changed."""

    node: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class NodeStateChanged:
    """A node was cordoned, uncordoned, lost or found."""

    name: str
    state: NodeState


@dataclass(frozen=True, slots=True)
class ProjectChanged:
    """A project came, or its bounds changed."""

    project: Project


@dataclass(frozen=True, slots=True)
class DepartmentChanged:
    """A department came, or its bounds changed."""

    department: Department


@dataclass(frozen=True, slots=True)
class UserChanged:
    """A user came, or the user's bound changed."""

    user: User


@dataclass(frozen=True, slots=True)
class BookingChanged:
    """Nodes were booked, or a booking changed."""

    booking: Booking


@dataclass(frozen=True, slots=True)
class BookingRemoved:
    """A booking is over, or was cancelled."""

    id: str


@dataclass(frozen=True, slots=True)
class PendingAdded:
    """A replica waits (again), or something about its waiting changed."""

    replica: PendingReplica
    now: float


@dataclass(frozen=True, slots=True)
class PendingRemoved:
    """A replica waits no more and did not start: stopped, or deleted."""

    key: ReplicaKey


@dataclass(frozen=True, slots=True)
class LeaseTaken:
    """A replica holds a lease, or something about its running changed (time limit, being told to end)."""

    replica: RunningReplica


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """A replica's lease has been released. ``ran_s``: how long it had run, if it ended by itself.

    ``at`` is when; None: now.
    """

    key: ReplicaKey
    ran_s: float | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class PastUse:
    """What a user held in a project by leases that are over: decayed thousandth-seconds as of ``at``.

    For a scheduler that begins anew.
    """

    project: str
    user: str
    permille_s: float
    at: float


Event = (
    NodeChanged
    | NodeRemoved
    | GpusChanged
    | NodeStateChanged
    | ProjectChanged
    | DepartmentChanged
    | UserChanged
    | BookingChanged
    | BookingRemoved
    | PendingAdded
    | PendingRemoved
    | LeaseTaken
    | LeaseReleased
    | PastUse
)


class Scheduler:
    """Cluster, queue, ledger and holds from one event to the next.

    ``decide`` applies its own decisions: a granted replica counts as running from then on (with a lease of epoch 0),
    an evicted one as releasing. The caller confirms a grant with ``LeaseTaken`` (the real lease), or takes it back
    with ``LeaseReleased`` and ``PendingAdded``.
    """

    def __init__(self, settings: Settings | None = None, past: PastRuns | None = None) -> None:
        """``past`` is what is known of run times already."""
        self.settings = settings or Settings()
        self.cluster = ClusterState()
        self.demand = Demand()
        self.demand.ledger.tune(self.settings.decay, self.settings.usage_weight)
        self.demand.ordering = Ordering(self.settings.order, self.settings.turn_s, past or PastRuns())
        self.demand.bookings = self.cluster.bookings
        self.placer = Placer(self.cluster)
        self.placer.scorer.placement = self.settings.placement
        self.holds: tuple[Hold, ...] = ()

    def apply_all(self, events: Iterable[Event]) -> None:
        """``apply`` each of them."""
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:  # noqa: C901, PLR0912 - one line per kind of event
        """Take over what happened. Events about things not known are ignored; the latest word counts."""
        match event:
            case NodeChanged(node):
                self.cluster.set_node(node)
                self.demand.tell_users_apart(apart=serves_users(self.cluster.mode_default))
            case NodeRemoved(name):
                self.cluster.remove_node(name)
            case GpusChanged(name, gpus):
                self.cluster.set_gpus(name, gpus)
            case NodeStateChanged(name, state):
                self.cluster.set_state(name, state)
            case ProjectChanged(project):
                self.demand.ledger.set_project(project)
            case DepartmentChanged(department):
                self.demand.ledger.set_department(department)
            case UserChanged(user):
                self.demand.ledger.set_user(user)
            case BookingChanged(booking):
                self.cluster.bookings.put(booking)
                self._rebook()
            case BookingRemoved(id_):
                self.cluster.bookings.remove(id_)
                self._rebook()
            case PendingAdded(replica, now):
                self._learn(replica.key, replica.request, replica.cpus)
                self.demand.add(replica, now)
            case PendingRemoved(key):
                self.demand.remove(key)
            case LeaseTaken(replica):
                self._start(replica)
            case LeaseReleased(key, ran_s, at):
                self._note_run(key, ran_s)
                self.demand.finish(key, at)
                self.cluster.free(key)
            case PastUse(name, user_name, permille_s, as_of):
                account = self.demand.ledger.account(name, user_name, preemptible=True)
                self.demand.ledger.remember(account, permille_s, as_of)

    def decide(self, now: float) -> Decisions:
        """One cycle at ``now`` (seconds since the epoch), its decisions applied."""
        decisions = decide(self.placer, self.demand, now, self.holds, self.settings)
        for grant in decisions.grants:
            self._start(self._granted(grant, now))
        for eviction in decisions.evictions:
            self.demand.leaves(eviction.key)
        self.holds = decisions.holds
        return decisions

    def explain(
        self,
        key: ReplicaKey,
        now: float,
        history: History | None = None,
        background: Background | None = None,
        *,
        foretell: bool = True,
    ) -> Explanation | None:
        """Why a replica waits; None when it does not. ``history``, if nothing else is known: past run times."""
        known = background or Background(history or {})
        return explain(self.placer, self.demand, self.holds, key, now, known, self.settings, foretell=foretell)

    def plan(self, replicas: Sequence[PendingReplica], now: float, background: Background | None = None) -> Plan:
        """Where and when replicas would start if they queued now. Nothing changes."""
        known = background or Background()
        return plan(self.placer, self.demand, self.holds, replicas, now, known, self.settings)

    def standings(self, now: float) -> Standings:
        """How everybody stands at ``now``: shares, use lately, and the order of turns. Nothing changes."""
        self.demand.wake(now)
        session = Session(self.placer, self.demand, now, self.settings)
        try:
            return standings(session)
        finally:
            session.close()

    def check_possible(
        self, request: GpuRequest, cpus: float = 0.0, memory_mib: int = 0, pools: tuple[str, ...] = ()
    ) -> None:
        """Raise ``GpupoolError`` (``UNKNOWN_MODEL``, ``IMPOSSIBLE_REQUEST``) if no node could ever serve it."""
        check_possible(self.placer, request, cpus, memory_mib, pools)

    def _start(self, running: RunningReplica) -> None:
        lease = running.lease
        if running.request is not None:
            self._learn(running.key, running.request, lease.cpus)
        self.demand.start(running)
        cpu_milli = round(lease.cpus * MILLI)
        held = Holding(lease.node, lease.shares, cpu_milli, lease.memory_mib, lease.sharing, lease.user)
        if self.cluster.holdings.get(running.key) != held:
            self.cluster.take(running.key, held)

    def _learn(self, key: ReplicaKey, request: GpuRequest, cpus: float) -> None:
        """Note what usual work asks for, once for each replica that comes."""
        if request.count and key not in self.demand.pending and key not in self.demand.running:
            self.placer.scorer.work.submitted(request, round(cpus * MILLI))

    def _rebook(self) -> None:
        self.cluster.mark_booked()
        self.demand.list_anew()

    def _note_run(self, key: ReplicaKey, ran_s: float | None) -> None:
        running = self.demand.running.get(key)
        if running is not None and ran_s is not None:
            lease = running.lease
            self.demand.ordering.past.add(lease.project, lease.user, lease.permille, ran_s)

    def _granted(self, grant: Grant, now: float) -> RunningReplica:
        waited = self.demand.pending[grant.key]
        lease = Lease(
            epoch=GRANTED,
            workload=grant.workload,
            index=grant.index,
            attempt=0,
            project=waited.project,
            user=waited.user,
            node=grant.node,
            shares=grant.shares,
            cpus=waited.cpus,
            memory_mib=waited.memory_mib,
            granted_at=now,
            sharing=grant.sharing,
        )
        end = None if waited.max_time_s is None else now + waited.max_time_s
        return RunningReplica(
            lease,
            now,
            waited.priority,
            waited.preemptible,
            end,
            gang=waited.gang,
            request=waited.request,
            node_pools=waited.node_pools,
            served_s=waited.served_s,
            evictions=waited.evictions,
            grace_s=waited.grace_s,
        )
