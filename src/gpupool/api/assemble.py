"""Gathers what one view needs from several services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpupool.api import mapping
from gpupool.api.mapping import Holding, Shown
from gpupool.api.schemas import GpuView, HeadAddressView, NodeView, PoolHeadView, PoolView, WorkloadDetail, WorkloadView
from gpupool.domain.access import Actor
from gpupool.domain.errors import GpupoolError
from gpupool.domain.gpu import Gpu, Node, NodeState
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.workload import Lease, Replica, ReplicaState, Workload, WorkloadState
from gpupool.services.pool import PoolServices

_ATTACHABLE = {ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING}


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks, and whether over the unix socket of this machine (where attach sockets can be reached)."""

    actor: Actor
    local: bool


async def workload_view(services: PoolServices, viewer: Viewer, workload: Workload) -> WorkloadView:
    """One line of a listing."""
    replicas, leases = await _parts(services, viewer.actor, workload)
    private = services.workloads.can_see(viewer.actor, workload)
    return mapping.workload_view(workload, replicas, leases, Shown(private))


async def workload_detail(
    services: PoolServices, viewer: Viewer, workload: Workload, replicas_from: int = 0
) -> WorkloadDetail:
    """Everything about a workload that the viewer may see."""
    replicas = await services.workloads.replicas_of(viewer.actor, workload)
    leases = await services.workloads.leases_of(viewer.actor, workload)
    replicas = [services.nodes.with_silence(replica) for replica in replicas]
    relayed = frozenset(r.index for r in replicas if not _is_here(services, r))
    paths = _attach_paths(services, viewer, workload, replicas)
    placed = (r.index for r in replicas if r.state in _ATTACHABLE)
    attachable = frozenset(index for index in placed if services.workloads.attach_path(workload, index))
    shown = Shown(services.workloads.can_see(viewer.actor, workload), paths, attachable, relayed)
    return mapping.workload_detail(workload, replicas, leases, shown, replicas_from)


async def _parts(services: PoolServices, actor: Actor, workload: Workload) -> tuple[Sequence[Replica], Sequence[Lease]]:
    replicas = await services.workloads.replicas_of(actor, workload)
    if workload.state.final:
        return replicas, ()
    return replicas, await services.workloads.leases_of(actor, workload)


def _attach_paths(
    services: PoolServices, viewer: Viewer, workload: Workload, replicas: Iterable[Replica]
) -> dict[int, str]:
    if not viewer.local or not services.workloads.can_manage(viewer.actor, workload):
        return {}
    placed = (r.index for r in replicas if r.state in _ATTACHABLE and _is_here(services, r))
    return {index: services.workloads.attach_path(workload, index) for index in placed}


def _is_here(services: PoolServices, replica: Replica) -> bool:
    """Whether a replica's sockets are on this machine; where it is not said which node that is, there is only one."""
    return not services.info.own_node or replica.node in {None, services.info.own_node}


async def node_view(services: PoolServices, viewer: Viewer, node: Node, names: dict[str, str]) -> NodeView:
    """A node with its GPUs and their holders; ``names`` remembers the names of workloads between calls."""
    views: list[GpuView] = []
    for gpu in node.report.gpus:
        holdings = await _holdings(services, viewer, gpu, names)
        views.append(mapping.gpu_view(gpu, node, holdings))
    seen = mapping.node_view(node, views, services.nodes.leases_on(node.name))
    head = services.joining.heads.standing(node.name)
    return seen.model_copy(update={"silent_s": services.nodes.silent_s(node.name), "head": head})


async def _holdings(services: PoolServices, viewer: Viewer, gpu: Gpu, names: dict[str, str]) -> list[Holding]:
    held = await services.nodes.holders(gpu.uuid)
    return [Holding(lease, share, await _name_of(services, viewer, lease, names)) for lease, share in held]


async def _name_of(services: PoolServices, viewer: Viewer, lease: Lease, names: dict[str, str]) -> str:
    if lease.workload not in names:
        try:
            names[lease.workload] = (await services.workloads.get(viewer.actor, lease.workload)).name
        except GpupoolError:
            names[lease.workload] = ""
    return names[lease.workload]


async def pool_view(services: PoolServices) -> PoolView:
    """The pool and how busy it is."""
    info = services.info
    nodes = await services.nodes.nodes()
    gpus = [gpu for node in nodes for gpu in node.report.gpus]
    loads = [await services.access.project_load(project.name) for project in await services.access.projects()]
    counts = await services.workloads.counts()
    return PoolView(
        version=info.version,
        pool_id=info.pool_id,
        kind="system" if info.kind == "system" else "user",
        started_at=info.started_at,
        state_dir=info.state_dir,
        emulated=any(node.report.emulated for node in nodes),
        warnings=[f"{node.name}: {warning}" for node in nodes for warning in node.report.warnings],
        nodes=len(nodes),
        nodes_up=sum(node.state is not NodeState.DOWN for node in nodes),
        gpus=len(gpus),
        gpu_permille_total=len(gpus) * WHOLE_GPU,
        gpu_permille_allocated=sum(allocated for allocated, _ in loads),
        queued=counts.get(WorkloadState.QUEUED, 0),
        running=counts.get(WorkloadState.RUNNING, 0),
        listen=info.listen,
        time_zone=info.time_zone,
        dashboard=info.dashboard,
        heads=_heads(services),
    )


async def head_addresses(services: PoolServices) -> list[HeadAddressView]:
    """Where all heads are, as it is written down; none where only this machine can lead."""
    heads = services.joining.heads
    found = [(head, heads.standing(head.name)) for head in await heads.refresh()]
    return [
        HeadAddressView(name=head.name, standing=standing, url=head.url, certificate=head.certificate)
        for head, standing in found
        if standing
    ]


def _heads(services: PoolServices) -> list[PoolHeadView]:
    heads = services.joining.heads
    known = [(head, heads.standing(head.name)) for head in heads.known]
    return [PoolHeadView(name=head.name, standing=standing, url=head.url) for head, standing in known if standing]
