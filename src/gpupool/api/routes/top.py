"""The pool at this moment."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import Caller, Services
from gpupool.api.looking import top_view, written
from gpupool.api.schemas.top import TopView

router = APIRouter(prefix="/v1", tags=["pool"])


@router.get("/top", response_model=TopView)
async def top(services: Services, _caller: Caller) -> Response:
    """Nodes, GPUs with their slices, workloads and users, and what they use: all of one moment."""
    view = await top_view(await services.metrics.snapshot())
    return Response(await written(view), media_type="application/json")
