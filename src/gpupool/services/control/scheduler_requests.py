"""Conversion of replicas to the input types of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpupool.domain.nodes.gpu import ALTERNATIVE, NODE_LABEL, GpuRequest, Node, Placement
from gpupool.domain.nodes.sharing import LAZY_MODE
from gpupool.domain.people.access import ProjectRules
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import LAZY_GPUS, GpuLease, Replica, Workload, WorkloadKind
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


def pending_place(workload: Workload, row: Replica, rules: ProjectRules, nodes: Iterable[Node]) -> PendingReplica:
    """Return a lazy replica that waits for its start: it needs a place without GPUs on a node that has such GPUs."""
    suitable = (node.name for node in nodes if _could_hold(node, workload.gpus))
    request = _on_nodes(workload.gpus, ALTERNATIVE.join(sorted(suitable)))
    request = replace(request, count=0, models=(), placement=Placement.SPREAD)
    return replace(pending(workload, row, rules), request=request)


def pending_gpus(workload: Workload, row: Replica, rules: ProjectRules) -> PendingReplica:
    """Return the request of a replica for its GPUs, on the node where its program waits for them.

    One that is suspended needs the GPU that it had before.
    """
    request = replace(_on_nodes(workload.gpus, row.node or ""), gpu_uuid=row.suspended_gpu)
    if not request.whole:
        request = replace(request, sharing=LAZY_MODE)  # the mode with which the program was started
    asked = replace(pending(workload, row, rules), index=LAZY_GPUS, request=request, cpus=0.0, memory_mib=0)
    return replace(asked, queued_at=row.gpu_wanted_at or row.queued_at, not_before=0.0)


def _on_nodes(request: GpuRequest, names: str) -> GpuRequest:
    return replace(request, labels=(*request.labels, (NODE_LABEL, names)))


def _could_hold(node: Node, request: GpuRequest) -> bool:
    """Return whether a node, without other work, could give the GPUs of a request to a lazy program."""
    if node.report.sharing and LAZY_MODE not in node.report.sharing:
        return False
    gpus = [gpu for gpu in node.report.gpus if request.accepts_model(gpu.model) and not gpu.mig_profile]
    return sum(request.permille_on(gpu.memory_mib) <= WHOLE_GPU for gpu in gpus) >= request.count


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
        request=None if workload.limits.separate_gpus else workload.gpus_of(lease.index),  # None: it cannot be moved
        node_pools=rules.node_pools,
        grace_s=limits.preemption_grace_s,
        evictions=0 if row is None else row.interruptions,
        checkpoint_s=limits.saved_every_s,
        saved_at=None if row is None else row.saved_at,
    )
