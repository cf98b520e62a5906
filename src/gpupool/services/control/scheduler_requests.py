"""Conversion of replicas to the input types of the scheduler."""

from __future__ import annotations

from gpupool.domain.people.access import ProjectRules
from gpupool.domain.work.workload import GpuLease, Replica, Workload, WorkloadKind
from gpupool.scheduling.values import PendingReplica, RunningReplica


def pending(workload: Workload, row: Replica, rules: ProjectRules) -> PendingReplica:
    """Return a waiting replica as input of the scheduler."""
    limits = workload.limits
    return PendingReplica(
        workload=workload.id,
        index=row.index,
        project=workload.project,
        user=workload.user,
        request=workload.gpus_of(row.index),
        queued_at=row.queued_at,
        evictions=row.interruptions,
        priority=workload.priority,
        preemptible=workload.preemptible,
        cpus=workload.counted_cpus(row.index),
        memory_mib=workload.memory_of(row.index) or 0,
        not_before=row.not_before,
        max_time_s=limits.max_time_s,
        gang=workload.gang,
        node_pools=rules.node_pools,
        grace_s=limits.preemption_grace_s,
        checkpoint_s=limits.saved_every_s,
    )


def running(workload: Workload, lease: GpuLease, rules: ProjectRules, row: Replica | None) -> RunningReplica:
    """Return a replica with a lease, and its row if there is one, as input of the scheduler."""
    limits, since = workload.limits, lease.granted_at
    timed = None if limits.max_time_s is None else since + limits.max_time_s
    return RunningReplica(
        lease=lease,
        started_at=since,
        priority=workload.priority,
        preemptible=workload.preemptible,
        expected_end=workload.expires_at if workload.kind is WorkloadKind.LEASE else timed,
        gang=workload.gang,
        min_runtime_s=rules.min_runtime_s,
        request=workload.gpus_of(lease.index),
        node_pools=rules.node_pools,
        grace_s=limits.preemption_grace_s,
        evictions=0 if row is None else row.interruptions,
        checkpoint_s=limits.saved_every_s,
        saved_at=None if row is None else row.saved_at,
    )
