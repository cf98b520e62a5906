"""Views of domain values; fields that a caller may not see are left out here."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from gpupool.api.schemas.base import MAX_REPLICAS_SHOWN
from gpupool.api.schemas.nodes.nodes import GpuCheckView, GpuView, HolderView, NodeView, ResourcesView
from gpupool.api.schemas.work.workloads import (
    DependencyView,
    EndingView,
    EventView,
    GangView,
    GpuRequestView,
    LeaseView,
    LimitsView,
    LogChunkView,
    ReasonView,
    ReplicaCounts,
    ReplicaView,
    RetryingView,
    RetryView,
    RoleView,
    ShareView,
    WorkloadDetail,
    WorkloadSummary,
    WorkloadView,
)
from gpupool.distributed.outcome import exit_status, rank_of
from gpupool.domain.events import Event
from gpupool.domain.nodes.gpu import NODE_POLICY, Gpu, GpuRequest, GpuShare, Node
from gpupool.domain.nodes.gpu_check import GpuCheck
from gpupool.domain.nodes.sharing import ComputePolicy, describe_guarantee, mode_of_whole
from gpupool.domain.protocol.log_records import LogChunk
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.ending import Ending, ending_of, replica_ending, retrying
from gpupool.domain.work.gpu_use import gpu_use
from gpupool.domain.work.lifecycle import unsaved_s
from gpupool.domain.work.workload import (
    GangRole,
    GpuLease,
    Program,
    Replica,
    Workload,
    WorkloadKind,
    holder_index,
)


@dataclass(frozen=True, slots=True)
class HeldShare:
    """The share of a GPU that one holder has, and the name of its workload."""

    lease: GpuLease
    share: GpuShare
    name: str


@dataclass(frozen=True, slots=True)
class Shown:
    """Fields of a workload that a caller may see: its command and environment, and its attach sockets by replica.

    ``manages``: the caller may control it and attach to it. ``relayed`` are the replicas on other nodes than the
    control plane's: they have no socket here. ``now`` is the time of the answer. ``waiting`` is why it waits.
    ``names`` are those of its dependencies, by id.
    """

    private: bool
    attach_paths: Mapping[int, str] = field(default_factory=dict)
    attachable: frozenset[int] = frozenset()
    relayed: frozenset[int] = frozenset()
    manages: bool = False
    now: float = 0.0
    waiting: ReasonView | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def gpu_view(gpu: Gpu, node: Node, holdings: Sequence[HeldShare], check: GpuCheck | None = None) -> GpuView:
    """Return the view of a GPU with its holders and the latest result of its checks."""
    policy = node.policy_of(gpu.uuid)
    return GpuView.of(
        gpu,
        node=node.name,
        allocated_permille=sum(h.share.permille for h in holdings),
        allocated_memory_mib=sum(h.share.memory_mib for h in holdings),
        holders=[_holder_view(h) for h in holdings],
        sharing=policy or next(iter(node.report.sharing), ""),
        sharing_policy=policy,
        available=node.accepts(gpu),
        cordon_reason=node.cordon_of(gpu),
        check=None if check is None else GpuCheckView.of(check),
    )


def _holder_view(holding: HeldShare) -> HolderView:
    lease = holding.lease
    return HolderView.of(
        lease,
        name=holding.name,
        permille=holding.share.permille,
        memory_mib=holding.share.memory_mib,
        since=lease.granted_at,
    )


def node_view(node: Node, gpus: list[GpuView], leases: Iterable[GpuLease]) -> NodeView:
    """Return the view of a node with its GPUs; ``leases`` are those on the node."""
    report = node.report
    held = list(leases)
    return NodeView.of(
        report,
        name=node.name,
        state=node.state,
        cordon_reason=node.cordon_reason,
        labels=node.all_labels,
        gpus=gpus,
        cpus_allocated=sum(lease.cpus for lease in held),
        memory_allocated_mib=sum(lease.memory_mib for lease in held),
        sharing_policy=node.sharing.get(NODE_POLICY),
        capacity=_resources(node, report.gpus),
        allocatable=_resources(node, [gpu for gpu in report.gpus if node.accepts(gpu)]),
        silent_s=None,
        head=None,
    )


def _resources(node: Node, gpus: Sequence[Gpu]) -> ResourcesView:
    return ResourcesView(gpus=len(gpus), cpus=node.report.cpus, memory_mib=node.report.memory_mib)


@lru_cache(maxsize=1024)
def gpu_request_view(request: GpuRequest, compute: ComputePolicy) -> GpuRequestView:
    """Return the view of a GPU request."""
    return GpuRequestView.of(request, labels=dict(request.labels), compute=compute)


def counts_view(replicas: Iterable[Replica]) -> ReplicaCounts:
    """Return the number of replicas by state."""
    return _counts_view(tuple(Counter(replica.state.value for replica in replicas).items()))


@lru_cache(maxsize=1024)
def _counts_view(counts: tuple[tuple[str, int], ...]) -> ReplicaCounts:
    return ReplicaCounts(**dict(counts))


def workload_summary(workload: Workload, replicas: Sequence[Replica], shown: Shown) -> WorkloadSummary:
    """Return the fields of a list."""
    return WorkloadSummary.unchecked(workload, **_summary_fields(workload, replicas, shown))


def workload_view(
    workload: Workload, replicas: Sequence[Replica], leases: Sequence[GpuLease], shown: Shown
) -> WorkloadView:
    """Return all fields of a listing."""
    return WorkloadView.unchecked(workload, **_workload_fields(workload, replicas, leases, shown))


def workload_detail(
    workload: Workload, replicas: Sequence[Replica], leases: Sequence[GpuLease], shown: Shown, replicas_from: int = 0
) -> WorkloadDetail:
    """Return all data of a workload; ``replicas`` are all of it, and at most 1000 from ``replicas_from`` are shown."""
    page = [r for r in replicas if r.index >= replicas_from][:MAX_REPLICAS_SHOWN]
    unreleased = [lease for lease in leases if lease.released_at is None]
    held = {(holder_index(lease.index), lease.attempt): lease for lease in unreleased}
    return WorkloadDetail.unchecked(
        workload,
        **_workload_fields(workload, replicas, leases, shown),
        replicas=[_replica_view(workload, r, held.get((r.index, r.attempt)), shown) for r in page],
        leases=[_lease_view(lease) for lease in leases[-MAX_REPLICAS_SHOWN:]],
        env=dict(workload.program.env) if shown.private else None,
        retry=RetryView.of(workload.retry),
        limits=LimitsView.of(workload.limits),
        after=[DependencyView.of(d, name=shown.names.get(d.workload)) for d in workload.after],
        guarantees=sharing_of(workload, replicas, leases)[1],
        windows=list(workload.windows),
        manages=shown.manages,
    )


def _summary_fields(workload: Workload, replicas: Sequence[Replica], shown: Shown) -> dict[str, Any]:
    """Return the values of ``WorkloadSummary`` that are not attributes of the workload; they need no validation."""
    return {
        "gpus": gpu_request_view(workload.gpus, workload.compute),
        "counts": counts_view(replicas),
        "command": list(workload.program.argv) if shown.private else None,
        "reason": _reason_view(workload, replicas),
        "ending": _ending_view(ending_of(workload, replicas)),
        "retrying": _retrying_view(workload, replicas),
        "node": replicas[0].node if workload.completions == 1 and replicas else None,
        "lazy": gpu_use(workload, replicas[0]) if replicas else None,
        "waiting": shown.waiting,
    }


def _workload_fields(
    workload: Workload, replicas: Sequence[Replica], leases: Sequence[GpuLease], shown: Shown
) -> dict[str, Any]:
    """Return the values of ``WorkloadView`` that are not attributes of the workload; they need no validation."""
    only = replicas[0] if workload.completions == 1 and replicas else None
    program, limits = workload.program, workload.limits
    return _summary_fields(workload, replicas, shown) | {
        "sharing": sharing_of(workload, replicas, leases)[0],
        "workdir": program.cwd if shown.private else None,
        "workspace": program.workspace or None,
        "mail": (workload.mail or None) if shown.private else None,
        "git": (program.git or None) if shown.private else None,
        "image": program.container.image if shown.private and program.container is not None else None,
        "volumes": _volumes(program) if shown.private else None,
        "exit_status": only.exit_status if only else exit_status(workload, replicas),
        "gpu_uuids": sorted({s.gpu_uuid for lease in leases if lease.released_at is None for s in lease.shares}),
        "stop_reason": workload.stop_reason.value if workload.stop_reason else None,
        "cpus": limits.cpus,
        "memory_mib": limits.memory_mib,
        "max_time_s": limits.max_time_s,
        "idle_timeout_s": limits.idle_timeout_s,
        "wait_s": limits.wait_s,
        "gang": _gang_view(workload),
    }


def _volumes(program: Program) -> list[str]:
    """Return volumes as text: SRC:DST[:ro], or the kind of volumes that are no folder of the node."""
    own = () if program.container is None else program.container.volumes
    return [f"{v.source or v.kind.value}:{v.target}{':ro' if v.read_only else ''}" for v in own]


def _gang_view(workload: Workload) -> GangView | None:
    gang = workload.gang
    if gang is None:
        return None
    return GangView(
        workers=gang.most,
        min=gang.least,
        within=gang.within,
        strict=gang.strict,
        mixed_models=gang.mixed_models,
        on_member_end=workload.on_member_end,
        success_policy=workload.success_policy,
        round=0 if workload.wiring is None else workload.wiring.round,
        roles=[_role_view(workload, role) for role in workload.roles],
    )


def _role_view(workload: Workload, role: GangRole) -> RoleView:
    first = workload.indices_of(role.name).start
    return RoleView(
        name=role.name,
        first=first,
        replicas=role.replicas,
        gpus=gpu_request_view(workload.gpus_of(first), workload.compute),
        cpus=workload.cpus_of(first),
        memory_mib=workload.memory_of(first),
    )


def _reason_view(workload: Workload, replicas: Sequence[Replica]) -> ReasonView | None:
    """Return the reason of the replica that changed last, or of the whole workload's stop."""
    if not replicas:
        return None
    latest = max(replicas, key=lambda r: max(r.finished_at or 0.0, r.started_at or 0.0, r.queued_at))
    if workload.stop_reason is not None and not latest.state.final:
        return ReasonView(code=workload.stop_reason, message=latest.message)
    return ReasonView(code=latest.reason, message=latest.message)


def _ending_view(ending: Ending | None) -> EndingView | None:
    return None if ending is None else EndingView.unchecked(ending, code=ending.code.value)


def _retrying_view(workload: Workload, replicas: Iterable[Replica]) -> RetryingView | None:
    """Return the next attempt of the replica that is tried again first."""
    found = [again for replica in replicas if (again := retrying(workload, replica)) is not None]
    return RetryingView.unchecked(min(found, key=lambda again: again.next_at)) if found else None


def _replica_view(workload: Workload, replica: Replica, lease: GpuLease | None, shown: Shown) -> ReplicaView:
    own = workload.parameters[replica.index] if replica.index < len(workload.parameters) else {}
    return ReplicaView.unchecked(
        replica,
        member=workload.member_name(replica.index),
        role=role.name if (role := workload.role_of(replica.index)) is not None else "",
        rank=rank_of(workload, replica),
        reason=replica.reason.value,
        ending=_ending_view(replica_ending(workload, replica)),
        retrying=_retrying_view(workload, (replica,)),
        parameters=dict(own) if shown.private else None,
        gpus=[share_view(s) for s in lease.shares] if lease else [],
        attach_path=shown.attach_paths.get(replica.index, ""),
        relayed=replica.index in shown.relayed,
        attachable=replica.index in shown.attachable,
        notes=list(replica.notes),
        metrics=dict(replica.metrics) if shown.private else {},
        unsaved_gpu_s=_unsaved_gpu_s(workload, replica, lease, shown.now),
    )


def _unsaved_gpu_s(workload: Workload, replica: Replica, lease: GpuLease | None, now: float) -> float:
    if lease is None or not replica.state.placed or not workload.preemptible:
        return 0.0
    return unsaved_s(workload, replica, now) * lease.permille / WHOLE_GPU


def share_view(share: GpuShare) -> ShareView:
    """Return the view of a part of a GPU."""
    return ShareView(uuid=share.gpu_uuid, index=share.gpu_index, permille=share.permille, memory_mib=share.memory_mib)


def _lease_view(lease: GpuLease) -> LeaseView:
    return LeaseView.of(lease, shares=[share_view(s) for s in lease.shares])


def chunk_view(chunk: LogChunk) -> LogChunkView:
    """Return the view of output bytes in base64."""
    stream: Literal["out", "err"] = "err" if chunk.stream == "err" else "out"
    data = base64.b64encode(chunk.data).decode("ascii")
    return LogChunkView.model_construct(at=chunk.at, stream=stream, data=data, cursor=chunk.cursor)


def event_view(event: Event) -> EventView:
    """Return the view of an event."""
    return EventView.unchecked(event, reason=event.reason.value)


NONE = "none"  # the workload holds no GPU
HELD = "held"  # the GPUs belong to another workload
SLICE = "slice"  # a slice; the mode is decided with the placement


def sharing_of(workload: Workload, replicas: Sequence[Replica], leases: Sequence[GpuLease]) -> tuple[str, str]:
    """Return the mode (several joined by commas) and its guarantee.

    The mode that its node reports has precedence over the granted one, and that over the requested one.
    """
    seen = dict.fromkeys((r.sharing, r.guarantee or describe_guarantee(r.sharing, workload.compute)) for r in replicas)
    found = [pair for pair in seen if pair[0]] or [_expected(workload, leases)]
    return ", ".join(dict.fromkeys(mode for mode, _ in found)), " ".join(dict.fromkeys(said for _, said in found))


def _expected(workload: Workload, leases: Sequence[GpuLease]) -> tuple[str, str]:
    if workload.kind is WorkloadKind.EXEC:
        return HELD, "It shares the GPUs of another workload."
    if workload.gpus.count == 0:
        return NONE, "It holds no GPUs."
    granted = next((lease.sharing for lease in reversed(leases) if lease.sharing), "")
    mode = granted or workload.gpus.sharing or (mode_of_whole(partitioned=False) if workload.gpus.whole else "")
    return str(mode) or SLICE, describe_guarantee(mode, workload.compute)
