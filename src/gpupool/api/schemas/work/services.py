"""Services: servers with replicas and a stable address."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gpupool.api.schemas.base import Body, PageView, View
from gpupool.domain.work.service import MAX_REPLICAS, Access, ServiceState
from gpupool.domain.work.workload import ReplicaState

Count = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]


class ScaleBody(Body):
    """The number of replicas, from ``min`` to ``max``."""

    min: Count
    max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]


class UndoBody(Body):
    """The revision to change back to; null: the one before the present one."""

    revision: Annotated[int, Field(ge=1)] | None = None


class RevisionView(View):
    """A version of the program. ``command`` is null for those who may not see it."""

    number: int
    created_at: float
    created_by: str
    command: list[str] | None
    image: str | None


class ServiceReplicaView(View):
    """A replica: a workload. ``message`` is the reason why it is not ready; ``draining``: it gets no new requests."""

    workload: str
    name: str
    revision: int
    state: ReplicaState
    ready: bool
    draining: bool
    preemptible: bool
    node: str | None
    address: str | None
    started_at: float | None
    restarts: int
    message: str


class TokenUsageView(View):
    """The use of a service with one token; ``user`` is null for its own tokens and for requests without one.

    Bytes are those of bodies. ``request_s`` is the time of requests at replicas; ``gpu_hours`` is the part of the
    service's GPU time in proportion to it.
    """

    token: str
    user: str | None
    requests: int
    errors: int
    received_bytes: int
    sent_bytes: int
    request_s: float
    gpu_hours: float


class ServiceUsageView(View):
    """The use of a service since the start of the control plane; ``tokens`` is null for those who may not manage it.

    ``refused`` requests were answered with 503; they are part of ``errors``. ``gpu_hours`` are those of all replicas.
    """

    requests: int
    errors: int
    refused: int
    received_bytes: int
    sent_bytes: int
    gpu_hours: float
    tokens: list[TokenUsageView] | None


class ServiceView(View):
    """A service. ``desired`` replicas are wanted now, between ``min`` and ``max``; ``ready`` answer requests.

    ``revision`` serves; ``target`` differs from it during an update. ``failure`` is the reason why the last update
    ended without effect, ``problem`` the reason why no replica can be submitted, ``warnings`` are what its owner was
    warned of and lasts. ``in_flight`` and ``held`` are
    requests now, ``first_byte_ms`` the median and the 99th percentile of the last second with answers. ``path`` is
    that of its requests, ``url`` the whole address, null without a gateway. ``definition`` creates an equal service;
    null for those who may not manage it.
    """

    id: str
    name: str
    project: str
    user: str
    state: ServiceState
    created_at: float
    min: int
    max: int
    desired: int
    ready: int
    revision: int
    target: int
    failure: str
    problem: str
    warnings: list[str]
    access: Access
    models: list[str]
    hosts: list[str]
    tokens: int
    path: str
    url: str | None
    in_flight: int
    held: int
    first_byte_ms: list[float] | None
    usage: ServiceUsageView
    revisions: list[RevisionView]
    replicas: list[ServiceReplicaView]
    definition: dict[str, Any] | None


class ServiceList(PageView):
    """Services, by project and name."""

    services: list[ServiceView]


class ServiceTokenView(View):
    """A new token of a service; it is shown once."""

    secret: str
    service: ServiceView
