"""Nodes, their GPUs and container images."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Administrator, Caller, NodeName, Services, answer
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

router = APIRouter(prefix="/v1", tags=["nodes"])


@router.get("/nodes", response_model=NodeList)
async def list_nodes(services: Services, caller: Caller) -> Response:
    """All machines with their GPUs and who holds them."""
    viewer, names = Viewer(caller, local=False), dict[str, str]()
    nodes = [await workload_view.node_view(services, viewer, node, names) for node in await services.nodes.nodes()]
    return answer(NodeList(nodes=nodes))


@router.get("/nodes/{name}", response_model=NodeView)
async def get_node(services: Services, caller: Caller, name: NodeName) -> Response:
    """One machine, its GPUs looked at anew."""
    node = await services.nodes.refresh(name)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/cordon", response_model=NodeView)
async def cordon(services: Services, caller: Administrator, name: NodeName, body: CordonBody) -> Response:
    """Let a machine or one GPU take nothing new, and if it is drained send its training away. For administrators."""
    if body.gpu is None:
        node = await services.nodes.cordon(caller, name, body.reason, drain=body.drain)
    else:
        node = await services.nodes.cordon_gpu(caller, name, body.gpu, body.reason)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/uncordon", response_model=NodeView)
async def uncordon(
    services: Services, caller: Administrator, name: NodeName, body: UncordonBody | None = None
) -> Response:
    """Let a machine, or one of its GPUs, take work again. For administrators."""
    if body is None or body.gpu is None:
        node = await services.nodes.uncordon(caller, name)
    else:
        node = await services.nodes.uncordon_gpu(caller, name, body.gpu)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/lost", response_model=NodeLost)
async def declare_lost(services: Services, caller: Administrator, name: NodeName, body: LostBody) -> Response:
    """Give up all work of a machine that is known to be off, and run elsewhere what may be. For administrators."""
    return answer(NodeLost(replicas=await services.nodes.declare_lost(caller, name, body.reason)))


@router.delete("/nodes/{name}", status_code=204)
async def remove(services: Services, caller: Administrator, name: NodeName) -> Response:
    """Forget a machine that has left and holds nothing. For administrators."""
    await services.joining.remove(caller, name)
    return Response(status_code=204)


@router.post("/nodes/{name}/sharing", response_model=NodeView)
async def set_sharing(services: Services, caller: Administrator, name: NodeName, body: SharingBody) -> Response:
    """Choose how parts of its GPUs are shared from now on; what runs keeps its mode. For administrators."""
    node = await services.nodes.set_sharing(caller, name, body.gpu, body.mode)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.post("/nodes/{name}/labels", response_model=NodeView)
async def set_labels(services: Services, caller: Administrator, name: NodeName, body: LabelsBody) -> Response:
    """Put labels on a machine, over those that it reports, or take such away. For administrators."""
    node = await services.nodes.set_labels(caller, name, body.put, body.remove)
    return answer(await workload_view.node_view(services, Viewer(caller, local=False), node, {}))


@router.get("/gpus", response_model=GpuList)
async def list_gpus(services: Services, caller: Caller) -> Response:
    """All GPUs and who holds them."""
    viewer, names = Viewer(caller, local=False), dict[str, str]()
    nodes = [await workload_view.node_view(services, viewer, node, names) for node in await services.nodes.nodes()]
    return answer(GpuList(gpus=[gpu for node in nodes for gpu in node.gpus]))


images_router = APIRouter(prefix="/v1", tags=["images"])
ImageJob = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="The name of a job.")]
ImageInQuery = Annotated[str, Query(min_length=1, max_length=512, description="An image's name.")]


@images_router.get("/images", response_model=ImageList)
async def list_images(services: Services, caller: Caller) -> Response:  # noqa: ARG001 - who asks has to be known
    """Return the images of all nodes."""
    found = await services.images.list()
    images = [ImageView(node=each.node, **image) for each in found for image in each.images]
    return answer(ImageList(images=images, unknown={each.node: each.error for each in found if each.error}))


@images_router.post("/nodes/{name}/images/pieces", response_model=PieceView)
async def put_piece(services: Services, caller: Administrator, name: NodeName, body: PieceBody) -> Response:
    """Bring a piece of an archive to a node. For administrators."""
    try:
        data = base64.b64decode(body.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "The piece is not base64.") from error
    return answer(PieceView(size=await services.images.put(caller, name, body.upload, body.offset, data)))


@images_router.post("/nodes/{name}/images", response_model=ImageJobView)
async def bring(services: Services, caller: Administrator, name: NodeName, body: ImageBody) -> Response:
    """Take in an archive that was brought, or fetch an image from its registry. For administrators."""
    if body.upload is not None:
        return answer(ImageJobView(job=await services.images.import_archive(caller, name, body.upload, body.name)))
    return answer(ImageJobView(job=await services.images.pull(caller, name, body.name)))


@images_router.get("/nodes/{name}/images/jobs/{job}", response_model=ImageJobView)
async def get_job(services: Services, caller: Administrator, name: NodeName, job: ImageJob) -> Response:
    """Return the progress of an image job; its failure is the answer's error. For administrators."""
    return answer(ImageJobView(job=job, **await services.images.job(caller, name, job)))


@images_router.delete("/nodes/{name}/images", name="remove", status_code=204)
async def remove_image(services: Services, caller: Administrator, name: NodeName, image: ImageInQuery) -> Response:
    """Remove an image from a node. For administrators."""
    await services.images.remove(caller, name, image)
    return Response(status_code=204)
