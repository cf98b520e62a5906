"""Reservations of nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from gpupool.api.schemas import name_patterns
from gpupool.api.schemas.base import Body, PageView, View
from gpupool.api.schemas.bodies import Name, Note

Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
NodeName = Annotated[str, StringConstraints(pattern=name_patterns.NODE_NAME)]
Title = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00-\x1f\x7f]+$")]


class ReservationBody(Body):
    """A reservation of nodes between two times, for projects and users, or (``maintenance``) for nobody.

    ``nodes`` by name, or ``gpus`` (of ``models``) on whole nodes that the pool selects. From ``lead_s`` before the
    start, no protected work without a time limit is placed there.
    """

    name: Title
    starts_at: Moment
    ends_at: Moment
    nodes: Annotated[list[NodeName], Field(max_length=10_000, default_factory=list)]
    gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    models: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=100)]],
        Field(max_length=64, default_factory=list),
    ]
    projects: Annotated[list[Name], Field(max_length=100, default_factory=list)]
    users: Annotated[list[Name], Field(max_length=1000, default_factory=list)]
    maintenance: bool = False
    lead_s: Annotated[float, Field(ge=0, le=92 * 86400, allow_inf_nan=False)] = 43_200.0
    note: Note = ""


class ReservationView(View):
    """A reservation; without projects and users it is for maintenance. ``holds``: it has begun."""

    id: str
    name: str
    nodes: list[str]
    starts_at: float
    ends_at: float
    projects: list[str]
    users: list[str]
    lead_s: float
    created_by: str
    note: str
    holds: bool


class NewReservationView(ReservationView):
    """A new reservation, with the number of replicas that it would evict now, and warnings."""

    evictions: int
    warnings: list[str]


class ReservationList(PageView):
    """Active and planned reservations, in the order of their start."""

    bookings: list[ReservationView]
