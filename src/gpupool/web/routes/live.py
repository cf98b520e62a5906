"""The stream that tells a page that it is out of date."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api import streams
from gpupool.web.deps import Services, Visitor
from gpupool.web.live import LiveHub

router = APIRouter()


@router.get("/live")
async def live(
    request: Request,
    services: Services,
    visitor: Visitor,
    often: Annotated[bool, Query()] = False,
    seen: Annotated[str, Query(pattern="^[0-9]{0,18}$", description="What had happened when the page was made.")] = "",
) -> Response:
    """Server-sent events ``changed``, paced; see ``web.live``."""
    hub: LiveHub = request.app.state.live
    late = seen != "" and int(seen) != services.history.count
    return streams.sse(hub.stream(visitor.user, often=often, late=late))
