"""Container images of the nodes."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.params import Path
from starlette.responses import Response

from gpupool.api.deps import Caller, NodeName, Services, answer
from gpupool.api.schemas.images import ImageBody, ImageJobView, ImageList, ImageView, PieceBody, PieceView
from gpupool.domain.errors import ErrorCode, GpupoolError

router = APIRouter(prefix="/v1", tags=["images"])
Job = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="The name of a job.")]
Name = Annotated[str, Query(min_length=1, max_length=512, description="An image's name.")]


@router.get("/images", response_model=ImageList)
async def list_images(services: Services, caller: Caller) -> Response:  # noqa: ARG001 - who asks has to be known
    """The images of all nodes."""
    found = await services.images.list()
    images = [ImageView(node=each.node, **image) for each in found for image in each.images]
    return answer(ImageList(images=images, unknown={each.node: each.error for each in found if each.error}))


@router.post("/nodes/{name}/images/pieces", response_model=PieceView)
async def put_piece(services: Services, caller: Caller, name: NodeName, body: PieceBody) -> Response:
    """Bring a piece of an archive to a node. For administrators."""
    try:
        data = base64.b64decode(body.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "The piece is not base64.") from error
    return answer(PieceView(size=await services.images.put(caller, name, body.upload, body.offset, data)))


@router.post("/nodes/{name}/images", response_model=ImageJobView)
async def bring(services: Services, caller: Caller, name: NodeName, body: ImageBody) -> Response:
    """Take in an archive that was brought, or fetch an image from its registry. For administrators."""
    if body.upload is not None:
        return answer(ImageJobView(job=await services.images.import_archive(caller, name, body.upload, body.name)))
    return answer(ImageJobView(job=await services.images.pull(caller, name, body.name)))


@router.get("/nodes/{name}/images/jobs/{job}", response_model=ImageJobView)
async def get_job(services: Services, caller: Caller, name: NodeName, job: Job) -> Response:
    """How far that is; what went wrong is the answer's error. For administrators."""
    return answer(ImageJobView(job=job, **await services.images.job(caller, name, job)))


@router.delete("/nodes/{name}/images", status_code=204)
async def remove(services: Services, caller: Caller, name: NodeName, image: Name) -> Response:
    """Remove an image from a node. For administrators."""
    await services.images.remove(caller, name, image)
    return Response(status_code=204)
