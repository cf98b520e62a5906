"""How the pool was used, who holds without using, and how long work waits."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import By
from gpupool.web.deps import Services, Visitor
from gpupool.web.listing import listing
from gpupool.web.pages import page
from gpupool.web.ranges import range_links, read_range
from gpupool.web.views import analytics as view

router = APIRouter()


@router.get("/analytics")
async def analytics(
    request: Request, services: Services, visitor: Visitor, by: Annotated[str, Query(max_length=20)] = "pool"
) -> Response:
    """Figures of a time, and of now; the charts ask for their lines by themselves."""
    accounting = services.accounting
    span = read_range(request.query_params, accounting.now(), accounting.time_zone)
    if by not in {one.value for one in view.CHART_BY}:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"by: '{by}' is not known.", f"Known: {', '.join(view.CHART_BY)}."
        )
    found = await view.look(services.analytics, span)
    currency = accounting.rates.currency
    projects = view.usage_columns("Project", currency, "/projects/")
    users = view.usage_columns("User", currency, "/users/")
    return page(
        request,
        visitor,
        "analytics.html",
        title="Analytics",
        span=span,
        ranges=range_links("/analytics", request.query_params, span),
        by=By(by),
        choices=view.CHART_BY,
        found=found,
        currency=currency,
        idle=listing(
            request, view.idle_columns(currency), found.idle, name="idle", default_sort="-hours", prefix="idle-"
        ),
        projects=listing(request, projects, found.projects, name="waste", default_sort="-idle", prefix="waste-"),
        users=listing(request, users, found.users, name="users", default_sort="-held", prefix="users-"),
    )
