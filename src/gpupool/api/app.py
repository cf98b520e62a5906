"""The application of the control plane, and the one of a standby."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gpupool import __version__
from gpupool.api import asyncapi, errors, openapi
from gpupool.api.deps import check_query
from gpupool.api.login_limit import FailedAttempts
from gpupool.api.middleware import METHODS, BodyLimit, HeadRequests, InternalErrors, OptionsRequests, RequestLimit
from gpupool.api.prometheus import Exposition
from gpupool.api.routes import pool, telemetry
from gpupool.api.routes.nodes import joining, nodes, reservations
from gpupool.api.routes.people import access, events, logins, usage
from gpupool.api.routes.work import attach, files, logs, results, services, submission, workloads, workspaces
from gpupool.api.server.request_rate import RequestRates
from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.heads import Head
from gpupool.services.files.serve import HeadFiles
from gpupool.services.pool import PoolServices
from gpupool.services.refusals import RefusalReason

ROUTERS = (
    pool.open_router,
    pool.router,
    pool.metrics_router,
    nodes.router,
    nodes.images_router,
    joining.router,
    joining.open_router,
    joining.heads_router,
    reservations.router,
    workloads.router,
    submission.router,
    logs.router,
    results.router,
    attach.router,
    files.router,
    files.work_router,
    workspaces.router,
    services.router,
    events.router,
    access.router,
    logins.router,
    logins.open_router,
    logins.dashboard_router,
    telemetry.router,
    usage.router,
)
RETRY_AFTER_S = "1"  # handlers of a standby

HeadsFor = Callable[[str, str], Awaitable[Sequence[Head]]]  # by the name and the secret of a node


def create_app(services: PoolServices) -> FastAPI:
    """Return the HTTP API of ``services``; ``app.state.closing`` (an ``asyncio.Event``) ends streams and waits."""
    app = FastAPI(
        title=openapi.TITLE,
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.services = services
    app.state.closing = asyncio.Event()
    app.state.attempts = FailedAttempts()
    app.state.request_rates = RequestRates(
        lambda: services.policy.policy.max_requests_per_second,
        lambda client: services.refusals.note(RefusalReason.RATE, client),
    )
    app.state.exposition = Exposition(services)
    errors.install(app)
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(check_query)])
    app.add_api_route("/v1/asyncapi.json", get_asyncapi, include_in_schema=False)
    app.add_middleware(OptionsRequests)
    app.add_middleware(BodyLimit)
    app.add_middleware(InternalErrors)
    app.add_middleware(RequestLimit)
    app.add_middleware(HeadRequests)
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


@cache
def sockets() -> dict[str, Any]:
    """Return the AsyncAPI document of the API."""
    return asyncapi.describe_sockets(ROUTERS)


async def get_asyncapi() -> Response:
    """Return the description of the WebSockets. No credentials are needed."""
    return JSONResponse(sockets())


def create_waiting_app(
    refusal: Callable[[], GpupoolError],
    head_files: HeadFiles | None = None,
    heads_for: HeadsFor | None = None,
    faults: Callable[[], Sequence[str] | None] = lambda: None,
    starting: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """Return an application that refuses all requests with a reason; ``/v1/health`` reports a standby.

    In a cluster, other heads get ``head_files``, and all nodes get the list of heads (``heads_for``). ``faults`` are
    the reasons why this head could not take over (None: unknown). ``starting`` returns whether this control plane is
    about to lead; it is then not a standby.
    """
    app = FastAPI(title="gpupool", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.closing = asyncio.Event()
    errors.install(app)

    @app.get("/v1/health")
    async def health() -> Response:
        found = faults()
        takeover = {} if found is None else {"ready": not found, "faults": list(found)}
        state = {"status": "waiting", "starting": starting(), "version": __version__}
        return JSONResponse({**state, **takeover, **refusal().to_dict()})

    if head_files is not None:
        app.state.head_files = head_files
        app.state.attempts = FailedAttempts()
        app.state.heads_for = heads_for
        app.include_router(joining.heads_router)
        app.add_middleware(BodyLimit)
        app.add_middleware(InternalErrors)

    @app.api_route("/{path:path}", methods=[*METHODS, "HEAD", "OPTIONS"], include_in_schema=False)
    async def refuse(request: Request, path: str) -> Response:
        del request, path
        return errors.error_response(refusal(), headers={"retry-after": RETRY_AFTER_S})

    return app
