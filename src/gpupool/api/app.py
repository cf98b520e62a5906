"""The application: routes, errors and limits around the services it is given."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from gpupool import __version__
from gpupool.api import errors, openapi
from gpupool.api.attempts import FailedAttempts
from gpupool.api.exposition import Exposition
from gpupool.api.middleware import BodyLimit, InternalErrors
from gpupool.api.routes import (
    access,
    attach,
    audit,
    bookings,
    dashboard,
    events,
    fairness,
    files,
    head_files,
    images,
    joining,
    logins,
    logs,
    manifests,
    metrics,
    nodes,
    plans,
    policy,
    pool,
    telemetry,
    top,
    usage,
    warnings,
    workloads,
)
from gpupool.services.pool import PoolServices


def create_app(services: PoolServices) -> FastAPI:
    """The HTTP API over ``services``; ``app.state.closing`` (an ``asyncio.Event``) ends streams and waits when set."""
    app = FastAPI(
        title=openapi.TITLE,
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.closing = asyncio.Event()
    app.state.attempts = FailedAttempts()
    app.state.exposition = Exposition(services)
    errors.install(app)
    for module in (
        pool,
        nodes,
        joining,
        bookings,
        workloads,
        plans,
        logs,
        events,
        audit,
        access,
        telemetry,
        usage,
        policy,
        fairness,
        metrics,
        dashboard,
        warnings,
        top,
        files,
        images,
        manifests,
    ):
        app.include_router(module.router)
    app.include_router(logins.router)
    app.include_router(files.work_router)
    for open_router in (pool.open_router, joining.open_router, logins.open_router, head_files.router):
        app.include_router(open_router)
    app.include_router(attach.router)
    app.add_middleware(BodyLimit)
    app.add_middleware(InternalErrors)
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app
