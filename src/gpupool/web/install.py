"""Puts the dashboard into an application: its pages, its scripts, its errors."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware import Middleware

from gpupool.services.pool import PoolServices
from gpupool.web import failures
from gpupool.web.guard import Guard
from gpupool.web.live import LiveHub, MeasuredLooks
from gpupool.web.routes import (
    analytics,
    audit,
    bookings,
    leases,
    live,
    nodes,
    oidc,
    output,
    overview,
    projects,
    queue,
    reports,
    series,
    sessions,
    settings,
    signing_in,
    static,
    submit,
    terminal,
    tokens,
    users,
    workload,
    workloads,
)

# One line for each module of ``routes/``, each with a ``router``.
ROUTERS = (
    static.router,
    live.router,
    signing_in.router,
    oidc.router,
    sessions.router,
    overview.router,
    queue.router,
    workloads.router,
    workload.router,
    output.router,
    terminal.router,
    submit.router,
    leases.router,
    projects.router,
    nodes.router,
    bookings.router,
    users.router,
    tokens.router,
    settings.router,
    audit.router,
    analytics.router,
    series.router,
    reports.router,
)


def install(app: FastAPI, services: PoolServices) -> None:
    """Serve the dashboard with ``app``, which has the API already."""
    hub = app.state.live = LiveHub(lambda: services.history.subscribe(None), app.state.closing)
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False)
    failures.install(app)
    app.user_middleware.append(Middleware(MeasuredLooks, hub=hub))
    app.add_middleware(Guard)
