"""Error handling of pages: an error page, or a notice on the page that sent the form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from gpupool.api.errors import invalid
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.kit import notices
from gpupool.web.kit.notices import Notice
from gpupool.web.rendering import LIVE_HEADER, page

_Handler = Callable[[Request, Exception], Awaitable[Response]]
_NOT_PAGES = ("/v1/", "/v2/", "/ui/", "/static/", "/metrics", "/live")
_HEADINGS = {401: "Sign in first", 403: "Not allowed", 404: "Not found", 429: "Too many attempts"}


def install(app: FastAPI) -> None:
    """Answer errors of pages with pages; API errors keep their JSON form."""
    for kind in (GpupoolError, RequestValidationError, HTTPException):
        before = app.exception_handlers[kind]
        app.add_exception_handler(kind, _as_page(before))  # type: ignore[arg-type]  # a handler of HTTP requests
    app.state.error_page = lambda scope, said: error_page(Request(scope), said) if is_page(scope) else None


def is_page(scope: Scope) -> bool:
    """Return True for the address of a page."""
    return scope["type"] == "http" and not str(scope["path"]).startswith(_NOT_PAGES)


def _as_page(otherwise: _Handler) -> _Handler:
    async def handle(request: Request, error: Exception) -> Response:
        if not is_page(request.scope):
            return await otherwise(request, error)
        said, status = _as_pool_error(error)
        if said.code is ErrorCode.UNAUTHENTICATED:
            return _to_sign_in(request)
        back = _came_from(request) if said.code is not ErrorCode.FORBIDDEN else None
        return _with_notice(back, said) if back else error_page(request, said, status)

    return handle


def error_page(request: Request, error: GpupoolError, status: int | None = None) -> Response:
    """Return the error page with message, hint and code."""
    code = status or error.http_status
    if error.code is ErrorCode.UNKNOWN_WORKLOAD:
        error = GpupoolError(error.code, error.message, "It may have been deleted: see Workloads.")
    title = _HEADINGS.get(code, "Request failed" if code < 500 else "Internal error")
    return page(request, None, "error.html", title=title, status=code, error=error)


def _as_pool_error(error: Exception) -> tuple[GpupoolError, int]:
    if isinstance(error, GpupoolError):
        return error, error.http_status
    if isinstance(error, RequestValidationError):
        said = invalid(error.errors())
        return GpupoolError(said.code, said.message, "Correct the address or open the overview."), said.http_status
    if isinstance(error, HTTPException) and error.status_code != 404:
        return GpupoolError(ErrorCode.INVALID_REQUEST, f"{str(error.detail).rstrip('.')}.", ""), error.status_code
    hint = "Use the links of the dashboard or open the overview."
    return GpupoolError(ErrorCode.NOT_FOUND, "There is no page at this address.", hint), 404


def _to_sign_in(request: Request) -> Response:
    if request.headers.get(LIVE_HEADER) == "1":
        return Response(status_code=401, headers=PAGE_HEADERS)
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = f"/login?next={quote(here, safe='')}" if request.method == "GET" and here != "/" else "/login"
    return RedirectResponse(where, 303, PAGE_HEADERS)


def _came_from(request: Request) -> str | None:
    """Return the page of this dashboard that sent the form, from the Referer header."""
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
