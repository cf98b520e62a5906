"""From the domain to what the API answers; what a caller may not see is left out here."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpupool.api import schemas as view
from gpupool.api.sharing import sharing_of
from gpupool.distributed.outcome import exit_status, rank_of
from gpupool.domain.events import Event
from gpupool.domain.gpu import NODE_POLICY, ComputePolicy, Gpu, GpuRequest, GpuShare, Node
from gpupool.domain.supervision import LogChunk
from gpupool.domain.workload import Lease, Program, Replica, Role, Workload


@dataclass(frozen=True, slots=True)
class Holding:
    """One holder's share of a GPU and the name of its workload."""

    lease: Lease
    share: GpuShare
    name: str


@dataclass(frozen=True, slots=True)
class Shown:
    """How much of a workload a caller may see: its command and environment, and its attach sockets by replica.

    ``relayed`` are the replicas on other machines than the control plane's: they have no socket here.
    """

    private: bool
    attach_paths: Mapping[int, str] = field(default_factory=dict)
    attachable: frozenset[int] = frozenset()
    relayed: frozenset[int] = frozenset()


def gpu_view(gpu: Gpu, node: Node, holdings: Sequence[Holding]) -> view.GpuView:
    """A GPU of a node with those who hold parts of it."""
    policy = node.policy_of(gpu.uuid)
    return view.GpuView(
        uuid=gpu.uuid,
        node=node.name,
        index=gpu.index,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        emulated=gpu.emulated,
        pci_bus_id=gpu.pci_bus_id,
        health=gpu.health,
        health_note=gpu.health_note,
        links=gpu.links,
        mig_profile=gpu.mig_profile,
        parent_uuid=gpu.parent_uuid,
        foreign=[view.ForeignView(pid=f.pid, user=f.user, name=f.name, memory_mib=f.memory_mib) for f in gpu.foreign],
        memory_used_mib=gpu.memory_used_mib,
        utilisation_percent=gpu.utilisation_percent,
        allocated_permille=sum(h.share.permille for h in holdings),
        allocated_memory_mib=sum(h.share.memory_mib for h in holdings),
        available=gpu.available,
        holders=[_holder_view(h) for h in holdings],
        sharing=policy or next(iter(node.report.sharing), ""),
        sharing_policy=policy,
    )


def _holder_view(holding: Holding) -> view.HolderView:
    lease = holding.lease
    return view.HolderView(
        workload=lease.workload,
        name=holding.name,
        index=lease.index,
        user=lease.user,
        project=lease.project,
        permille=holding.share.permille,
        memory_mib=holding.share.memory_mib,
        since=lease.granted_at,
        sharing=lease.sharing,
        compute=lease.compute,
    )


def node_view(node: Node, gpus: list[view.GpuView], leases: Iterable[Lease]) -> view.NodeView:
    """A node with its GPUs; ``leases`` are those held on it."""
    report = node.report
    held = list(leases)
    return view.NodeView(
        name=node.name,
        state=node.state,
        cordon_reason=node.cordon_reason,
        cpus=report.cpus,
        memory_mib=report.memory_mib,
        emulated=report.emulated,
        agent_version=report.agent_version,
        driver_version=report.driver_version,
        cuda_version=report.cuda_version,
        labels=node.all_labels,
        warnings=list(report.warnings),
        gpus=gpus,
        cpus_allocated=sum(lease.cpus for lease in held),
        memory_allocated_mib=sum(lease.memory_mib for lease in held),
        sharing=list(report.sharing),
        sharing_policy=node.sharing.get(NODE_POLICY),
        address=report.address,
        capacity=_resources(node, report.gpus),
        allocatable=_resources(node, [gpu for gpu in report.gpus if gpu.available]),
    )


def _resources(node: Node, gpus: Sequence[Gpu]) -> view.ResourcesView:
    return view.ResourcesView(gpus=len(gpus), cpus=node.report.cpus, memory_mib=node.report.memory_mib)


def gpu_request_view(request: GpuRequest, compute: ComputePolicy) -> view.GpuRequestView:
    """What GPUs each replica asks for."""
    return view.GpuRequestView(
        count=request.count,
        permille=request.permille,
        memory_mib=request.memory_mib,
        models=list(request.models),
        labels=dict(request.labels),
        compute=compute,
        sharing=request.sharing,
        placement=request.placement,
    )


def counts_view(replicas: Iterable[Replica]) -> view.ReplicaCounts:
    """How many replicas stand where."""
    return view.ReplicaCounts(**Counter(replica.state.value for replica in replicas))


def workload_view(
    workload: Workload, replicas: Sequence[Replica], leases: Sequence[Lease], shown: Shown
) -> view.WorkloadView:
    """One line of a listing."""
    return view.WorkloadView.model_construct(**_workload_fields(workload, replicas, leases, shown))


def workload_detail(
    workload: Workload, replicas: Sequence[Replica], leases: Sequence[Lease], shown: Shown, replicas_from: int = 0
) -> view.WorkloadDetail:
    """Everything about a workload; ``replicas`` are all of it, at most 1000 from ``replicas_from`` are shown."""
    page = [r for r in replicas if r.index >= replicas_from][: view.MAX_REPLICAS_SHOWN]
    held = {(lease.index, lease.attempt): lease for lease in leases if lease.released_at is None}
    return view.WorkloadDetail.model_construct(
        **_workload_fields(workload, replicas, leases, shown),
        replicas=[_replica_view(workload, r, held.get((r.index, r.attempt)), shown) for r in page],
        leases=[_lease_view(lease) for lease in leases[-view.MAX_REPLICAS_SHOWN :]],
        env=dict(workload.program.env) if shown.private else None,
        uid=workload.uid,
        retry=view.RetryView(policy=workload.retry.policy, backoff_limit=workload.retry.backoff_limit),
        limits=_limits_view(workload),
        after=[view.DependencyView(workload=d.workload, success_only=d.success_only) for d in workload.after],
        guarantees=sharing_of(workload, replicas, leases)[1],
        windows=list(workload.windows),
    )


def _workload_fields(
    workload: Workload, replicas: Sequence[Replica], leases: Sequence[Lease], shown: Shown
) -> dict[str, Any]:
    """Values of ``WorkloadView``, of the right types already: they come from the domain and need no validation."""
    only = replicas[0] if workload.completions == 1 and replicas else None
    program, limits = workload.program, workload.limits
    return {
        "id": workload.id,
        "name": workload.name,
        "kind": workload.kind,
        "project": workload.project,
        "user": workload.user,
        "state": workload.state,
        "priority": workload.priority,
        "preemptible": workload.preemptible,
        "gpus": gpu_request_view(workload.gpus, workload.compute),
        "sharing": sharing_of(workload, replicas, leases)[0],
        "created_at": workload.created_at,
        "started_at": workload.started_at,
        "finished_at": workload.finished_at,
        "expires_at": workload.expires_at,
        "completions": workload.completions,
        "parallelism": workload.parallelism,
        "counts": counts_view(replicas),
        "command": list(program.argv) if shown.private else None,
        "workdir": program.cwd if shown.private else None,
        "image": program.container.image if shown.private and program.container is not None else None,
        "volumes": _volumes(program) if shown.private else None,
        "labels": workload.labels,
        "on": workload.on,
        "reason": _reason_view(workload, replicas),
        "exit_status": only.exit_status if only else exit_status(workload, replicas),
        "node": only.node if only else None,
        "gpu_uuids": sorted({s.gpu_uuid for lease in leases if lease.released_at is None for s in lease.shares}),
        "suspended": workload.suspended,
        "stop_reason": workload.stop_reason.value if workload.stop_reason else None,
        "cpus": limits.cpus,
        "memory_mib": limits.memory_mib,
        "max_time_s": limits.max_time_s,
        "idle_timeout_s": limits.idle_timeout_s,
        "wait_s": limits.wait_s,
        "gang": _gang_view(workload),
        "framework": workload.framework,
    }


def _volumes(program: Program) -> list[str]:
    """As they are written: SRC:DST[:ro], and the kind of those that are of no place on the node."""
    own = () if program.container is None else program.container.volumes
    return [f"{v.source or v.kind.value}:{v.target}{':ro' if v.read_only else ''}" for v in own]


def _gang_view(workload: Workload) -> view.GangView | None:
    gang = workload.gang
    if gang is None:
        return None
    return view.GangView(
        workers=gang.most,
        min=gang.least,
        within=gang.within,
        strict=gang.strict,
        on_member_end=workload.on_member_end,
        round=0 if workload.wiring is None else workload.wiring.round,
        roles=[_role_view(workload, role) for role in workload.roles],
    )


def _role_view(workload: Workload, role: Role) -> view.RoleView:
    first = workload.indices_of(role.name).start
    return view.RoleView(
        name=role.name,
        first=first,
        replicas=role.replicas,
        gpus=gpu_request_view(workload.gpus_of(first), workload.compute),
        cpus=workload.cpus_of(first),
        memory_mib=workload.memory_of(first),
    )


def _reason_view(workload: Workload, replicas: Sequence[Replica]) -> view.ReasonView | None:
    """The reason of the replica something happened to last, or of the whole workload's stop."""
    if not replicas:
        return None
    latest = max(replicas, key=lambda r: max(r.finished_at or 0.0, r.started_at or 0.0, r.queued_at))
    if workload.stop_reason is not None and not latest.state.final:
        return view.ReasonView(code=workload.stop_reason, message=latest.message)
    return view.ReasonView(code=latest.reason, message=latest.message)


def _replica_view(workload: Workload, replica: Replica, lease: Lease | None, shown: Shown) -> view.ReplicaView:
    own = workload.parameters[replica.index] if replica.index < len(workload.parameters) else {}
    return view.ReplicaView.model_construct(
        member=workload.member_name(replica.index),
        role=role.name if (role := workload.role_of(replica.index)) is not None else "",
        rank=rank_of(workload, replica),
        index=replica.index,
        state=replica.state,
        attempt=replica.attempt,
        key=replica.key,
        node=replica.node,
        exit_status=replica.exit_status,
        reason=replica.reason.value,
        message=replica.message,
        failures=replica.failures,
        interruptions=replica.interruptions,
        queued_at=replica.queued_at,
        not_before=replica.not_before,
        started_at=replica.started_at,
        finished_at=replica.finished_at,
        parameters=dict(own) if shown.private else None,
        gpus=[share_view(s) for s in lease.shares] if lease else [],
        attach_path=shown.attach_paths.get(replica.index, ""),
        relayed=replica.index in shown.relayed,
        attachable=replica.index in shown.attachable,
        pid=replica.pid,
        notes=list(replica.notes),
        sharing=replica.sharing,
        guarantee=replica.guarantee,
        last_active_at=replica.last_active_at,
    )


def share_view(share: GpuShare) -> view.ShareView:
    """A part of one GPU."""
    return view.ShareView(
        uuid=share.gpu_uuid, index=share.gpu_index, permille=share.permille, memory_mib=share.memory_mib
    )


def _lease_view(lease: Lease) -> view.LeaseView:
    return view.LeaseView(
        epoch=lease.epoch,
        index=lease.index,
        attempt=lease.attempt,
        node=lease.node,
        shares=[share_view(s) for s in lease.shares],
        cpus=lease.cpus,
        memory_mib=lease.memory_mib,
        granted_at=lease.granted_at,
        released_at=lease.released_at,
        sharing=lease.sharing,
        compute=lease.compute,
    )


def _limits_view(workload: Workload) -> view.LimitsView:
    limits = workload.limits
    return view.LimitsView(
        wait_s=limits.wait_s,
        max_time_s=limits.max_time_s,
        idle_timeout_s=limits.idle_timeout_s,
        grace_s=limits.grace_s,
        cpus=limits.cpus,
        memory_mib=limits.memory_mib,
        log_limit_mib=limits.log_limit_mib,
        notice_signal=limits.notice_signal,
    )


def chunk_view(chunk: LogChunk) -> view.LogChunkView:
    """A piece of output, its bytes in base64."""
    stream: Literal["out", "err"] = "err" if chunk.stream == "err" else "out"
    data = base64.b64encode(chunk.data).decode("ascii")
    return view.LogChunkView.model_construct(at=chunk.at, stream=stream, data=data, cursor=chunk.cursor)


def event_view(event: Event) -> view.EventView:
    """One thing that happened."""
    return view.EventView.model_construct(
        id=event.id,
        at=event.at,
        actor=event.actor,
        reason=event.reason.value,
        message=event.message,
        workload=event.workload,
        index=event.index,
        target=event.target,
    )
