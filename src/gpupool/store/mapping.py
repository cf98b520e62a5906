"""Values of the domain to rows and back, without loss.

Every ``*_row`` gives the columns of ``tables`` as a plain dictionary; every ``*_of`` is its inverse. Documents keep
unknown keys harmless in both directions: a missing one takes the domain's default, a strange one is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy.engine import RowMapping

from gpupool.domain.container import ContainerSpec
from gpupool.domain.events import Event, Reason
from gpupool.domain.gang import Gang
from gpupool.domain.gpu import (
    ComputePolicy,
    GpuRequest,
    GpuShare,
    Placement,
    Sharing,
)
from gpupool.domain.ids import WorkloadId
from gpupool.domain.supervision import Stdio
from gpupool.domain.wiring import Wiring
from gpupool.domain.workload import (
    Dependency,
    Framework,
    Lease,
    Limits,
    OnMemberEnd,
    Program,
    Replica,
    ReplicaState,
    RestartPolicy,
    Retry,
    Role,
    Workload,
    WorkloadKind,
    WorkloadState,
)
from gpupool.store.columns import Columns, build, plain_text, shallow

# --- workloads ------------------------------------------------------------------------------------------------------

MOST_ASKED = 1 << 53  # of a database's integers
_SPEC_PLAIN = ("uid", "preemptible", "completions", "parallelism", "on", "on_index", "labels", "windows", "parameters")
_WORKLOAD_PLAIN = (
    "id",
    "name",
    "project",
    "priority",
    "suspended",
    "request_id",
    "created_at",
    "expires_at",
    "started_at",
    "finished_at",
    "deleted_at",
    "version",
)


def workload_row(workload: Workload) -> Columns:
    """The row of ``workloads``."""
    row = {name: getattr(workload, name) for name in _WORKLOAD_PLAIN}
    row["kind"] = workload.kind.value
    row["user_name"] = workload.user
    row["state"] = workload.state.value
    row["stop_reason"] = workload.stop_reason.value if workload.stop_reason else None
    row["dependencies"] = [shallow(dependency) for dependency in workload.after] or None
    row["spec"] = _spec_document(workload)
    row["asked_permille"] = _asked_permille(workload)
    return row


def _asked_permille(workload: Workload) -> int | None:
    """Thousandths of GPUs that its replicas hold when as many run as may; None where that depends on the GPUs."""
    gpus = workload.gpus
    if workload.roles:
        return _asked_by_roles(workload)
    together = min(workload.completions, workload.parallelism)
    return None if gpus.memory_mib is not None else min(gpus.count * gpus.permille * together, MOST_ASKED)


def _asked_by_roles(workload: Workload) -> int | None:
    asked = [(workload.gpus if role.gpus is None else role.gpus, role.replicas) for role in workload.roles]
    if any(gpus.memory_mib is not None for gpus, _ in asked):
        return None
    return min(sum(gpus.count * gpus.permille * replicas for gpus, replicas in asked), MOST_ASKED)


def _spec_document(workload: Workload) -> Columns:
    document = {name: getattr(workload, name) for name in _SPEC_PLAIN}
    document["compute"] = workload.compute.value
    document["program"] = _with_container(shallow(workload.program))
    document["gpus"] = shallow(workload.gpus)
    document["limits"] = shallow(workload.limits)
    document["retry"] = shallow(workload.retry)
    if workload.gang is not None:
        document["gang"] = shallow(workload.gang)
        document["on_member_end"] = workload.on_member_end.value
    if workload.roles:
        document["roles"] = [_role_document(role) for role in workload.roles]
    if workload.framework is not None:
        document["framework"] = workload.framework.value
        document["processes"] = workload.processes
    if workload.wiring is not None:
        document["wiring"] = workload.wiring.to_dict()
    return document


def label_rows(workload: Workload) -> list[Columns]:
    """The rows of ``workload_labels``."""
    return [
        {"workload": workload.id, "label": plain_text(label), "value": plain_text(value)}
        for label, value in workload.labels.items()
    ]


def workload_of(row: RowMapping) -> Workload:
    """The inverse of ``workload_row``."""
    spec = row["spec"]
    return Workload(
        **{name: row[name] for name in _WORKLOAD_PLAIN},
        **{name: spec[name] for name in _SPEC_PLAIN[:-2] if name in spec},
        windows=tuple(spec.get("windows", ())),
        parameters=tuple(spec.get("parameters", ())),
        kind=WorkloadKind(row["kind"]),
        user=row["user_name"],
        state=WorkloadState(row["state"]),
        stop_reason=_reason(row["stop_reason"]),
        after=tuple(build(Dependency, d) for d in row["dependencies"] or ()),
        program=_program(spec["program"]),
        gpus=_gpu_request(spec["gpus"]),
        limits=build(Limits, spec.get("limits", {})),
        retry=_retry(spec.get("retry", {})),
        compute=ComputePolicy(spec.get("compute", ComputePolicy.GUARANTEE)),
        gang=build(Gang, spec["gang"]) if "gang" in spec else None,
        roles=tuple(_role(role) for role in spec.get("roles", ())),
        framework=Framework(spec["framework"]) if "framework" in spec else None,
        on_member_end=OnMemberEnd(spec.get("on_member_end", OnMemberEnd.CONTINUE)),
        processes=spec.get("processes", 0),
        wiring=Wiring.from_dict(spec["wiring"]) if "wiring" in spec else None,
    )


def _role(document: Columns) -> Role:
    argv, gpus, restart = document.get("argv"), document.get("gpus"), document.get("restart")
    return build(
        Role,
        document,
        argv=None if argv is None else tuple(argv),
        gpus=None if gpus is None else _gpu_request(gpus),
        restart=None if restart is None else RestartPolicy(restart),
        container=_container(document),
    )


def _program(document: Columns) -> Program:
    stdio = Stdio(document.get("stdio", Stdio.BATCH))
    return build(Program, document, argv=tuple(document["argv"]), stdio=stdio, container=_container(document))


def _role_document(role: Role) -> Columns:
    return _with_container(shallow(role) | {"gpus": role.gpus and shallow(role.gpus)})


def _with_container(document: Columns) -> Columns:
    container = document.get("container")
    return document if container is None else {**document, "container": asdict(container)}


def _container(document: Columns) -> ContainerSpec | None:
    container = document.get("container")
    return None if container is None else ContainerSpec.from_dict(container)


def _gpu_request(document: Columns) -> GpuRequest:
    models = tuple(document.get("models", ()))
    labels = tuple((label, value) for label, value in document.get("labels", ()))
    sharing, placement = _sharing(document.get("sharing")), document.get("placement")
    placed = None if placement is None else Placement(placement)
    return build(GpuRequest, document, models=models, labels=labels, sharing=sharing, placement=placed)


def _sharing(text: str | None) -> Sharing | None:
    return None if text is None else Sharing(text)


def _retry(document: Columns) -> Retry:
    return build(Retry, document, policy=RestartPolicy(document.get("policy", RestartPolicy.NEVER)))


def _reason(text: str | None) -> Reason | None:
    return None if text is None else Reason(text)


# --- replicas, leases, events ---------------------------------------------------------------------------------------

_REPLICA_PLAIN = (
    "workload",
    "attempt",
    "node",
    "lease",
    "pid",
    "exit_status",
    "failures",
    "interruptions",
    "queued_at",
    "not_before",
    "started_at",
    "finished_at",
    "last_active_at",
    "idle_warned",
    "version",
    "sharing",
)


def replica_row(replica: Replica) -> Columns:
    """The row of ``replicas``."""
    row = {name: getattr(replica, name) for name in _REPLICA_PLAIN}
    row["replica_index"] = replica.index
    row["state"] = replica.state.value
    row["reason"] = replica.reason.value
    row["message"] = plain_text(replica.message)
    row["next_reason"] = replica.next_reason.value if replica.next_reason else None
    row["notes"] = list(replica.notes) or None
    row["guarantee"] = plain_text(replica.guarantee)
    return row


def replica_of(row: RowMapping) -> Replica:
    """The inverse of ``replica_row``."""
    return Replica(
        **{name: row[name] for name in _REPLICA_PLAIN},
        index=row["replica_index"],
        state=ReplicaState(row["state"]),
        reason=Reason(row["reason"]),
        message=row["message"],
        next_reason=_reason(row["next_reason"]),
        notes=tuple(row["notes"] or ()),
        guarantee=row["guarantee"],
    )


_LEASE_PLAIN = (
    "epoch",
    "workload",
    "attempt",
    "project",
    "node",
    "cpus",
    "memory_mib",
    "granted_at",
    "released_at",
    "sharing",
    "fence_after_s",
)
_SHARE_PLAIN = ("gpu_uuid", "gpu_index", "permille", "memory_mib")


def lease_row(lease: Lease) -> Columns:
    """The row of ``leases``."""
    row = {name: getattr(lease, name) for name in _LEASE_PLAIN}
    row["replica_index"] = lease.index
    row["user_name"] = lease.user
    row["permille"] = lease.permille
    row["compute"] = lease.compute.value
    return row


def share_rows(lease: Lease) -> list[Columns]:
    """The rows of ``lease_shares``."""
    common = {"epoch": lease.epoch, "released_at": lease.released_at}
    return [{**shallow(share), **common, "position": position} for position, share in enumerate(lease.shares)]


def lease_of(row: RowMapping, shares: Sequence[GpuShare]) -> Lease:
    """The inverse of ``lease_row`` and ``share_rows``."""
    plain = {name: row[name] for name in _LEASE_PLAIN}
    return Lease(
        **plain,
        index=row["replica_index"],
        user=row["user_name"],
        shares=tuple(shares),
        compute=ComputePolicy(row["compute"]),
    )


def share_of(row: RowMapping) -> GpuShare:
    """One share of a row of ``lease_shares``."""
    return GpuShare(**{name: row[name] for name in _SHARE_PLAIN})


def event_row(event: Event) -> Columns:
    """The row of ``events``; the database gives the id."""
    return {
        "at": event.at,
        "actor": plain_text(event.actor),
        "reason": event.reason.value,
        "message": plain_text(event.message),
        "workload": event.workload,
        "replica_index": event.index,
        "target": plain_text(event.target),
    }


def event_of(row: RowMapping) -> Event:
    """The inverse of ``event_row``, with the id."""
    workload = row["workload"]
    return Event(
        id=row["id"],
        at=row["at"],
        actor=row["actor"],
        reason=Reason(row["reason"]),
        message=row["message"],
        workload=None if workload is None else WorkloadId(workload),
        index=row["replica_index"],
        target=row["target"],
    )
