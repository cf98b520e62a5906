"""What Prometheus reads."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpupool.api.deps import Caller
from gpupool.api.exposition import CONTENT_TYPE, Exposition

router = APIRouter(tags=["pool"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, _caller: Caller) -> Response:
    """The pool in numbers, as text for Prometheus. A viewer's token is enough."""
    exposition: Exposition = request.app.state.exposition
    return Response(await exposition.text(), media_type=CONTENT_TYPE)
