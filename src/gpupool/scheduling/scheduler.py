"""The scheduler as a state machine: events in, decisions out, incremental state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from gpupool.domain.ids import Epoch
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node, NodeState
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Department, Project, User
from gpupool.domain.people.shares import ShareReport
from gpupool.domain.work.workload import GpuLease
from gpupool.scheduling.allocate import SimulatedQueue, allocate
from gpupool.scheduling.eviction.actions import serve_by_eviction
from gpupool.scheduling.eviction.consolidation import consolidate
from gpupool.scheduling.eviction.planner import EvictionPlanner
from gpupool.scheduling.eviction.preemption import Preemption
from gpupool.scheduling.eviction.reclaim import Reclaim
from gpupool.scheduling.eviction.reserved_nodes import evict_for_reservations
from gpupool.scheduling.eviction.time_slicing import evict_for_time_slicing
from gpupool.scheduling.explain.background import Background
from gpupool.scheduling.explain.feasibility import check_possible
from gpupool.scheduling.explain.plan import Plan, plan
from gpupool.scheduling.explain.share_report import share_report
from gpupool.scheduling.explain.wait_reason import Actions, Explanation, explain
from gpupool.scheduling.gang_placement import evict_stale, evict_whole_gangs
from gpupool.scheduling.holds.runtime_model import History
from gpupool.scheduling.holds.settlement import settle_holds
from gpupool.scheduling.holds.starvation import Starvation, end_overruns, refresh_reservations
from gpupool.scheduling.placement.replica import Placer
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import HeldAllocation
from gpupool.scheduling.state.cluster import MILLI, ClusterState
from gpupool.scheduling.state.queue import Demand
from gpupool.scheduling.state.sharing_modes import serves_users
from gpupool.scheduling.state.user_order import Ordering, PastRuns
from gpupool.scheduling.values import Decisions, Grant, Hold, PendingReplica, ReplicaKey, RunningReplica

GRANTED = Epoch(0)  # the epoch of a lease that is granted but not stored yet
_DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node was added, or its report or state changed."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node was removed from the pool."""

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
    """A project was added, or its quota or limits changed."""

    project: Project


@dataclass(frozen=True, slots=True)
class DepartmentChanged:
    """A department was added, or its quota or limits changed."""

    department: Department


@dataclass(frozen=True, slots=True)
class UserChanged:
    """A user was added, or the user's limit changed."""

    user: User


@dataclass(frozen=True, slots=True)
class ReservationChanged:
    """A reservation of nodes was added or changed."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class ReservationRemoved:
    """A reservation of nodes ended, or was cancelled."""

    id: str


@dataclass(frozen=True, slots=True)
class PendingAdded:
    """A replica waits (again), or its request changed."""

    replica: PendingReplica
    now: float


@dataclass(frozen=True, slots=True)
class PendingRemoved:
    """A waiting replica was stopped or deleted without a start."""

    key: ReplicaKey


@dataclass(frozen=True, slots=True)
class LeaseTaken:
    """A replica has a lease, or the lease changed (time limit, request to end)."""

    replica: RunningReplica


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A running program has saved its state ``at`` seconds since the epoch."""

    key: ReplicaKey
    at: float


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """A replica's lease was released. ``ran_s``: its run time, if it ended by itself.

    ``at`` is the time; None: now.
    """

    key: ReplicaKey
    ran_s: float | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class PastUse:
    """The decayed usage of a user in a project from ended leases: thousandth-seconds as of ``at``.

    It initialises a new scheduler.
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
    | ReservationChanged
    | ReservationRemoved
    | PendingAdded
    | PendingRemoved
    | LeaseTaken
    | CheckpointSaved
    | LeaseReleased
    | PastUse
)


def decide(
    placer: Placer,
    demand: Demand,
    now: float,
    holds: Sequence[Hold] = (),
    settings: Settings = _DEFAULTS,
    *,
    whole: bool = False,
) -> Decisions:
    """Return the grants, evictions and holds at ``now`` (seconds since the epoch).

    ``holds`` are those of the last decisions. Everything is tried on the given cluster and ledger and reverted. The
    caller applies the decisions through the same events as any other change (``Scheduler`` does). Replicas whose
    back-off has ended join the queue. Evictions are decided in a cycle without grants, or in every second cycle. With
    ``whole``, one cycle does everything and ignores the previous one.
    """
    placer.cluster.pass_time(now)
    demand.wake(now)
    session = SchedulingSession(placer, demand, now, settings)
    starvation = Starvation(session, settings, stop_early=not (whole or demand.room_wanted))
    try:
        session.holds.apply(holds)
        evict_for_reservations(session)
        refresh_reservations(starvation)
        settle_holds(session)
        end_overruns(starvation)
        cut_short = allocate(starvation)
        granted = bool(session.outcome.grants) and session.others_wait()
        exhausted = False
        make_room_now = not cut_short and (whole or demand.room_wanted or not granted)
        if make_room_now:
            exhausted = _make_room(session)
            evict_for_time_slicing(session)
            consolidate(session)
        if not whole:
            demand.room_wanted = not make_room_now  # report grants first, evict in the next cycle
        evict_stale(session)
        evict_whole_gangs(session)
        return _decisions(session, more=cut_short or granted, exhausted=exhausted)
    finally:
        session.close()


def _make_room(session: SchedulingSession) -> bool:
    planner = EvictionPlanner(session)
    return serve_by_eviction(planner, (Reclaim(planner), Preemption(planner)))


_ACTIONS = Actions(_make_room, SimulatedQueue)


def _decisions(session: SchedulingSession, *, more: bool, exhausted: bool) -> Decisions:
    return Decisions(
        grants=tuple(session.outcome.grants),
        evictions=tuple(session.outcome.evictions),
        holds=tuple(active.hold for active in session.holds.active.values()),
        more=more,
        exhausted=exhausted,
        wake_at=_wake_at(session),
    )


def _wake_at(session: SchedulingSession) -> float | None:
    """Return the next time at which time alone can change the decisions; None if nothing waits."""
    times: list[float | None] = [session.demand.next_wake(), *session.outcome.running_wake_times]
    if session.others_wait():
        times += session.outcome.wake_times
    return min((t for t in times if t is not None and session.now < t < inf), default=None)


class Scheduler:
    """The cluster, queue, ledger and holds between events.

    ``decide`` applies its own decisions: a granted replica counts as running from then on (with a lease of epoch 0), an
    evicted one as releasing. The caller confirms a grant with ``LeaseTaken`` (the real lease), or reverts it with
    ``LeaseReleased`` and ``PendingAdded``.
    """

    def __init__(self, settings: Settings | None = None, past: PastRuns | None = None) -> None:
        """Create a scheduler; ``past`` contains known run times."""
        self.settings = settings or Settings()
        self.cluster = ClusterState(self.settings.topology)
        self.demand = Demand()
        self.demand.ledger.tune(self.settings.decay, self.settings.usage_weight)
        self.demand.ordering = Ordering(self.settings.order, self.settings.turn_s, past or PastRuns())
        self.demand.reservations = self.cluster.reservations
        self.placer = Placer(self.cluster)
        self.placer.scorer.placement = self.settings.placement
        self.holds: tuple[Hold, ...] = ()

    def apply_all(self, events: Iterable[Event]) -> None:
        """Apply each of the events."""
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:  # noqa: C901, PLR0912 - one line per kind of event
        """Apply an event. Events about unknown objects are ignored; the latest event counts."""
        match event:
            case NodeChanged(node):
                self.cluster.set_node(node)
                self.demand.distinguish_users(apart=serves_users(self.cluster.mode_default))
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
            case ReservationChanged(reservation):
                self.cluster.reservations.put(reservation)
                self._rebook()
            case ReservationRemoved(id_):
                self.cluster.reservations.remove(id_)
                self._rebook()
            case PendingAdded(replica, now):
                self._learn(replica.key, replica.request, replica.cpus)
                self.demand.add(replica, now)
            case PendingRemoved(key):
                self.demand.remove(key)
            case LeaseTaken(replica):
                self._start(replica)
            case CheckpointSaved(key, saved_at):
                self.demand.holders.saved(key, saved_at)
            case LeaseReleased(key, ran_s, at):
                self._note_run(key, ran_s)
                self.demand.finish(key, at)
                self.cluster.free(key)
            case PastUse(name, user_name, permille_s, as_of):
                account = self.demand.ledger.account(name, user_name, preemptible=True)
                self.demand.ledger.remember(account, permille_s, as_of)

    def decide(self, now: float) -> Decisions:
        """Run one cycle at ``now`` (seconds since the epoch) and apply its decisions."""
        decisions = decide(self.placer, self.demand, now, self.holds, self.settings)
        for grant in decisions.grants:
            self._start(self._granted(grant, now))
        for eviction in decisions.evictions:
            self.demand.leaves(eviction.key)
        self.holds = decisions.holds
        if not decisions.grants:
            self.demand.rotate(now, {hold.key for hold in self.holds})
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
        """Explain why a replica waits; None when it does not. ``history`` are past run times."""
        known = background or Background(history or {})
        state = self.placer, self.demand, self.holds
        return explain(*state, key, now, known, self.settings, actions=_ACTIONS, foretell=foretell)

    def plan(self, replicas: Sequence[PendingReplica], now: float, background: Background | None = None) -> Plan:
        """Return where and when replicas would start if they queued now. Nothing changes."""
        known, state = background or Background(), (self.placer, self.demand, self.holds)

        def decide_all() -> Decisions:
            return decide(self.placer, self.demand, now, self.holds, self.settings, whole=True)

        def explain_after(key: ReplicaKey, decided: Decisions) -> Explanation | None:
            return explain(*state, key, now, known, self.settings, decided, actions=_ACTIONS)

        self.cluster.pass_time(now)
        return plan(self.demand, replicas, now, decide_all, explain_after)

    def share_report(self, now: float) -> ShareReport:
        """Return shares, recent usage and the order of projects at ``now``. Nothing changes."""
        self.demand.wake(now)
        session = SchedulingSession(self.placer, self.demand, now, self.settings)
        try:
            return share_report(session)
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
        held = HeldAllocation(lease.node, lease.shares, cpu_milli, lease.memory_mib, lease.sharing, lease.user)
        if self.cluster.holdings.get(running.key) != held:
            self.cluster.take(running.key, held)

    def _learn(self, key: ReplicaKey, request: GpuRequest, cpus: float) -> None:
        """Record the request of each new replica for the demand profile."""
        if request.count and key not in self.demand.pending and key not in self.demand.running:
            self.placer.scorer.work.submitted(request, round(cpus * MILLI))

    def _rebook(self) -> None:
        self.cluster.mark_reserved()
        self.demand.rebuild()

    def _note_run(self, key: ReplicaKey, ran_s: float | None) -> None:
        running = self.demand.running.get(key)
        if running is not None and ran_s is not None:
            lease = running.lease
            self.demand.ordering.past.add(lease.project, lease.user, lease.permille, ran_s)

    def _granted(self, grant: Grant, now: float) -> RunningReplica:
        waited = self.demand.pending[grant.key]
        lease = GpuLease(
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
            checkpoint_s=waited.checkpoint_s,
        )
