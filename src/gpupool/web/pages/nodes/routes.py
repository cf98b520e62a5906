"""Pages of nodes and GPUs: state, cordon, drain, labels and sharing modes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import NodeName
from gpupool.api.schemas.bodies import CordonBody, LabelsBody
from gpupool.domain.nodes.gpu import NODE_POLICY, Node, NodeState
from gpupool.domain.nodes.sharing import Sharing, usable_policies
from gpupool.web.deps import SentForm, reads
from gpupool.web.kit import form_input as forms
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import AdministratorContext, Context, PageContext, handle_form
from gpupool.web.pages.nodes import view as views
from gpupool.web.pages.nodes.view import GpuLine, NodeLine, NodeReplica
from gpupool.web.pages.saved_views import saved_views
from gpupool.web.rendering import back_to

router = APIRouter()

GpuIndex = Annotated[int, Path(ge=0, le=1_000_000)]
NODES = (
    Column[NodeLine]("node", "Node", lambda row: row.name, link=lambda row: row.url, note=lambda row: row.notes),
    Column[NodeLine]("state", "State", lambda row: row.node.state, ColumnKind.STATE),
    Column[NodeLine]("gpus", "GPUs", lambda row: row.models),
    Column[NodeLine]("held", "Held", lambda row: row.held, ColumnKind.GPUS),
    Column[NodeLine]("free", "Free", lambda row: row.free, ColumnKind.GPUS),
    Column[NodeLine]("cpus", "CPUs", lambda row: f"{row.cpus_held:g} of {row.node.report.cpus:g}"),
    Column[NodeLine]("memory", "Memory", lambda row: row.node.report.memory_mib * 2.0**20, ColumnKind.BYTES),
    Column[NodeLine]("driver", "Driver", lambda row: row.node.report.driver_version or None),
    Column[NodeLine]("agent", "Agent", lambda row: row.node.report.agent_version),
    Column[NodeLine]("labels", "Labels", lambda row: row.labels),
    Column[NodeLine]("heard", "Last heartbeat", lambda row: row.heard_at, ColumnKind.TIME),
)
GPUS = (
    Column[GpuLine]("gpu", "GPU", lambda row: row.index, ColumnKind.NUMBER, link=lambda row: row.url),
    Column[GpuLine]("model", "Model", lambda row: row.gpu.model, link=lambda row: row.url),
    Column[GpuLine]("health", "Health", lambda row: row.health, ColumnKind.STATE, note=lambda row: row.note),
    Column[GpuLine]("held", "Held", lambda row: row.held, ColumnKind.GPUS),
    Column[GpuLine]("memory", "Memory", lambda row: row.gpu.memory_mib * 2.0**20, ColumnKind.BYTES),
    Column[GpuLine]("used", "In use", lambda row: row.memory_used, ColumnKind.BYTES),
    Column[GpuLine]("use", "Utilisation", lambda row: row.use, ColumnKind.PERCENT),
    Column[GpuLine]("temperature", "°C", lambda row: row.temperature, ColumnKind.NUMBER),
    Column[GpuLine]("power", "Watts", lambda row: row.power, ColumnKind.NUMBER),
    Column[GpuLine]("sharing", "Sharing mode", lambda row: row.mode or None),
    Column[GpuLine]("holders", "Held by", lambda row: row.holders),
)
RUNNING = (
    Column[NodeReplica]("workload", "Workload", lambda row: row.name, link=lambda row: f"/workloads/{row.workload}"),
    Column[NodeReplica]("replica", "Replica", lambda row: row.index, ColumnKind.NUMBER),
    Column[NodeReplica]("state", "State", lambda row: row.state, ColumnKind.STATE),
    Column[NodeReplica]("kind", "Kind", lambda row: row.kind),
    Column[NodeReplica]("user", "User", lambda row: row.user),
    Column[NodeReplica]("project", "Project", lambda row: row.project, link=lambda row: f"/projects/{row.project}"),
    Column[NodeReplica]("gpus", "GPUs", lambda row: row.permille, ColumnKind.GPUS),
    Column[NodeReplica]("since", "Since", lambda row: row.since, ColumnKind.TIME),
    Column[NodeReplica]("drain", "On drain", lambda row: row.fate),
)


@router.get("/nodes", dependencies=[reads(*table_names())])
async def nodes(context: Context) -> Response:
    """Show all nodes."""
    lines = await views.node_lines(context.services)
    gpus = [gpu for line in lines for gpu in line.gpus]
    return context.show(
        "nodes/nodes.html",
        "Nodes",
        views=await saved_views(context.request, context.services, context.visitor, "nodes"),
        table=listing(context.request, NODES, lines, name="nodes", default_sort="node"),
        up=sum(line.node.state is NodeState.UP for line in lines),
        gpus=len(gpus),
        held=sum(line.held for line in lines),
        unwell=[gpu for gpu in gpus if gpu.note],
    )


@router.get("/nodes/{name}", dependencies=[reads(*table_names(), *table_names("r-"))])
async def node(context: Context, name: NodeName) -> Response:
    """Show a node, its replicas and the effect of a drain."""
    return await _show_node(context, name)


async def _show_node(context: PageContext, name: str, typed: FormValues | None = None) -> Response:
    line = await views.one_node(context.services, name)
    there = views.running(await context.services.nodes.occupants(name))
    return context.show(
        "nodes/node.html",
        name,
        typed or _typed(line.node),
        line=line,
        gpus=listing(context.request, GPUS, line.gpus, name="gpus", default_sort="gpu"),
        running=listing(context.request, RUNNING, there, name="running", prefix="r-"),
        drained=sum(one.drained for one in there),
        protected=sum(not one.drained and one.state != "stopping" for one in there),
        reported=[label for label in line.node.report.labels.items() if label[0] not in line.node.labels],
        modes=_modes(line.node),
        events=await context.history(f"node {name}"),
    )


def _typed(node: Node) -> FormValues:
    labels = "\n".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
    return FormValues({"labels": labels, "mode": str(node.sharing.get(NODE_POLICY, ""))})


def _modes(node: Node) -> list[tuple[str, str]]:
    return [("", "node default"), *((str(mode), str(mode)) for mode in usable_policies(node.report.sharing))]


@router.post("/nodes/{name}/cordon")
async def cordon(context: AdministratorContext, form: SentForm, name: NodeName) -> Response:
    """Cordon a node, and evict its preemptible replicas if ``drain`` is selected."""
    drain = form.is_checked("drain")

    async def change() -> Response:
        forms.validate(CordonBody, {"reason": form.text("reason"), "drain": drain})
        await context.services.nodes.cordon(context.visitor, name, form.text("reason"), drain=drain)
        return back_to(f"/nodes/{name}", notice=f"{name} {'is draining' if drain else 'cordoned'}.")

    return await handle_form(form, change, lambda typed: _show_node(context, name, typed))


@router.post("/nodes/{name}/uncordon")
async def uncordon(context: AdministratorContext, form: SentForm, name: NodeName) -> Response:
    """Uncordon a node."""
    del form
    await context.services.nodes.uncordon(context.visitor, name)
    return back_to(f"/nodes/{name}", notice=f"{name} uncordoned.")


@router.post("/nodes/{name}/labels")
async def labels(context: AdministratorContext, form: SentForm, name: NodeName) -> Response:
    """Set the labels of the form and remove all other labels of the node."""

    async def change() -> Response:
        before = (await context.services.nodes.node(name)).labels
        put = forms.pairs(form, "labels")
        remove = [key for key in before if key not in put]
        forms.validate(LabelsBody, {"put": put, "remove": remove})
        fresh = {key: value for key, value in put.items() if before.get(key) != value}
        if fresh or remove:
            await context.services.nodes.set_labels(context.visitor, name, fresh, remove)
        return back_to(f"/nodes/{name}", notice="Saved." if fresh or remove else "No changes.")

    return await handle_form(form, change, lambda typed: _show_node(context, name, typed))


@router.post("/nodes/{name}/sharing")
async def sharing(context: AdministratorContext, form: SentForm, name: NodeName) -> Response:
    """Set the sharing mode of a node's GPUs."""

    async def change() -> Response:
        await context.services.nodes.set_sharing(context.visitor, name, None, forms.choice(form, "mode", Sharing))
        return back_to(f"/nodes/{name}", notice="Saved. Running workloads keep their mode.")

    return await handle_form(form, change, lambda typed: _show_node(context, name, typed))


# One GPU


@router.get("/nodes/{name}/gpus/{index}")
async def gpu(context: Context, name: NodeName, index: GpuIndex) -> Response:
    """Show a GPU: health, links, allocation and measurements."""
    return await _show_gpu(context, name, index)


async def _show_gpu(context: PageContext, name: str, index: int, typed: FormValues | None = None) -> Response:
    line = await views.one_node(context.services, name)
    found = views.find_gpu(line, index)
    links = views.topology(line.node)
    return context.show(
        "nodes/gpu.html",
        f"GPU {index} of {name}",
        typed or FormValues({"mode": str(line.node.sharing.get(found.gpu.uuid, ""))}),
        line=line,
        found=found,
        check=context.services.gpu_checks.latest.get(found.gpu.uuid),
        topology=links,
        explained=[] if links is None else views.link_meanings(links),
        siblings=views.siblings(line, found.gpu),
        modes=_modes(line.node),
    )


@router.post("/nodes/{name}/gpus/{index}/cordon")
async def cordon_gpu(context: AdministratorContext, form: SentForm, name: NodeName, index: GpuIndex) -> Response:
    """Cordon one GPU."""

    async def change() -> Response:
        forms.validate(CordonBody, {"reason": form.text("reason"), "gpu": index})
        await context.services.nodes.cordon_gpu(context.visitor, name, index, form.text("reason"))
        return back_to(f"/nodes/{name}/gpus/{index}", notice=f"GPU {index} cordoned.")

    return await handle_form(form, change, lambda typed: _show_gpu(context, name, index, typed))


@router.post("/nodes/{name}/gpus/{index}/uncordon")
async def uncordon_gpu(context: AdministratorContext, form: SentForm, name: NodeName, index: GpuIndex) -> Response:
    """Uncordon one GPU."""
    del form
    await context.services.nodes.uncordon_gpu(context.visitor, name, index)
    return back_to(f"/nodes/{name}/gpus/{index}", notice=f"GPU {index} uncordoned.")


@router.post("/nodes/{name}/gpus/{index}/sharing")
async def gpu_sharing(context: AdministratorContext, form: SentForm, name: NodeName, index: GpuIndex) -> Response:
    """Set the sharing mode of one GPU."""
    await context.services.nodes.set_sharing(context.visitor, name, index, forms.choice(form, "mode", Sharing))
    return back_to(f"/nodes/{name}/gpus/{index}", notice="Saved. Running workloads keep their mode.")
