"""Machines and GPUs: looking at them, cordoning, draining, labels and sharing modes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import NodeName
from gpupool.api.schemas import CordonBody, LabelsBody
from gpupool.domain.gpu import NODE_POLICY, Node, NodeState, Sharing
from gpupool.domain.sharing import POLICIES
from gpupool.web.asked import Ask, Asked, attempt
from gpupool.web.deps import SentForm
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import back_to
from gpupool.web.views import nodes as views
from gpupool.web.views import typed as forms
from gpupool.web.views.nodes import GpuLine, NodeLine, Running
from gpupool.web.views.typed import Typed

router = APIRouter()

GpuIndex = Annotated[int, Path(ge=0, le=1_000_000)]
NODES = (
    Column[NodeLine]("node", "Node", lambda row: row.name, link=lambda row: row.url, note=lambda row: row.notes),
    Column[NodeLine]("state", "State", lambda row: row.node.state, Kind.STATE),
    Column[NodeLine]("gpus", "GPUs", lambda row: row.models),
    Column[NodeLine]("held", "Held", lambda row: row.held, Kind.GPUS),
    Column[NodeLine]("free", "Free", lambda row: row.free, Kind.GPUS),
    Column[NodeLine]("cpus", "CPUs", lambda row: f"{row.cpus_held:g} of {row.node.report.cpus:g}"),
    Column[NodeLine]("memory", "Memory", lambda row: row.node.report.memory_mib * 2.0**20, Kind.BYTES),
    Column[NodeLine]("driver", "Driver", lambda row: row.node.report.driver_version or None),
    Column[NodeLine]("agent", "Agent", lambda row: row.node.report.agent_version),
    Column[NodeLine]("labels", "Labels", lambda row: row.labels),
    Column[NodeLine]("heard", "Last heard", lambda row: row.heard_at, Kind.TIME),
)
GPUS = (
    Column[GpuLine]("gpu", "GPU", lambda row: row.index, Kind.NUMBER, link=lambda row: row.url),
    Column[GpuLine]("model", "Model", lambda row: row.gpu.model, link=lambda row: row.url),
    Column[GpuLine]("health", "Health", lambda row: row.health, Kind.STATE, note=lambda row: row.note),
    Column[GpuLine]("held", "Held", lambda row: row.held, Kind.GPUS),
    Column[GpuLine]("memory", "Memory", lambda row: row.gpu.memory_mib * 2.0**20, Kind.BYTES),
    Column[GpuLine]("used", "In use", lambda row: row.memory_used, Kind.BYTES),
    Column[GpuLine]("use", "Utilisation", lambda row: row.use, Kind.PERCENT),
    Column[GpuLine]("temperature", "°C", lambda row: row.temperature, Kind.NUMBER),
    Column[GpuLine]("power", "Watts", lambda row: row.power, Kind.NUMBER),
    Column[GpuLine]("sharing", "Parts by", lambda row: row.mode or None),
    Column[GpuLine]("holders", "Who", lambda row: row.holders),
)
RUNNING = (
    Column[Running]("workload", "Workload", lambda row: row.name, link=lambda row: f"/workloads/{row.workload}"),
    Column[Running]("replica", "Replica", lambda row: row.index, Kind.NUMBER),
    Column[Running]("state", "State", lambda row: row.state, Kind.STATE),
    Column[Running]("kind", "Kind", lambda row: row.kind),
    Column[Running]("user", "User", lambda row: row.user),
    Column[Running]("project", "Project", lambda row: row.project, link=lambda row: f"/projects/{row.project}"),
    Column[Running]("gpus", "GPUs", lambda row: row.permille, Kind.GPUS),
    Column[Running]("since", "Since", lambda row: row.since, Kind.TIME),
    Column[Running]("drain", "In a drain it", lambda row: row.fate),
)


@router.get("/nodes")
async def nodes(ask: Ask) -> Response:
    """All machines."""
    lines = await views.node_lines(ask.services)
    gpus = [gpu for line in lines for gpu in line.gpus]
    return ask.show(
        "nodes.html",
        "Nodes",
        table=listing(ask.request, NODES, lines, name="nodes", default_sort="node"),
        up=sum(line.node.state is NodeState.UP for line in lines),
        gpus=len(gpus),
        held=sum(line.held for line in lines),
        unwell=[gpu for gpu in gpus if gpu.note],
    )


@router.get("/nodes/{name}")
async def node(ask: Ask, name: NodeName) -> Response:
    """One machine, what runs there and what a drain would end."""
    return await _show_node(ask, name)


async def _show_node(ask: Asked, name: str, typed: Typed | None = None) -> Response:
    line = await views.one_node(ask.services, name)
    there = views.running(await ask.services.nodes.occupants(name))
    return ask.show(
        "node.html",
        name,
        typed or _typed(line.node),
        line=line,
        gpus=listing(ask.request, GPUS, line.gpus, name="gpus", default_sort="gpu"),
        running=listing(ask.request, RUNNING, there, name="running", prefix="r-"),
        drained=sum(one.drained for one in there),
        protected=sum(not one.drained and one.state != "stopping" for one in there),
        reported=[label for label in line.node.report.labels.items() if label[0] not in line.node.labels],
        modes=_modes(line.node),
        events=await ask.history(f"node {name}"),
    )


def _typed(node: Node) -> Typed:
    labels = "\n".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
    return Typed({"labels": labels, "mode": str(node.sharing.get(NODE_POLICY, ""))})


def _modes(node: Node) -> list[tuple[str, str]]:
    offered = node.report.sharing
    known = [mode for mode in POLICIES if not offered or mode is Sharing.WHOLE or mode in offered]
    return [("", "as the node has it"), *((str(mode), str(mode)) for mode in known)]


@router.post("/nodes/{name}/cordon")
async def cordon(ask: Ask, form: SentForm, name: NodeName) -> Response:
    """Let a machine take nothing new, and send its training away if it is drained."""
    drain = form.ticked("drain")

    async def change() -> Response:
        forms.accepted(CordonBody, {"reason": form.text("reason"), "drain": drain})
        await ask.services.nodes.cordon(ask.visitor, name, form.text("reason"), drain=drain)
        return back_to(f"/nodes/{name}", said=f"{name} {'is drained' if drain else 'takes nothing new'}.")

    return await attempt(form, change, lambda typed: _show_node(ask, name, typed))


@router.post("/nodes/{name}/uncordon")
async def uncordon(ask: Ask, form: SentForm, name: NodeName) -> Response:
    """Let a machine take work again."""
    del form
    await ask.services.nodes.uncordon(ask.visitor, name)
    return back_to(f"/nodes/{name}", said=f"{name} takes work again.")


@router.post("/nodes/{name}/labels")
async def labels(ask: Ask, form: SentForm, name: NodeName) -> Response:
    """Put the labels that are written, and take away those of before that are not."""

    async def change() -> Response:
        before = (await ask.services.nodes.node(name)).labels
        put = forms.pairs(form, "labels")
        remove = [key for key in before if key not in put]
        forms.accepted(LabelsBody, {"put": put, "remove": remove})
        fresh = {key: value for key, value in put.items() if before.get(key) != value}
        if fresh or remove:
            await ask.services.nodes.set_labels(ask.visitor, name, fresh, remove)
        return back_to(f"/nodes/{name}", said="Saved." if fresh or remove else "Nothing was changed.")

    return await attempt(form, change, lambda typed: _show_node(ask, name, typed))


@router.post("/nodes/{name}/sharing")
async def sharing(ask: Ask, form: SentForm, name: NodeName) -> Response:
    """Choose how parts of its GPUs are shared from now on."""

    async def change() -> Response:
        await ask.services.nodes.set_sharing(ask.visitor, name, None, forms.choice(form, "mode", Sharing))
        return back_to(f"/nodes/{name}", said="Saved; what runs keeps its mode.")

    return await attempt(form, change, lambda typed: _show_node(ask, name, typed))


# One GPU


@router.get("/nodes/{name}/gpus/{index}")
async def gpu(ask: Ask, name: NodeName, index: GpuIndex) -> Response:
    """One GPU: health, links, holders, and what was measured of it."""
    line = await views.one_node(ask.services, name)
    found = views.find_gpu(line, index)
    links = views.topology(line.node)
    return ask.show(
        "gpu.html",
        f"GPU {index} of {name}",
        Typed({"mode": str(line.node.sharing.get(found.gpu.uuid, ""))}),
        line=line,
        found=found,
        topology=links,
        explained=[] if links is None else views.explained(links),
        siblings=views.siblings(line, found.gpu),
        modes=_modes(line.node),
    )


@router.post("/nodes/{name}/gpus/{index}/sharing")
async def gpu_sharing(ask: Ask, form: SentForm, name: NodeName, index: GpuIndex) -> Response:
    """Choose how parts of one GPU are shared from now on."""
    await ask.services.nodes.set_sharing(ask.visitor, name, index, forms.choice(form, "mode", Sharing))
    return back_to(f"/nodes/{name}/gpus/{index}", said="Saved; what runs keeps its mode.")
