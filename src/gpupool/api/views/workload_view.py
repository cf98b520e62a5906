"""Views that need several services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.api.schemas.nodes.nodes import GpuView, HeadAddressView, NodeView, PoolHeadView, PoolView
from gpupool.api.schemas.work.workloads import ReasonView, WorkloadDetail, WorkloadSummary, WorkloadView
from gpupool.api.views import mapping
from gpupool.api.views.mapping import HeldShare, Shown
from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.gpu import Gpu, Node, NodeState
from gpupool.domain.nodes.heads import Head, HeadStatus
from gpupool.domain.people.access import Actor
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import GpuLease, Replica, ReplicaState, Workload, WorkloadState
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.services.cluster.heads import Heads
from gpupool.services.pool import PoolServices

_ATTACHABLE = {ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING}


@dataclass(frozen=True, slots=True)
class Viewer:
    """The caller, and whether the request came by the unix socket, where attach sockets are usable."""

    actor: Actor
    local: bool


async def workload_summary(
    services: PoolServices, viewer: Viewer, workload: Workload, waiting: Explanation | None = None
) -> WorkloadSummary:
    """Return the fields of a list; ``waiting`` is why the workload waits."""
    replicas = await services.workloads.replicas_of(workload)
    return mapping.workload_summary(workload, replicas, _shown(services, viewer, workload, waiting))


async def workload_view(
    services: PoolServices, viewer: Viewer, workload: Workload, waiting: Explanation | None = None
) -> WorkloadView:
    """Return all fields of a listing; ``waiting`` is why the workload waits."""
    replicas, leases = await _parts(services, workload)
    return mapping.workload_view(workload, replicas, leases, _shown(services, viewer, workload, waiting))


def _shown(services: PoolServices, viewer: Viewer, workload: Workload, waiting: Explanation | None) -> Shown:
    view = None if waiting is None else ReasonView(code=waiting.code.value, message=waiting.sentence)
    return Shown(services.workloads.can_see(viewer.actor, workload), waiting=view)


async def workload_detail(
    services: PoolServices, viewer: Viewer, workload: Workload, replicas_from: int = 0
) -> WorkloadDetail:
    """Return all data of a workload that the viewer may see."""
    replicas = await services.workloads.replicas_of(workload)
    leases = await services.workloads.leases_of(workload)
    replicas = [services.nodes.with_silence(replica) for replica in replicas]
    relayed = frozenset(r.index for r in replicas if not _is_here(services, r))
    paths = _attach_paths(services, viewer, workload, replicas)
    placed = (r.index for r in replicas if r.state in _ATTACHABLE)
    attachable = frozenset(index for index in placed if services.workloads.attach_path(workload, index))
    manages = services.workloads.can_manage(viewer.actor, workload)
    now = services.workloads.now()
    names = await services.workloads.dependency_names(viewer.actor, workload)
    private = services.workloads.can_see(viewer.actor, workload)
    shown = Shown(private, paths, attachable, relayed, manages, now, names=names)
    return mapping.workload_detail(workload, replicas, leases, shown, replicas_from)


async def _parts(services: PoolServices, workload: Workload) -> tuple[Sequence[Replica], Sequence[GpuLease]]:
    replicas = await services.workloads.replicas_of(workload)
    if workload.state.final:
        return replicas, ()
    return replicas, await services.workloads.leases_of(workload)


def _attach_paths(
    services: PoolServices, viewer: Viewer, workload: Workload, replicas: Iterable[Replica]
) -> dict[int, str]:
    if not viewer.local or not services.workloads.can_manage(viewer.actor, workload):
        return {}
    placed = (r.index for r in replicas if r.state in _ATTACHABLE and _is_here(services, r))
    return {index: services.workloads.attach_path(workload, index) for index in placed}


def _is_here(services: PoolServices, replica: Replica) -> bool:
    """Return True if a replica's sockets are on this machine; without a node name there is only one."""
    return not services.info.own_node or replica.node in {None, services.info.own_node}


async def node_view(services: PoolServices, viewer: Viewer, node: Node, names: dict[str, str]) -> NodeView:
    """Return a node with its GPUs and holders; ``names`` caches workload names between calls."""
    views: list[GpuView] = []
    for gpu in node.report.gpus:
        holdings = await _holdings(services, viewer, gpu, names)
        views.append(mapping.gpu_view(gpu, node, holdings, services.gpu_checks.latest.get(gpu.uuid)))
    seen = mapping.node_view(node, views, services.nodes.leases_on(node.name))
    head = services.joining.heads.standing(node.name)
    return seen.model_copy(update={"silent_s": services.nodes.silent_s(node.name), "head": head})


async def _holdings(services: PoolServices, viewer: Viewer, gpu: Gpu, names: dict[str, str]) -> list[HeldShare]:
    held = await services.nodes.holders(gpu.uuid)
    return [HeldShare(lease, share, await _name_of(services, viewer, lease, names)) for lease, share in held]


async def _name_of(services: PoolServices, viewer: Viewer, lease: GpuLease, names: dict[str, str]) -> str:
    if lease.workload not in names:
        try:
            names[lease.workload] = (await services.workloads.get(viewer.actor, lease.workload)).name
        except GpupoolError:
            names[lease.workload] = ""
    return names[lease.workload]


async def pool_view(services: PoolServices) -> PoolView:
    """Return the pool's resources and their use."""
    info = services.info
    nodes = await services.nodes.nodes()
    gpus = [gpu for node in nodes for gpu in node.report.gpus]
    loads = [await services.access.project_load(project.name) for project in await services.access.projects()]
    counts = await services.workloads.counts()
    refused = await refusals(services)
    return PoolView.of(
        info,
        kind="system" if info.kind == "system" else "user",
        emulated=any(node.report.emulated for node in nodes),
        warnings=[
            *services.joining.heads.warnings().values(),
            *services.backups.warnings(),
            *refused,
            *(f"{node.name}: {warning}" for node in nodes for warning in node.report.warnings),
        ],
        nodes=len(nodes),
        nodes_up=sum(node.state is not NodeState.DOWN for node in nodes),
        gpus=len(gpus),
        gpu_permille_total=len(gpus) * WHOLE_GPU,
        gpu_permille_allocated=sum(allocated for allocated, _ in loads),
        queued=counts.get(WorkloadState.QUEUED, 0),
        running=counts.get(WorkloadState.RUNNING, 0),
        heads=_heads(services),
        refused=refused,
    )


async def refusals(services: PoolServices) -> list[str]:
    """Return sentences about clients that were refused recently, with the names of their users."""
    users = await services.access.users()
    names = {f"uid {user.uid}": user.name for user in users} | {f"user {user.name}": user.name for user in users}
    return services.refusals.sentences(names)


async def head_addresses(services: PoolServices) -> list[HeadAddressView]:
    """Return the stored list of all heads; empty if only this node can lead."""
    heads = services.joining.heads
    found = [(head, heads.standing(head.name)) for head in await heads.refresh()]
    return [
        HeadAddressView(**_head(heads, head, standing), certificate=head.certificate)
        for head, standing in found
        if standing
    ]


def _heads(services: PoolServices) -> list[PoolHeadView]:
    heads = services.joining.heads
    known = [(head, heads.standing(head.name)) for head in heads.known]
    return [PoolHeadView(**_head(heads, head, standing)) for head, standing in known if standing]


def _head(heads: Heads, head: Head, standing: HeadStatus) -> dict[str, Any]:
    faults = heads.faults(head.name)
    return {"name": head.name, "standing": standing, "url": head.url, "ready": not faults, "faults": list(faults)}
