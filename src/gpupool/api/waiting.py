"""What a control plane answers that does not lead: why, and where the one that leads is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gpupool import __version__
from gpupool.api import errors
from gpupool.api.attempts import FailedAttempts
from gpupool.api.middleware import BodyLimit, InternalErrors
from gpupool.api.routes import head_files as routes
from gpupool.domain.errors import GpupoolError
from gpupool.services.files.serving import HeadFiles

RETRY_AFTER_S = "1"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def create_waiting_app(refusal: Callable[[], GpupoolError], head_files: HeadFiles | None = None) -> FastAPI:
    """An application that refuses everything with the present reason; ``/v1/health`` says that it waits.

    The other heads of a cluster are given ``head_files``.
    """
    app = FastAPI(title="gpupool", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.closing = asyncio.Event()
    errors.install(app)

    @app.get("/v1/health")
    async def health() -> Response:
        return JSONResponse({"status": "waiting", "version": __version__, **refusal().to_dict()})

    if head_files is not None:
        app.state.head_files = head_files
        app.state.attempts = FailedAttempts()
        app.include_router(routes.router)
        app.add_middleware(BodyLimit)
        app.add_middleware(InternalErrors)

    @app.api_route("/{path:path}", methods=METHODS, include_in_schema=False)
    async def refuse(request: Request, path: str) -> Response:
        del request, path
        return errors.error_response(refusal(), headers={"retry-after": RETRY_AFTER_S})

    return app
