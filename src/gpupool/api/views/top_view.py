"""The data of ``gpupool top``, from one snapshot of the pool."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpupool.api.schemas.base import View
from gpupool.api.schemas.top import TopGpuView, TopNodeView, TopSliceView, TopUserView, TopView, TopWorkloadView
from gpupool.domain.nodes.gpu import Gpu, GpuShare, Node
from gpupool.domain.nodes.telemetry import GpuSample, ReplicaSample
from gpupool.domain.work.workload import Workload
from gpupool.services.metrics.snapshot import MetricsSnapshot, OpenLease, held_permille

MAX_WORKLOADS = 1_000
AT_ONCE = 64  # views created before other tasks may run
GPUS_OF_A_NODE = 8  # a usual number of slices


async def top_view(snapshot: MetricsSnapshot) -> TopView:
    """Return all data of ``top``; other tasks run meanwhile."""
    slices: dict[str, list[TopSliceView]] = defaultdict(list)
    for count, held in enumerate(sorted(snapshot.holdings, key=lambda h: h.lease.epoch)):
        for share in held.lease.shares:
            slices[share.gpu_uuid].append(_slice(held, share))
        await _breathe(count)
    looks = {look.gpu_uuid: look for sample in snapshot.samples.values() for look in sample.gpus}
    nodes = []
    for count, node in enumerate(snapshot.nodes):
        nodes.append(_node(snapshot, node, slices, looks))
        await _breathe(count * GPUS_OF_A_NODE)
    return TopView.model_construct(
        at=snapshot.now,
        nodes=nodes,
        workloads=await _workloads(snapshot),
        workloads_left_out=max(0, len(snapshot.workloads) - MAX_WORKLOADS),
        users=_users(snapshot),
    )


async def written(view: TopView) -> str:
    """Yield the view as JSON in parts, because one large part would delay the scheduler."""
    pieces: dict[str, list[str]] = {"nodes": [], "workloads": []}
    for name, made in pieces.items():
        items: Sequence[View] = getattr(view, name)
        every = GPUS_OF_A_NODE if name == "nodes" else 1
        for count, item in enumerate(items):
            made.append(item.model_dump_json())
            await _breathe(count * every)
    rest = view.model_dump_json(exclude=set(pieces))
    listed = "".join(f'"{name}":[{",".join(made)}],' for name, made in pieces.items())
    return f"{{{listed}{rest[1:]}"


async def _breathe(count: int) -> None:
    """Let other tasks run from time to time."""
    if count % AT_ONCE == 0:
        await asyncio.sleep(0)


def _node(
    snapshot: MetricsSnapshot, node: Node, slices: dict[str, list[TopSliceView]], looks: dict[str, GpuSample]
) -> TopNodeView:
    sample = snapshot.samples.get(node.name)
    return TopNodeView.unchecked(
        node,
        cpus=node.report.cpus,
        cpus_used=None if sample is None else sample.cpu_percent / 100,
        memory_mib=node.report.memory_mib,
        memory_used_mib=None if sample is None else sample.memory_used_mib,
        gpus=[_gpu(gpu, looks.get(gpu.uuid), slices.get(gpu.uuid, [])) for gpu in node.report.gpus],
    )


def _gpu(gpu: Gpu, look: GpuSample | None, slices: list[TopSliceView]) -> TopGpuView:
    return TopGpuView.unchecked(
        gpu,
        memory_used_mib=gpu.memory_used_mib if look is None else look.memory_used_mib,
        utilisation_percent=gpu.utilisation_percent if look is None else look.utilisation_percent,
        power_w=None if look is None else look.power_w,
        temperature_c=None if look is None else look.temperature_c,
        sm_clock_mhz=None if look is None else look.sm_clock_mhz,
        slices=slices,
    )


def _slice(held: OpenLease, share: GpuShare) -> TopSliceView:
    """Divide the measured use of a lease equally over its GPUs."""
    lease, parts = held.lease, len(held.lease.shares)
    busy, memory = held.busy_percent, _memory(held.looks)
    return TopSliceView.unchecked(
        lease,
        name=held.workload.name if held.workload is not None else lease.workload,
        permille=share.permille,
        memory_mib=share.memory_mib,
        since=lease.granted_at,
        idle_s=held.idle_s,
        busy_percent=None if busy is None else busy / parts,
        memory_used_mib=None if memory is None else memory // parts,
    )


def _memory(looks: Sequence[ReplicaSample]) -> int | None:
    return sum(look.gpu_memory_mib for look in looks) if looks else None


async def _workloads(snapshot: MetricsSnapshot) -> list[TopWorkloadView]:
    """Sort by held GPUs, largest first, then by waiting time, longest first."""
    holdings: dict[str, list[OpenLease]] = defaultdict(list)
    for held in snapshot.holdings:
        holdings[held.lease.workload].append(held)
    await asyncio.sleep(0)
    permille = {workload: held_permille(found) for workload, found in holdings.items()}
    ordered = sorted(snapshot.workloads, key=lambda row: (-permille.get(row[0].id, 0), row[0].created_at))
    views = []
    for count, (workload, waiting) in enumerate(ordered[:MAX_WORKLOADS]):
        views.append(_workload(workload, waiting, holdings.get(workload.id, ())))
        await _breathe(count)
    return views


def _workload(workload: Workload, waiting: int, holdings: Sequence[OpenLease]) -> TopWorkloadView:
    looks = [look for held in holdings for look in held.looks]
    idle = [held.idle_s for held in holdings if held.idle_s is not None]
    return TopWorkloadView.unchecked(
        workload,
        permille=sum(held.lease.permille for held in holdings),
        running=len(holdings),
        waiting=waiting,
        idle_s=min(idle, default=None),
        busy_percent=_sum(held.busy_percent for held in holdings),
        memory_used_mib=_memory(looks),
        cpu_percent=sum(look.cpu_percent for look in looks) if looks else None,
        ram_used_mib=sum(look.memory_mib for look in looks) if looks else None,
    )


def _users(snapshot: MetricsSnapshot) -> list[TopUserView]:
    holdings: dict[str, list[OpenLease]] = defaultdict(list)
    waiting: dict[str, int] = defaultdict(int)
    for held in snapshot.holdings:
        holdings[held.lease.user].append(held)
    for workload, pending in snapshot.workloads:
        waiting[workload.user] += pending
    found = [_user(name, holdings.get(name, []), waiting.get(name, 0)) for name in {*holdings, *waiting}]
    return sorted(found, key=lambda user: (-user.permille, -user.waiting, user.user))


def _user(name: str, holdings: Sequence[OpenLease], waiting: int) -> TopUserView:
    return TopUserView.model_construct(
        user=name,
        permille=sum(held.lease.permille for held in holdings),
        idle_permille=sum(held.lease.permille for held in holdings if held.idle),
        busy_percent=_sum(held.busy_percent for held in holdings),
        running=len(holdings),
        waiting=waiting,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
