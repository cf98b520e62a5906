"""Installation of the dashboard into an application: pages, scripts and error handling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware

from gpupool.services.pool import PoolServices
from gpupool.web import assets, error_pages
from gpupool.web.deps import check_page_query
from gpupool.web.guard import Guard
from gpupool.web.kit import live, series_routes
from gpupool.web.kit.live import LiveHub, RefreshCostMiddleware
from gpupool.web.kit.response_cache import ResponseCache
from gpupool.web.pages import (
    analytics,
    audit,
    home,
    leases,
    queue,
    reference,
    reports,
    reservations,
    saved_views,
    services,
    sign_in,
    workloads,
    workspaces,
)
from gpupool.web.pages.nodes import routes as nodes
from gpupool.web.pages.overview import routes as overview
from gpupool.web.pages.projects import routes as projects
from gpupool.web.pages.settings import routes as settings
from gpupool.web.pages.submit import routes as submit
from gpupool.web.pages.users import routes as users
from gpupool.web.pages.users import tokens
from gpupool.web.pages.workload import routes as workload
from gpupool.web.pages.workload import streams

if TYPE_CHECKING:
    from gpupool.web.oidc import Provider

ROUTERS = (
    assets.router,
    live.router,
    sign_in.router,
    home.router,
    overview.router,
    queue.router,
    workloads.router,
    saved_views.router,
    workload.router,
    streams.router,
    workspaces.router,
    services.router,
    submit.router,
    leases.router,
    projects.router,
    nodes.router,
    reservations.router,
    users.router,
    tokens.router,
    settings.router,
    audit.router,
    analytics.router,
    series_routes.router,
    reports.router,
    reference.router,
)


def install(app: FastAPI, services: PoolServices, provider: Provider | None = None) -> None:
    """Add the dashboard to ``app``, which already has the API; ``provider`` is for sign-in with OpenID Connect."""
    app.state.oidc = provider
    app.state.response_cache = ResponseCache[Any]()
    hub = app.state.live = LiveHub(lambda: services.history.subscribe(None), app.state.closing)
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False, dependencies=[Depends(check_page_query)])
    error_pages.install(app)
    app.user_middleware.append(Middleware(RefreshCostMiddleware, hub=hub))
    app.add_middleware(Guard)
