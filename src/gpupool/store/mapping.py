"""Values of the domain to rows and back, without loss.

Every ``*_row`` gives the columns of ``tables`` as a plain dictionary; every ``*_of`` is its inverse. Documents keep
unknown keys harmless in both directions: a missing one takes the domain's default, a strange one is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from sqlalchemy.engine import RowMapping

from gpupool.domain.access import Project, ProjectRules, Role, Token, User
from gpupool.domain.gang import Gang
from gpupool.domain.gpu import (
    ComputePolicy,
    ForeignProcess,
    Gpu,
    GpuHealth,
    GpuRequest,
    GpuShare,
    Node,
    NodeReport,
    NodeState,
    Placement,
    Sharing,
)
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.supervision import Stdio
from gpupool.domain.workload import (
    Dependency,
    Event,
    Lease,
    Limits,
    Program,
    Reason,
    Replica,
    ReplicaState,
    RestartPolicy,
    Retry,
    Workload,
    WorkloadKind,
    WorkloadState,
)

Columns = dict[str, Any]
T = TypeVar("T")

_FIELDS: dict[type, tuple[str, ...]] = {}


def _shallow(value: Any) -> Columns:
    """The fields of a slotted dataclass; ``asdict`` would copy deeply, at fifty times the cost."""
    return {name: getattr(value, name) for name in _field_names(type(value))}


def _field_names(cls: type) -> tuple[str, ...]:
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple(f.name for f in fields(cls))
    return _FIELDS[cls]


def _build(cls: type[T], document: Columns, **read: Any) -> T:
    known = {name: document[name] for name in _field_names(cls) if name in document}
    return cls(**{**known, **read})


def plain_text(text: str) -> str:
    """The text with what no database takes (half of a surrogate pair, NUL) replaced: for sentences, not for names."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# --- workloads ------------------------------------------------------------------------------------------------------

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
    row["dependencies"] = [_shallow(dependency) for dependency in workload.after] or None
    row["spec"] = _spec_document(workload)
    return row


def _spec_document(workload: Workload) -> Columns:
    document = {name: getattr(workload, name) for name in _SPEC_PLAIN}
    document["compute"] = workload.compute.value
    document["program"] = _shallow(workload.program)
    document["gpus"] = _shallow(workload.gpus)
    document["limits"] = _shallow(workload.limits)
    document["retry"] = _shallow(workload.retry)
    if workload.gang is not None:
        document["gang"] = _shallow(workload.gang)
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
        after=tuple(_build(Dependency, d) for d in row["dependencies"] or ()),
        program=_program(spec["program"]),
        gpus=_gpu_request(spec["gpus"]),
        limits=_build(Limits, spec.get("limits", {})),
        retry=_retry(spec.get("retry", {})),
        compute=ComputePolicy(spec.get("compute", ComputePolicy.GUARANTEE)),
        gang=_build(Gang, spec["gang"]) if "gang" in spec else None,
    )


def _program(document: Columns) -> Program:
    stdio = Stdio(document.get("stdio", Stdio.BATCH))
    return _build(Program, document, argv=tuple(document["argv"]), stdio=stdio)


def _gpu_request(document: Columns) -> GpuRequest:
    models = tuple(document.get("models", ()))
    labels = tuple((label, value) for label, value in document.get("labels", ()))
    sharing, placement = _sharing(document.get("sharing")), document.get("placement")
    placed = None if placement is None else Placement(placement)
    return _build(GpuRequest, document, models=models, labels=labels, sharing=sharing, placement=placed)


def _sharing(text: str | None) -> Sharing | None:
    return None if text is None else Sharing(text)


def _retry(document: Columns) -> Retry:
    return _build(Retry, document, policy=RestartPolicy(document.get("policy", RestartPolicy.NEVER)))


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
    return [{**_shallow(share), **common, "position": position} for position, share in enumerate(lease.shares)]


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


def epoch_of(value: int | None) -> Epoch:
    """The epoch of a possibly empty aggregate; 0 is before the first lease."""
    return Epoch(value or 0)


# --- projects, users, tokens, nodes ---------------------------------------------------------------------------------


def project_row(project: Project) -> Columns:
    """The row of ``projects``."""
    row = _shallow(project)
    row["members"] = list(project.members)
    row["note"] = plain_text(project.note)
    for name in ("compute_allowed", "sharing_allowed"):
        row[name] = list(row[name])
    row["model_quotas"] = [list(pair) for pair in project.model_quotas]
    row["rules"] = _shallow(project.rules)
    return row


def project_of(row: RowMapping) -> Project:
    """The inverse of ``project_row``."""
    compute, sharing = row["compute_default"], row["sharing_default"]
    read = {
        "members": tuple(row["members"]),
        "compute_default": None if compute is None else ComputePolicy(compute),
        "compute_allowed": tuple(map(ComputePolicy, row["compute_allowed"])),
        "sharing_default": _sharing(sharing),
        "sharing_allowed": tuple(map(Sharing, row["sharing_allowed"])),
        "model_quotas": tuple((model, permille) for model, permille in row["model_quotas"]),
        "rules": _rules(row["rules"]),
    }
    return Project(**{**row, **read})


def _rules(document: Columns) -> ProjectRules:
    lists = {name: tuple(document.get(name, ())) for name in ("windows", "node_pools")}
    return _build(ProjectRules, document, **lists)


def user_row(user: User) -> Columns:
    """The row of ``users``."""
    return {**_shallow(user), "role": user.role.value}


def user_of(row: RowMapping) -> User:
    """The inverse of ``user_row``."""
    return User(**{**row, "role": Role(row["role"])})


def token_row(token: Token) -> Columns:
    """The row of ``tokens``."""
    row = _shallow(token)
    row["user_name"] = row.pop("user")
    row["role"] = token.role.value
    row["note"] = plain_text(token.note)
    return row


def token_of(row: RowMapping) -> Token:
    """The inverse of ``token_row``."""
    columns = {**row, "role": Role(row["role"])}
    return Token(user=columns.pop("user_name"), **columns)


def node_row(node: Node) -> Columns:
    """The row of ``nodes``."""
    return {
        "name": node.name,
        "state": node.state.value,
        "cordon_reason": plain_text(node.cordon_reason),
        "report": asdict(node.report),
        "sharing": dict(node.sharing),
        "labels": dict(node.labels),
    }


def node_of(row: RowMapping) -> Node:
    """The inverse of ``node_row``."""
    return Node(
        report=_report(row["report"]),
        state=NodeState(row["state"]),
        cordon_reason=row["cordon_reason"],
        sharing={gpu: Sharing(mode) for gpu, mode in row["sharing"].items()},
        labels=dict(row["labels"]),
    )


def _report(document: Columns) -> NodeReport:
    gpus = tuple(_gpu(gpu) for gpu in document["gpus"])
    lists = {name: tuple(document.get(name, ())) for name in ("warnings", "sharing")}
    return _build(NodeReport, document, gpus=gpus, **lists)


def _gpu(document: Columns) -> Gpu:
    return _build(
        Gpu,
        document,
        health=GpuHealth(document.get("health", GpuHealth.OK)),
        links={int(peer): link for peer, link in document.get("links", {}).items()},
        foreign=tuple(_build(ForeignProcess, process) for process in document.get("foreign", ())),
    )
