"""Reservations of nodes for users and projects, or for maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event
from gpupool.domain.nodes.gpu import GpuRequest, NodeState
from gpupool.domain.nodes.reservation import Candidate, Reservation, choose_nodes
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.units import format_duration
from gpupool.domain.work.workload import GpuLease
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.mirror import Draft
from gpupool.services.state.node_registry import NodeRegistry

MAX_RESERVATIONS = 1_000
LONGEST_S = 92 * 86400.0
FARTHEST_S = 366 * 86400.0
CHECK_INTERVAL_S = 1.0
MAX_NAMED = 5  # protected replicas named in a warning
ID_BITS = 40

log = structlog.get_logger("gpupool.reservations")


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A request for a reservation: either nodes by name, or a number of GPUs on whole nodes that the pool selects.

    ``models`` limits that selection to GPU models. ``lead_s`` is that of ``Reservation``.
    """

    name: str
    starts_at: float
    ends_at: float
    nodes: tuple[str, ...] = ()
    gpus: int | None = None
    models: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    maintenance: bool = False
    lead_s: float = 43_200.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class CreatedReservation:
    """A new reservation, the number of replicas to be evicted for it, and warnings about protected replicas."""

    reservation: Reservation
    evictions: int
    warnings: tuple[str, ...]


class ReservationService:
    """Creates, lists and cancels reservations, and removes those that are over."""

    def __init__(
        self, engine: Engine, nodes: NodeRegistry, identities: IdentityCache, permissions: Permissions
    ) -> None:
        self._engine = engine
        self._nodes = nodes
        self._identities = identities
        self._permissions = permissions
        self._begun: set[str] = set()  # reservations with a recorded event that they have begun

    @property
    def _now(self) -> float:
        return self._engine.ports.clock.now()

    def load(self, reservations: Sequence[Reservation]) -> None:
        """Load the stored reservations."""
        for reservation in reservations:
            self._engine.feed.reservation_changed(reservation)
            if reservation.starts_at <= self._now:
                self._begun.add(reservation.id)

    async def list_all(self) -> Sequence[Reservation]:
        """Return current and future reservations, sorted by start."""
        return sorted(self._engine.feed.reservations.values(), key=lambda b: (b.starts_at, b.id))

    def get(self, reservation_id: str) -> Reservation:
        """Return a current or future reservation; raises UNKNOWN_BOOKING."""
        reservation = self._engine.feed.reservations.get(reservation_id)
        if reservation is None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_BOOKING,
                f"There is no reservation '{reservation_id[:80]}'.",
                "See `gpupool reserve list`.",
            )
        return reservation

    async def make(self, actor: Actor, request: ReservationRequest) -> CreatedReservation:
        """Create a reservation, for administrators.

        Raises FORBIDDEN, INVALID_REQUEST, INVALID_DURATION, UNKNOWN_NODE, UNKNOWN_PROJECT, UNKNOWN_USER,
        ALREADY_BOOKED, NO_CAPACITY (not enough GPUs without a reservation), TOO_LARGE.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        self._check(request)

        async def write() -> CreatedReservation:
            reservation = self._to_reservation(actor, request)
            self._check_overlap(reservation)
            made = self._with_warnings(reservation)
            length = format_duration(reservation.ends_at - reservation.starts_at)
            what = f"reserved {', '.join(reservation.nodes)} for {length}: {reservation.name}"
            event = self._event(actor.user, "; ".join([what, *made.warnings]), reservation)
            await self._engine.ports.store.reservations.save(reservation, event)
            self._engine.feed.reservation_changed(reservation)
            return made

        made = await self._engine.run_exclusive(write)
        self._engine.work.set()
        return made

    async def cancel(self, actor: Actor, reservation_id: str) -> None:
        """Cancel a reservation, for administrators. Raises FORBIDDEN, UNKNOWN_BOOKING."""
        self._permissions.need_role(actor, Role.ADMIN)
        await self._remove(self.get(reservation_id), actor.user, "cancelled")

    async def run(self) -> None:
        """Check the reservations once a second, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.look()
            except GpupoolError as error:
                log.warning("could not check the reservations", code=error.code)

    async def look(self) -> None:
        """Remove reservations that are over, and write an event for each that has begun."""
        for reservation in list(self._engine.feed.reservations.values()):
            if reservation.ends_at <= self._now:
                await self._remove(reservation, "pool", "over")
            elif reservation.starts_at <= self._now and reservation.id not in self._begun:
                still = self._with_warnings(reservation).warnings
                event = self._event("pool", "; ".join([f"{reservation.name} begins", *still]), reservation)
                await self._engine.transact(partial(Draft.note, event=event))
                self._begun.add(reservation.id)

    async def _remove(self, reservation: Reservation, by: str, why: str) -> None:
        event = self._event(by, f"{reservation.name} is {why}", reservation)

        async def write() -> None:
            if reservation.id in self._engine.feed.reservations:
                await self._engine.ports.store.reservations.delete(reservation.id, event)
                self._engine.feed.reservation_removed(reservation.id)
                self._begun.discard(reservation.id)

        await self._engine.run_exclusive(write)
        self._engine.work.set()

    # Checks of a request

    def _check(self, request: ReservationRequest) -> None:
        if bool(request.nodes) == (request.gpus is not None):
            raise _invalid("A reservation needs node names or a number of GPUs.", "Give --nodes a,b or --gpus 8.")
        if request.maintenance == bool(request.projects or request.users):
            raise _invalid(
                "A reservation is for projects and users, or for maintenance.",
                "Give --project, --user, or --maintenance.",
            )
        for project in request.projects:
            self._identities.project(project)
        for user in request.users:
            self._identities.user(user)
        length, ahead = request.ends_at - request.starts_at, request.starts_at - self._now
        if not 0 < length <= LONGEST_S or request.ends_at <= self._now or ahead > FARTHEST_S:
            raise GpupoolError(
                ErrorCode.INVALID_DURATION,
                f"A reservation lasts up to {format_duration(LONGEST_S)}, starts within a year and ends in the future.",
                "Give another period.",
            )
        if len(self._engine.feed.reservations) >= MAX_RESERVATIONS:
            raise GpupoolError(
                ErrorCode.TOO_LARGE, f"There are {MAX_RESERVATIONS} reservations already.", "Cancel some reservations."
            )

    def _to_reservation(self, actor: Actor, request: ReservationRequest) -> Reservation:
        nodes = tuple(dict.fromkeys(self._nodes.get(name).name for name in request.nodes))
        return Reservation(
            id=f"b{self._engine.ports.random_bits(ID_BITS):010x}",
            name=request.name,
            nodes=nodes or self._select_nodes(request),
            starts_at=request.starts_at,
            ends_at=request.ends_at,
            projects=request.projects,
            users=request.users,
            lead_s=request.lead_s,
            created_by=actor.user,
            note=request.note,
        )

    def _check_overlap(self, reservation: Reservation) -> None:
        for other in self._engine.feed.reservations.values():
            if other.overlaps(reservation):
                node = min(set(other.nodes) & set(reservation.nodes))
                raise GpupoolError(
                    ErrorCode.ALREADY_BOOKED,
                    f"{node} is reserved for {other.name} ({other.id}) at that time.",
                    "Give another time or other nodes; see `gpupool reserve list`.",
                )

    # Selection of nodes, and leases that overlap

    def _select_nodes(self, request: ReservationRequest) -> tuple[str, ...]:
        wanted, asked = request.gpus or 0, GpuRequest(models=request.models)
        candidates = []
        for node in self._nodes.all():
            gpus = sum(node.accepts(gpu) and asked.accepts_model(gpu.model) for gpu in node.report.gpus)
            probe = Reservation("", "", (node.name,), request.starts_at, request.ends_at)
            taken = any(other.overlaps(probe) for other in self._engine.feed.reservations.values())
            if node.state is NodeState.UP and gpus and not taken:
                protected, preemptible = self._late_leases(node.name, request)
                candidates.append(Candidate(node.name, gpus, len(protected), len(preemptible)))
        chosen = choose_nodes(candidates, wanted)
        if chosen is None:
            have = sum(candidate.gpus for candidate in candidates)
            kind = f" of {' or '.join(request.models)}" if request.models else ""
            raise GpupoolError(
                ErrorCode.NO_CAPACITY,
                f"{have} GPUs{kind} are on nodes that are up and not reserved at that time; {wanted} are requested.",
                "Request fewer GPUs, or give another time.",
            )
        return tuple(sorted(candidate.node for candidate in chosen))

    def _late_leases(
        self, node: str, request: ReservationRequest | Reservation
    ) -> tuple[list[GpuLease], list[GpuLease]]:
        """Return the leases on a node that may last beyond the start: protected ones, and preemptible ones.

        Leases of users and projects that the reservation admits are left out.
        """
        protected: list[GpuLease] = []
        preemptible: list[GpuLease] = []
        for lease in self._engine.mirror.leases.values():
            workload = self._engine.mirror.workloads.get(lease.workload)
            admitted = lease.project in request.projects or lease.user in request.users
            if lease.node != node or workload is None or admitted:
                continue
            limit = workload.limits.max_time_s
            ends = workload.expires_at or (None if limit is None else lease.granted_at + limit)
            if ends is None or ends > request.starts_at:
                (preemptible if workload.preemptible else protected).append(lease)
        return protected, preemptible

    def _with_warnings(self, reservation: Reservation) -> CreatedReservation:
        ways = [self._late_leases(node, reservation) for node in reservation.nodes]
        protected = [lease for stay, _ in ways for lease in stay]
        names = [self._named(lease) for lease in protected[:MAX_NAMED]]
        more = f" and {len(protected) - MAX_NAMED} more" if len(protected) > MAX_NAMED else ""
        warning = f"protected workloads are not evicted for it and may still run: {', '.join(names)}{more}"
        return CreatedReservation(reservation, sum(len(go) for _, go in ways), (warning,) if protected else ())

    def _named(self, lease: GpuLease) -> str:
        return f"{self._engine.mirror.workloads[lease.workload].name} of {lease.user} on {lease.node}"

    def _event(self, by: str, what: str, reservation: Reservation) -> Event:
        return self._engine.change_event(by, what, f"reservation {reservation.id}")


def _invalid(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
