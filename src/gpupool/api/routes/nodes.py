"""Machines and their GPUs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api import assemble
from gpupool.api.assemble import Viewer
from gpupool.api.deps import Caller, NodeName, Services, answer
from gpupool.api.schemas import (
    CordonBody,
    GpuList,
    LabelsBody,
    LostBody,
    NodeList,
    NodeLost,
    NodeView,
    SharingBody,
)

router = APIRouter(prefix="/v1", tags=["nodes"])


@router.get("/nodes", response_model=NodeList)
async def list_nodes(services: Services, caller: Caller) -> Response:
    """All machines with their GPUs and who holds them."""
    viewer, names = Viewer(caller, local=False), dict[str, str]()
    nodes = [await assemble.node_view(services, viewer, node, names) for node in await services.nodes.nodes()]
    return answer(NodeList(nodes=nodes))


@router.get("/nodes/{name}", response_model=NodeView)
async def get_node(services: Services, caller: Caller, name: NodeName) -> Response:
    """One machine, its GPUs looked at anew."""
    node = await services.nodes.refresh(name)
    return answer(await assemble.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/cordon", response_model=NodeView)
async def cordon(services: Services, caller: Caller, name: NodeName, body: CordonBody) -> Response:
    """Let a machine take nothing new, and if it is drained send its training away. For administrators."""
    node = await services.nodes.cordon(caller, name, body.reason, drain=body.drain)
    return answer(await assemble.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/uncordon", response_model=NodeView)
async def uncordon(services: Services, caller: Caller, name: NodeName) -> Response:
    """Let a machine take work again. For administrators."""
    node = await services.nodes.uncordon(caller, name)
    return answer(await assemble.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/lost", response_model=NodeLost)
async def declare_lost(services: Services, caller: Caller, name: NodeName, body: LostBody) -> Response:
    """Give up all work of a machine that is known to be off, and run elsewhere what may be. For administrators."""
    return answer(NodeLost(replicas=await services.nodes.declare_lost(caller, name, body.reason)))


@router.delete("/nodes/{name}", status_code=204)
async def remove(services: Services, caller: Caller, name: NodeName) -> Response:
    """Forget a machine that has left and holds nothing. For administrators."""
    await services.nodes.remove(caller, name)
    return Response(status_code=204)


@router.post("/nodes/{name}/sharing", response_model=NodeView)
async def set_sharing(services: Services, caller: Caller, name: NodeName, body: SharingBody) -> Response:
    """Choose how parts of its GPUs are shared from now on; what runs keeps its mode. For administrators."""
    node = await services.nodes.set_sharing(caller, name, body.gpu, body.mode)
    return answer(await assemble.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/labels", response_model=NodeView)
async def set_labels(services: Services, caller: Caller, name: NodeName, body: LabelsBody) -> Response:
    """Put labels on a machine, over those that it reports, or take such away. For administrators."""
    node = await services.nodes.set_labels(caller, name, body.put, body.remove)
    return answer(await assemble.node_view(services, Viewer(caller, local=False), node, {}))


@router.get("/gpus", response_model=GpuList)
async def list_gpus(services: Services, caller: Caller) -> Response:
    """All GPUs and who holds them."""
    viewer, names = Viewer(caller, local=False), dict[str, str]()
    nodes = [await assemble.node_view(services, viewer, node, names) for node in await services.nodes.nodes()]
    return answer(GpuList(gpus=[gpu for node in nodes for gpu in node.gpus]))
