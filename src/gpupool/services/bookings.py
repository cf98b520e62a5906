"""Reservations of nodes: for a class on Monday at nine, or for maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from gpupool.domain.access import Actor, Role
from gpupool.domain.booking import Booking, Candidate, choose_nodes
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.gpu import GpuRequest, NodeState
from gpupool.domain.units import format_duration
from gpupool.domain.workload import Lease
from gpupool.services.engine import Engine
from gpupool.services.mirror import Draft
from gpupool.services.nodebook import NodeBook
from gpupool.services.permissions import Permissions
from gpupool.services.register import Register

MOST_BOOKINGS = 1_000
LONGEST_S = 92 * 86400.0
FARTHEST_S = 366 * 86400.0
LOOK_EVERY_S = 1.0
MOST_NAMED = 5  # of those who are in the way
ID_BITS = 40

log = structlog.get_logger("gpupool.bookings")


@dataclass(frozen=True, slots=True)
class BookingRequest:
    """What is asked for: nodes by name, or a number of GPUs (of models) on whole nodes that the pool picks."""

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
class Booked:
    """A booking that was made, with what is in its way: replicas that will be evicted, and sentences of warning."""

    booking: Booking
    evictions: int
    warnings: tuple[str, ...]


class BookingService:
    """Makes, lists and cancels them, and ends those whose time is over."""

    def __init__(self, engine: Engine, book: NodeBook, register: Register, permissions: Permissions) -> None:
        self._engine = engine
        self._book = book
        self._register = register
        self._permissions = permissions
        self._begun: set[str] = set()  # of those said that they have begun

    @property
    def _now(self) -> float:
        return self._engine.ports.clock.now()

    def load(self, bookings: Sequence[Booking]) -> None:
        """Take over what the store holds."""
        for booking in bookings:
            self._engine.demand.booking_changed(booking)
            if booking.starts_at <= self._now:
                self._begun.add(booking.id)

    async def bookings(self) -> Sequence[Booking]:
        """Those that hold or are to come, in the order in which they begin."""
        return sorted(self._engine.demand.bookings.values(), key=lambda b: (b.starts_at, b.id))

    async def make(self, actor: Actor, request: BookingRequest) -> Booked:
        """Book nodes. For administrators.

        Raises INVALID_REQUEST, INVALID_DURATION, UNKNOWN_NODE, UNKNOWN_PROJECT, UNKNOWN_USER, ALREADY_BOOKED,
        NO_CAPACITY (not enough GPUs that are not booked), TOO_LARGE.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        self._check(request)

        async def write() -> Booked:
            booking = self._settled(actor, request)
            self._check_overlap(booking)
            made = self._judged(booking)
            length = format_duration(booking.ends_at - booking.starts_at)
            what = f"booked {', '.join(booking.nodes)} for {length}: {booking.name}"
            event = self._event(actor.user, "; ".join([what, *made.warnings]), booking)
            await self._engine.ports.store.save_booking(booking, event)
            self._engine.demand.booking_changed(booking)
            return made

        made = await self._engine.alone(write)
        self._engine.work.set()
        return made

    async def cancel(self, actor: Actor, booking_id: str) -> None:
        """Take a booking back. For administrators; raises UNKNOWN_BOOKING."""
        self._permissions.need_role(actor, Role.ADMIN)
        booking = self._engine.demand.bookings.get(booking_id)
        if booking is None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_BOOKING,
                f"There is no reservation '{booking_id[:80]}'.",
                "See `gpupool reserve list`.",
            )
        await self._remove(booking, actor.user, "cancelled")

    async def run(self) -> None:
        """For ever: say when one begins, and end those whose time is over."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except GpupoolError as error:
                log.warning("could not end a booking", code=error.code)

    async def look(self) -> None:
        """Once."""
        for booking in list(self._engine.demand.bookings.values()):
            if booking.ends_at <= self._now:
                await self._remove(booking, "pool", "over")
            elif booking.starts_at <= self._now and booking.id not in self._begun:
                self._begun.add(booking.id)
                still = self._judged(booking).warnings
                event = self._event("pool", "; ".join([f"{booking.name} begins", *still]), booking)
                await self._engine.transact(partial(Draft.note, event=event))

    async def _remove(self, booking: Booking, by: str, why: str) -> None:
        event = self._event(by, f"{booking.name} is {why}", booking)

        async def write() -> None:
            if booking.id in self._engine.demand.bookings:
                await self._engine.ports.store.delete_booking(booking.id, event)
                self._engine.demand.booking_removed(booking.id)
                self._begun.discard(booking.id)

        await self._engine.alone(write)
        self._engine.work.set()

    # What is asked for

    def _check(self, request: BookingRequest) -> None:
        if bool(request.nodes) == (request.gpus is not None):
            raise _invalid("Nodes are named, or a number of GPUs is.", "Give --nodes a,b or --gpus 8.")
        if request.maintenance == bool(request.projects or request.users):
            raise _invalid(
                "A reservation is for projects and users, or for maintenance.",
                "Give --project, --user, or --maintenance.",
            )
        for project in request.projects:
            self._register.project(project)
        for user in request.users:
            self._register.user(user)
        length, ahead = request.ends_at - request.starts_at, request.starts_at - self._now
        if not 0 < length <= LONGEST_S or request.ends_at <= self._now or ahead > FARTHEST_S:
            raise GpupoolError(
                ErrorCode.INVALID_DURATION,
                f"A reservation lasts up to {format_duration(LONGEST_S)}, begins within a year and ends in the future.",
                "Give other times.",
            )
        if len(self._engine.demand.bookings) >= MOST_BOOKINGS:
            raise GpupoolError(
                ErrorCode.TOO_LARGE, f"There are {MOST_BOOKINGS} reservations already.", "Cancel some of them."
            )

    def _settled(self, actor: Actor, request: BookingRequest) -> Booking:
        nodes = tuple(dict.fromkeys(self._book.get(name).name for name in request.nodes))
        return Booking(
            id=f"b{self._engine.ports.random_bits(ID_BITS):010x}",
            name=request.name,
            nodes=nodes or self._picked(request),
            starts_at=request.starts_at,
            ends_at=request.ends_at,
            projects=request.projects,
            users=request.users,
            lead_s=request.lead_s,
            created_by=actor.user,
            note=request.note,
        )

    def _check_overlap(self, booking: Booking) -> None:
        for other in self._engine.demand.bookings.values():
            if other.overlaps(booking):
                node = min(set(other.nodes) & set(booking.nodes))
                raise GpupoolError(
                    ErrorCode.ALREADY_BOOKED,
                    f"{node} is booked for {other.name} ({other.id}) at that time.",
                    "Give another time or other nodes; see `gpupool reserve list`.",
                )

    # Which nodes, and who is in the way

    def _picked(self, request: BookingRequest) -> tuple[str, ...]:
        wanted, asked = request.gpus or 0, GpuRequest(models=request.models)
        candidates = []
        for node in self._book.all():
            gpus = sum(gpu.available and asked.accepts_model(gpu.model) for gpu in node.report.gpus)
            probe = Booking("", "", (node.name,), request.starts_at, request.ends_at)
            taken = any(other.overlaps(probe) for other in self._engine.demand.bookings.values())
            if node.state is NodeState.UP and gpus and not taken:
                protected, preemptible = self._in_the_way(node.name, request)
                candidates.append(Candidate(node.name, gpus, len(protected), len(preemptible)))
        chosen = choose_nodes(candidates, wanted)
        if chosen is None:
            have = sum(candidate.gpus for candidate in candidates)
            kind = f" of {' or '.join(request.models)}" if request.models else ""
            raise GpupoolError(
                ErrorCode.NO_CAPACITY,
                f"{have} GPUs{kind} are on nodes that work and are not booked at that time; {wanted} are asked for.",
                "Ask for fewer, or give another time.",
            )
        return tuple(sorted(candidate.node for candidate in chosen))

    def _in_the_way(self, node: str, request: BookingRequest | Booking) -> tuple[list[Lease], list[Lease]]:
        """Leases of others on a node that may be held still when a booking begins: protected ones, and others."""
        protected: list[Lease] = []
        preemptible: list[Lease] = []
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

    def _judged(self, booking: Booking) -> Booked:
        ways = [self._in_the_way(node, booking) for node in booking.nodes]
        protected = [lease for stay, _ in ways for lease in stay]
        names = [self._named(lease) for lease in protected[:MOST_NAMED]]
        more = f" and {len(protected) - MOST_NAMED} more" if len(protected) > MOST_NAMED else ""
        warning = f"protected work is not ended for it and may still run: {', '.join(names)}{more}"
        return Booked(booking, sum(len(go) for _, go in ways), (warning,) if protected else ())

    def _named(self, lease: Lease) -> str:
        return f"{self._engine.mirror.workloads[lease.workload].name} of {lease.user} on {lease.node}"

    def _event(self, by: str, what: str, booking: Booking) -> Event:
        return Event(self._now, by, Reason.CHANGED, what, target=f"reservation {booking.id}")


def _invalid(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
