"""Nodes, their GPUs and container images."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Administrator, Caller, NodeName, Search, Services, Word, answer
from gpupool.api.paging import Paged, contains, matches
from gpupool.api.schemas.bodies import CordonBody, LabelsBody, LostBody, SharingBody, UncordonBody
from gpupool.api.schemas.nodes.nodes import (
    GpuList,
    ImageBody,
    ImageJobView,
    ImageList,
    ImageView,
    NodeList,
    NodeLost,
    NodeView,
    PieceBody,
    PieceView,
)
from gpupool.api.views import workload_view
from gpupool.api.views.workload_view import Viewer
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuHealth, NodeState

router = APIRouter(prefix="/v1", tags=["nodes"])


@router.get("/nodes", response_model=NodeList)
async def list_nodes(
    *,
    services: Services,
    caller: Caller,
    page: Paged,
    search: Search | None = None,
    state: NodeState | None = None,
    model: Word | None = None,
) -> Response:
    """List the nodes that match all filters with their GPUs and the holders of these."""
    viewer, names = Viewer(caller, local=False), dict[str, str]()
    found = [
        node
        for node in await services.nodes.nodes()
        if contains(search, node.name)
        and matches(state, node.state)
        and (model is None or any(contains(model, gpu.model) for gpu in node.report.gpus))
    ]
    rows, following = page.cut(found)
    nodes = [await workload_view.node_view(services, viewer, node, names) for node in rows]
    return answer(NodeList(nodes=nodes, next_cursor=following))


@router.get("/nodes/{name}", response_model=NodeView)
async def get_node(services: Services, caller: Caller, name: NodeName) -> Response:
    """Return one node with fresh GPU data."""
    node = await services.nodes.refresh(name)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/cordon", response_model=NodeView)
async def cordon_node(services: Services, caller: Administrator, name: NodeName, body: CordonBody) -> Response:
    """Cordon a node or one GPU of it; with ``drain`` also evict the training of the node. For administrators."""
    if body.gpu is None:
        node = await services.nodes.cordon(caller, name, body.reason, drain=body.drain)
    else:
        node = await services.nodes.cordon_gpu(caller, name, body.gpu, body.reason)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/uncordon", response_model=NodeView)
async def uncordon_node(
    services: Services, caller: Administrator, name: NodeName, body: UncordonBody | None = None
) -> Response:
    """Uncordon a node, or one of its GPUs. For administrators."""
    if body is None or body.gpu is None:
        node = await services.nodes.uncordon(caller, name)
    else:
        node = await services.nodes.uncordon_gpu(caller, name, body.gpu)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/lost", response_model=NodeLost)
async def declare_node_lost(services: Services, caller: Administrator, name: NodeName, body: LostBody) -> Response:
    """Declare a node lost that is known to be off; its work is retried where allowed. For administrators."""
    return answer(NodeLost(replicas=await services.nodes.declare_lost(caller, name, body.reason)))


@router.delete("/nodes/{name}", status_code=204)
async def remove_node(services: Services, caller: Administrator, name: NodeName) -> Response:
    """Remove a node that has left and holds nothing. For administrators."""
    await services.joining.remove(caller, name)
    return Response(status_code=204)


@router.post("/nodes/{name}/sharing", response_model=NodeView)
async def set_node_sharing(services: Services, caller: Administrator, name: NodeName, body: SharingBody) -> Response:
    """Set the sharing mode for parts of its GPUs; running programs keep their mode. For administrators."""
    node = await services.nodes.set_sharing(caller, name, body.gpu, body.mode)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/labels", response_model=NodeView)
async def set_node_labels(services: Services, caller: Administrator, name: NodeName, body: LabelsBody) -> Response:
    """Set labels of a node, which override those that it reports, or remove set labels. For administrators."""
    node = await services.nodes.set_labels(caller, name, body.put, body.remove)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.get("/gpus", response_model=GpuList)
async def list_gpus(  # noqa: PLR0913 - each is a query parameter of the route
    *,
    services: Services,
    caller: Caller,
    page: Paged,
    node: Word | None = None,
    model: Annotated[Word | None, Query(description="A part of the model's name.")] = None,
    health: GpuHealth | None = None,
    available: bool | None = None,
) -> Response:
    """List the GPUs that match all filters, and their holders."""
    viewer, names = Viewer(caller, local=False), dict[str, str]()
    nodes = [one for one in await services.nodes.nodes() if matches(node, one.name)]
    views = [await workload_view.node_view(services, viewer, one, names) for one in nodes]
    found = [
        gpu
        for view in views
        for gpu in view.gpus
        if contains(model, gpu.model) and matches(health, gpu.health) and matches(available, gpu.available)
    ]
    rows, following = page.cut(found)
    return answer(GpuList(gpus=list(rows), next_cursor=following))


images_router = APIRouter(prefix="/v1", tags=["images"])
ImageJob = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="The name of a job.")]
ImageInQuery = Annotated[str, Query(min_length=1, max_length=512, description="An image's name.")]


@images_router.get("/images", response_model=ImageList)
async def list_images(
    services: Services, _caller: Caller, page: Paged, search: Search | None = None, node: Word | None = None
) -> Response:
    """List the images of all nodes that match all filters."""
    nodes = [each for each in await services.images.list() if matches(node, each.node)]
    images = [ImageView(node=each.node, **image) for each in nodes for image in each.images]
    rows, following = page.cut([image for image in images if contains(search, image.name)])
    unknown = {each.node: each.error for each in nodes if each.error}
    return answer(ImageList(images=list(rows), unknown=unknown, next_cursor=following))


@images_router.post("/nodes/{name}/images/pieces", response_model=PieceView)
async def upload_image_piece(services: Services, caller: Administrator, name: NodeName, body: PieceBody) -> Response:
    """Upload a piece of an archive to a node. For administrators."""
    try:
        data = base64.b64decode(body.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "The piece is not base64.") from error
    return answer(PieceView(size=await services.images.put(caller, name, body.upload, body.offset, data)))


@images_router.post("/nodes/{name}/images", response_model=ImageJobView)
async def add_image(services: Services, caller: Administrator, name: NodeName, body: ImageBody) -> Response:
    """Import an uploaded archive, or pull an image from its registry. For administrators."""
    if body.upload is not None:
        return answer(ImageJobView(job=await services.images.import_archive(caller, name, body.upload, body.name)))
    return answer(ImageJobView(job=await services.images.pull(caller, name, body.name)))


@images_router.get("/nodes/{name}/images/jobs/{job}", response_model=ImageJobView)
async def get_image_job(services: Services, caller: Administrator, name: NodeName, job: ImageJob) -> Response:
    """Return the progress of an image job; if it failed, the answer is its error. For administrators."""
    return answer(ImageJobView(job=job, **await services.images.job(caller, name, job)))


@images_router.delete("/nodes/{name}/images", status_code=204)
async def remove_image(services: Services, caller: Administrator, name: NodeName, image: ImageInQuery) -> Response:
    """Delete an image of a node. For administrators."""
    await services.images.remove(caller, name, image)
    return Response(status_code=204)
