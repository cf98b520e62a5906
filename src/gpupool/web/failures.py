"""Errors of pages: a page with the code, the sentence and the hint, or a notice on the page the form came from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool.api.errors import invalid, unexpected
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.web import notices
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.notices import Notice
from gpupool.web.pages import LIVE_HEADER, page

_Handler = Callable[[Request, Exception], Awaitable[Response]]
_NOT_PAGES = ("/v1/", "/ui/", "/static/", "/metrics", "/live")
_HEADINGS = {401: "Sign in first", 403: "Not allowed", 404: "Not found", 429: "Too many attempts"}


def install(app: FastAPI) -> None:
    """Answer errors of pages with pages; what is asked as an API is answered as before."""
    for kind in (GpupoolError, RequestValidationError, HTTPException):
        before = app.exception_handlers[kind]
        app.add_exception_handler(kind, _as_page(before))  # type: ignore[arg-type]  # a handler of HTTP requests
    app.user_middleware.append(Middleware(_UnexpectedErrors))


def is_page(scope: Scope) -> bool:
    """Whether an address is one of a page, for people."""
    return scope["type"] == "http" and not str(scope["path"]).startswith(_NOT_PAGES)


def _as_page(otherwise: _Handler) -> _Handler:
    async def handle(request: Request, error: Exception) -> Response:
        if not is_page(request.scope):
            return await otherwise(request, error)
        said, status = _told(error)
        if said.code is ErrorCode.UNAUTHENTICATED:
            return _to_sign_in(request)
        back = _came_from(request) if said.code is not ErrorCode.FORBIDDEN else None
        return _with_notice(back, said) if back else error_page(request, said, status)

    return handle


def error_page(request: Request, error: GpupoolError, status: int | None = None) -> Response:
    """The page that says what went wrong."""
    code = status or error.http_status
    title = _HEADINGS.get(code, "That did not work" if code < 500 else "The pool made a mistake")
    return page(request, None, "error.html", title=title, status=code, error=error)


def _told(error: Exception) -> tuple[GpupoolError, int]:
    if isinstance(error, GpupoolError):
        return error, error.http_status
    if isinstance(error, RequestValidationError):
        said = invalid(error.errors())
        return GpupoolError(said.code, said.message, "Correct the address, or start at the overview."), said.http_status
    if isinstance(error, HTTPException) and error.status_code != 404:
        return GpupoolError(ErrorCode.INVALID_REQUEST, f"{str(error.detail).rstrip('.')}.", ""), error.status_code
    hint = "Use the links of the dashboard, or start at the overview."
    return GpupoolError(ErrorCode.NOT_FOUND, "There is no page at this address.", hint), 404


def _to_sign_in(request: Request) -> Response:
    if request.headers.get(LIVE_HEADER) == "1":
        return Response(status_code=401, headers=PAGE_HEADERS)
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = f"/login?next={quote(here, safe='')}" if request.method == "GET" and here != "/" else "/login"
    return RedirectResponse(where, 303, PAGE_HEADERS)


def _came_from(request: Request) -> str | None:
    """The page of ours on which a form was sent."""
    if request.method != "POST":
        return None
    url = urlsplit(request.headers.get("referer", ""))
    if not url.path.startswith("/") or url.path.startswith("//") or url.netloc != request.headers.get("host"):
        return None
    return url.path + (f"?{url.query}" if url.query else "")


def _with_notice(url: str, error: GpupoolError) -> Response:
    response = RedirectResponse(url, 303, PAGE_HEADERS)
    notices.put(response, Notice.of_error(error))
    return response


class _UnexpectedErrors:
    """Errors that nobody foresaw, inside those of the API: a page that names the incident."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if not is_page(scope):
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if started:
                raise
            said = unexpected(error, f"{scope['method']} {scope['path']}")
            await error_page(Request(scope), said)(scope, receive, send)
