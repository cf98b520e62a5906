"""Records of workloads on nodes, from which a database that has lost a program can adopt it.

The record is sent in ``ProcessSpec.record`` and stored in the program's folder on the node, readable only by the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import Epoch, WorkloadId, split_attempt_key
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.domain.work.workload import LAZY_GPUS, GpuLease, Replica, Workload, WorkloadKind
from gpupool.services.ports.store import WorkloadRecords

_POOL, _WORKLOAD, _HOST, _LEASE, _REPLICA = "pool_id", "workload", "host", "lease", "replica"
_KEPT_OF_LEASE = ("index", "attempt", "cpus", "memory_mib", "granted_at")
_KEPT_OF_REPLICA = ("failures", "interruptions", "queued_at")


@dataclass(frozen=True, slots=True)
class AdoptionRecord:
    """A parsed record: the workload, the state of its replica, and its lease.

    ``host`` is the workload that holds the lease if the program is an EXEC, else None. ``gpu_lease`` is that of the
    GPUs that a lazy program has got; its ``lease`` has none then.
    """

    workload: Workload
    index: int
    attempt: int
    replica: dict[str, Any]
    host: Workload | None
    lease: GpuLease
    gpu_lease: GpuLease | None = None

    def granted_after(self, at: float) -> AdoptionRecord:
        """Return the record with no lease that was granted before a time."""
        lease, gpus = replace(self.lease, granted_at=max(self.lease.granted_at, at)), self.gpu_lease
        return replace(self, lease=lease, gpu_lease=gpus and replace(gpus, granted_at=lease.granted_at))


def write_record(
    records: WorkloadRecords,
    pool_id: str,
    workload: Workload,
    replica: Replica,
    lease: GpuLease | None,
    host: Workload | None,
) -> dict[str, Any]:
    """Return the record of a program that will start."""
    record: dict[str, Any] = {_POOL: pool_id, _WORKLOAD: records.to_record(workload, replica.index)}
    record[_REPLICA] = {name: getattr(replica, name) for name in _KEPT_OF_REPLICA}
    if host is not None:
        record[_HOST] = records.to_record(host, workload.on_index)
    if lease is not None:
        record[_LEASE] = {name: getattr(lease, name) for name in _KEPT_OF_LEASE}
    return record


def pool_of(spec: ProcessSpec) -> str:
    """Return the id of the pool that started a program; empty without a record."""
    return str(spec.record.get(_POOL, ""))


def runs_on_another(spec: ProcessSpec) -> bool:
    """Return True if a program uses the GPUs of another workload."""
    return _HOST in spec.record


def read_record(records: WorkloadRecords, spec: ProcessSpec, node: str) -> AdoptionRecord:
    """Parse the record of a program; raises ``GpupoolError(INVALID_FILE)`` if it is incomplete."""
    _, index, attempt = split_attempt_key(spec.key)
    record = spec.record
    if _WORKLOAD not in record or _LEASE not in record:
        raise _insufficient("it was started by an older version of gpupool, which wrote no record")
    workload = records.from_record(record[_WORKLOAD], index)
    host = records.from_record(record[_HOST], workload.on_index) if _HOST in record else None
    if (workload.kind is WorkloadKind.EXEC) != (host is not None) or workload.id != split_attempt_key(spec.key)[0]:
        raise _insufficient("its record is inconsistent")
    try:
        lease = _lease(record[_LEASE], host or workload, spec, node)
        state = {name: record.get(_REPLICA, {})[name] for name in _KEPT_OF_REPLICA}
    except (KeyError, TypeError, ValueError) as error:
        raise _insufficient(f"its record is not complete ({error!r})") from error
    if not spec.gpu_epoch:
        return AdoptionRecord(workload, index, attempt, state, host, lease)
    gpus = replace(lease, epoch=Epoch(spec.gpu_epoch), index=LAZY_GPUS, cpus=0.0, memory_mib=0)
    return AdoptionRecord(workload, index, attempt, state, host, replace(lease, shares=()), gpus)


def _lease(kept: dict[str, Any], holder: Workload, spec: ProcessSpec, node: str) -> GpuLease:
    return GpuLease(
        epoch=Epoch(spec.lease),
        workload=WorkloadId(holder.id),
        index=int(kept["index"]),
        attempt=int(kept["attempt"]),
        project=holder.project,
        user=holder.user,
        node=node,
        shares=spec.gpus,
        cpus=float(kept["cpus"]),
        memory_mib=int(kept["memory_mib"]),
        granted_at=float(kept["granted_at"]),
        sharing=spec.sharing,
        compute=ComputePolicy(spec.compute),
        fence_after_s=spec.fence_after_s,
    )


def _insufficient(why: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_FILE,
        f"The program cannot be adopted: {why}.",
        "It continues to run, unchanged.",
    )
