"""The view of a service."""

from __future__ import annotations

from gpupool.api.schemas.work.services import (
    RevisionView,
    ServiceReplicaView,
    ServiceUsageView,
    ServiceView,
    TokenUsageView,
)
from gpupool.domain.people.access import Actor
from gpupool.domain.work.service import Revision, Service
from gpupool.services.pool import PoolServices
from gpupool.services.serving.controller import ServiceReplica
from gpupool.services.serving.service import ServiceStatus
from gpupool.services.serving.usage import TokenShare


def service_view(services: PoolServices, caller: Actor, service: Service) -> ServiceView:
    """Return a service as a user may see it."""
    found = services.serving.view(service)
    row, load = found.service, found.status.load
    managed = services.serving.may_manage(caller, row)
    return ServiceView(
        id=row.id,
        name=row.name,
        project=row.project,
        user=row.user,
        state=found.state,
        created_at=row.created_at,
        min=row.scale.least,
        max=row.scale.most,
        desired=found.desired,
        ready=sum(each.view.ready and each.view.draining_s is None for each in found.replicas),
        revision=row.current,
        target=row.target,
        failure=row.failure,
        problem=found.status.problem,
        warnings=[each.message for each in found.status.problems.now],
        access=row.routing.access,
        models=list(row.routing.models),
        hosts=list(row.routing.hosts),
        tokens=len(row.routing.tokens),
        path=f"/s/{row.key}/",
        url=services.serving.url(row),
        in_flight=load.in_flight,
        held=load.held,
        first_byte_ms=None if load.first_byte_ms is None else list(load.first_byte_ms),
        usage=_usage_view(found, shown=managed),
        revisions=[_revision_view(each, shown=managed) for each in row.revisions],
        replicas=[_replica_view(each) for each in found.replicas],
        definition=services.serving.definition(row) if managed else None,
    )


def _usage_view(found: ServiceStatus, *, shown: bool) -> ServiceUsageView:
    return ServiceUsageView(
        requests=found.status.requests,
        errors=found.status.errors,
        refused=found.status.refusals,
        received_bytes=sum(each.use.received for each in found.usage),
        sent_bytes=sum(each.use.sent for each in found.usage),
        gpu_hours=found.status.gpu_s / 3600,
        tokens=[_token_view(each) for each in found.usage] if shown else None,
    )


def _token_view(each: TokenShare) -> TokenUsageView:
    return TokenUsageView(
        token=each.token,
        user=each.user or None,
        requests=each.use.requests,
        errors=each.use.errors,
        received_bytes=each.use.received,
        sent_bytes=each.use.sent,
        request_s=each.use.busy_s,
        gpu_hours=each.gpu_s / 3600,
    )


def _revision_view(revision: Revision, *, shown: bool) -> RevisionView:
    body = revision.body
    return RevisionView(
        number=revision.number,
        created_at=revision.created_at,
        created_by=revision.created_by,
        command=list(body.get("command", ())) if shown else None,
        image=body.get("image") if shown else None,
    )


def _replica_view(each: ServiceReplica) -> ServiceReplicaView:
    checks = each.readiness
    message = checks.message if checks is not None and not checks.ready else ""
    if not each.view.started:
        message = f"{each.replica.message or 'waits for GPUs'}; see `gpupool why {each.workload.name}`"
    return ServiceReplicaView(
        workload=each.workload.id,
        name=each.workload.name,
        revision=each.view.revision,
        state=each.replica.state,
        ready=each.view.ready,
        draining=each.view.draining_s is not None,
        preemptible=each.workload.preemptible,
        node=each.replica.node,
        address=None if each.seat is None else each.seat.endpoint,
        started_at=each.replica.started_at,
        restarts=max(0, each.replica.attempt - 1),
        message=message or (each.replica.message if each.seat is None else ""),
    )
