"""What a head gives to the other heads of its pool; the one that waits has these routes, too."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gpupool.api.deps import NodeName, answer
from gpupool.api.routes.joining import counted
from gpupool.api.schemas.head_files import ContentsBody, FolderView, HeadBody, NeededView
from gpupool.services.files.serving import HeadFiles, sent

# Not in the description of the API: no client but another head can use it.
router = APIRouter(prefix="/v1/members", tags=["joining"], include_in_schema=False)


@router.post("/{name}/files/needed", response_model=NeededView)
async def needed(request: Request, name: NodeName, body: HeadBody) -> Response:
    """The folders that live work needs, for a head. Raises FORBIDDEN, NOT_LEADING."""
    files = _files(request)
    await counted(request, files.check(name, body.secret))
    return answer(NeededView(folders=[FolderView(**asdict(folder)) for folder in files.needed()]))


@router.post("/{name}/files/contents", response_class=Response)
async def contents(request: Request, name: NodeName, body: ContentsBody) -> Response:
    """Contents of one owner's files, for a head. Raises FORBIDDEN."""
    blobs = await counted(request, _files(request).check(name, body.secret))
    return StreamingResponse(sent(blobs, body.space, body.wanted), media_type="application/octet-stream")


def _files(request: Request) -> HeadFiles:
    """Of the pool, or of a head that waits, which has no pool."""
    state = request.app.state
    files: HeadFiles = state.head_files if hasattr(state, "head_files") else state.services.head_files
    return files
