"""Saved views of the pages with lists: their part of a page, and the forms that save and delete one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.people.access import Actor
from gpupool.services.pool import PoolServices
from gpupool.web.deps import SentForm, Services, Visitor
from gpupool.web.rendering import back_to

router = APIRouter()


async def saved_views(request: Request, services: PoolServices, visitor: Actor, page: str) -> dict[str, Any]:
    """Return what ``parts.saved_views`` shows: the visitor's views of a page, and its present filters."""
    return {"page": page, "saved": await services.saved_views.of(visitor, page), "query": request.url.query}


@router.post("/views")
async def save_view(services: Services, visitor: Visitor, form: SentForm) -> Response:
    """Save the present filters of a page under a name."""
    view = await services.saved_views.save(visitor, form.text("list"), form.text("name"), form.text("query"))
    return back_to(view.address, notice=f"View {view.name} saved.")


@router.post("/views/delete")
async def delete_view(services: Services, visitor: Visitor, form: SentForm) -> Response:
    """Delete a saved view."""
    view = await services.saved_views.delete(visitor, form.text("name"))
    return back_to(f"/{view.page}", notice=f"View {view.name} deleted.")
