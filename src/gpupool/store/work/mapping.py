"""Lossless conversion of domain values to rows and back.

Every ``*_row`` returns the columns of ``tables`` as a plain dictionary; every ``*_of`` is its inverse. Documents of
other versions are readable: a missing key takes the domain's default, an unknown one is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from sqlalchemy.engine import RowMapping

from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.work.workload import (
    GangRole,
    GpuLease,
    Replica,
    SuccessPolicy,
    Workload,
)
from gpupool.store.schema.columns import Columns, field_names, plain_text, shallow

# --- workloads ------------------------------------------------------------------------------------------------------

MAX_INTEGER = 1 << 53  # largest integer that all databases store exactly
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
    """Return the row of ``workloads``."""
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
    """Return the GPU thousandths of all replicas that may run together; None if they depend on the GPUs."""
    gpus = workload.gpus
    if workload.roles:
        return _asked_by_roles(workload)
    together = min(workload.completions, workload.parallelism)
    return None if gpus.memory_mib is not None else min(gpus.count * gpus.permille * together, MAX_INTEGER)


def _asked_by_roles(workload: Workload) -> int | None:
    asked = [(workload.gpus if role.gpus is None else role.gpus, role.replicas) for role in workload.roles]
    if any(gpus.memory_mib is not None for gpus, _ in asked):
        return None
    return min(sum(gpus.count * gpus.permille * replicas for gpus, replicas in asked), MAX_INTEGER)


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
    if workload.success_policy is not SuccessPolicy.ALL_WORKERS:
        document["success_policy"] = workload.success_policy.value
    if workload.roles:
        document["roles"] = [_role_document(role) for role in workload.roles]
    if workload.framework is not None:
        document["framework"] = workload.framework.value
        document["processes"] = workload.processes
    if workload.request_digest:
        document["request_digest"] = workload.request_digest
    if workload.wiring is not None:
        document["wiring"] = workload.wiring.to_dict()
    return document


def label_rows(workload: Workload) -> list[Columns]:
    """Return the rows of ``workload_labels``."""
    return [
        {"workload": workload.id, "label": plain_text(label), "value": plain_text(value)}
        for label, value in workload.labels.items()
    ]


def workload_of(row: RowMapping) -> Workload:
    """Build a workload from its row."""
    plain = {name: row[name] for name in (*_WORKLOAD_PLAIN, "kind", "state", "stop_reason")}
    return decode(Workload, row["spec"] | plain | {"user": row["user_name"], "after": row["dependencies"]})


def _role_document(role: GangRole) -> Columns:
    return _with_container(shallow(role) | {"gpus": role.gpus and shallow(role.gpus)})


def _with_container(document: Columns) -> Columns:
    nested = {name: asdict(value) for name in ("container", "serving") if (value := document.get(name)) is not None}
    return {**document, **nested} if nested else document


# --- replicas, leases -----------------------------------------------------------------------------------------------

_REPLICA_OTHERS = {"index", "state", "reason", "message", "next_reason", "notes", "guarantee", "metrics"}
_REPLICA_PLAIN = tuple(name for name in field_names(Replica) if name not in _REPLICA_OTHERS)


def replica_row(replica: Replica) -> Columns:
    """Return the row of ``replicas``."""
    row = {name: getattr(replica, name) for name in _REPLICA_PLAIN}
    row["replica_index"] = replica.index
    row["state"] = replica.state.value
    row["reason"] = replica.reason.value
    row["message"] = plain_text(replica.message)
    row["next_reason"] = replica.next_reason.value if replica.next_reason else None
    row["notes"] = list(replica.notes) or None
    row["metrics"] = dict(replica.metrics) or None
    row["guarantee"] = plain_text(replica.guarantee)
    return row


def replica_of(row: RowMapping) -> Replica:
    """Build a replica from its row."""
    metrics = sorted((row["metrics"] or {}).items())
    return decode(Replica, {**row, "index": row["replica_index"], "metrics": metrics})


_LEASE_PLAIN = tuple(name for name in field_names(GpuLease) if name not in {"index", "user", "shares", "compute"})


def lease_row(lease: GpuLease) -> Columns:
    """Return the row of ``leases``."""
    row = {name: getattr(lease, name) for name in _LEASE_PLAIN}
    row["replica_index"] = lease.index
    row["user_name"] = lease.user
    row["permille"] = lease.permille
    row["compute"] = lease.compute.value
    return row


def share_rows(lease: GpuLease) -> list[Columns]:
    """Return the rows of ``lease_shares``."""
    common = {"epoch": lease.epoch, "released_at": lease.released_at}
    return [{**shallow(share), **common, "position": position} for position, share in enumerate(lease.shares)]


def lease_of(row: RowMapping, shares: Sequence[GpuShare]) -> GpuLease:
    """Build a lease from its row and shares."""
    plain = {name: row[name] for name in _LEASE_PLAIN}
    return GpuLease(
        **plain,
        index=row["replica_index"],
        user=row["user_name"],
        shares=tuple(shares),
        compute=ComputePolicy(row["compute"]),
    )


def share_of(row: RowMapping) -> GpuShare:
    """Build a share from a row of ``lease_shares``."""
    return GpuShare(**{name: row[name] for name in field_names(GpuShare)})


# --- records on nodes -----------------------------------------------------------------------------------------------

_PARAMETERS = "own_parameters"


class Records:
    """Workloads as plain JSON on the nodes: the row of ``workloads``, readable by any newer release.

    Implements ``services.ports.WorkloadRecords``.
    """

    def to_record(self, workload: Workload, index: int) -> dict[str, Any]:
        """Return the record of one replica; of a sweep's parameters it contains only those of this replica."""
        record = workload_row(replace(workload, parameters=()))
        return record | ({_PARAMETERS: workload.parameters[index]} if workload.parameters else {})

    def from_record(self, record: dict[str, Any], index: int) -> Workload:
        """Rebuild the workload; raises ``GpupoolError(INVALID_FILE)`` when the record is not complete."""
        try:
            workload = workload_of(cast("RowMapping", record))
            if _PARAMETERS not in record:
                return workload
            own = dict(record[_PARAMETERS])
            each = tuple(own if at == index else {} for at in range(workload.completions))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GpupoolError(
                ErrorCode.INVALID_FILE,
                f"The node's record of a workload is not complete ({error!r}).",
                "Its program still runs; end it on its node if it is not needed.",
            ) from error
        return replace(workload, parameters=each)
