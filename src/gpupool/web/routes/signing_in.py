"""The ways in and out: a token, a one-time link, and signing out."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from gpupool.api.attempts import FailedAttempts
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Form, SentForm, Services, posted_form, visitor
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.pages import page
from gpupool.web.sessions import drop_cookie, place_of, put_cookie, secret_of

router = APIRouter()

Next = Annotated[str, Query(max_length=2000)]
Code = Annotated[str, Query(max_length=100)]
_COUNTED = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.UNKNOWN_USER})


@router.get("/login")
async def login(request: Request, services: Services, next: Next = "/") -> Response:  # noqa: A002 - as it is called in the address
    """The page to sign in; whoever is signed in goes on."""
    try:
        await visitor(request)
    except GpupoolError:
        return login_page(request, services, next)
    return _go(own_path(next))


@router.post("/login")
async def show_token(request: Request, services: Services) -> Response:
    """Sign in with a token."""
    form = await posted_form(request)
    wanted = own_path(form.text("next", "/"))
    try:
        secret = await attempt(request, services, form)
    except GpupoolError as error:
        return login_page(request, services, wanted, error)
    return await signed_in(request, services, secret, wanted)


async def attempt(request: Request, services: PoolServices, form: Form) -> str:
    """The secret of the session that the form's token is good for. Raises ``GpupoolError``."""
    attempts: FailedAttempts = request.app.state.attempts
    place = place_of(request)
    attempts.check(place.peer)
    try:
        secret, _ = await services.sessions.show_token(form.text("token")[:512], place)
    except GpupoolError as error:
        if error.code in _COUNTED:
            attempts.failed(place.peer)
            await services.sessions.refused(place, error.message)
        raise
    return secret


def login_page(request: Request, services: PoolServices, wanted: str, error: GpupoolError | None = None) -> Response:
    """The page with all ways in, and what went wrong with the last."""
    status = 200 if error is None else error.http_status
    provider = getattr(request.app.state, "oidc", None)
    values = {"error": error, "wanted": own_path(wanted), "info": services.info, "provider": provider}
    return page(request, None, "login.html", title="Sign in", status=status, **values)


@router.get("/login/link")
async def link(request: Request, services: Services, code: Code = "") -> Response:
    """A one-time link. It is exchanged at once, and its address left, when its browser was sent here by no page.

    Over loopback the kernel has said whose browser it is. Over the network a page of somebody else could send a
    browser here to sign it in as himself: then a person has to say yes.
    """
    direct = request.headers.get("sec-fetch-site") == "none" or place_of(request).uid is not None
    if direct:
        return await _follow(request, services, code)
    try:
        user = services.sessions.link_user(code)
    except GpupoolError as error:
        return login_page(request, services, "/", error)
    return page(request, None, "login_link.html", title=f"Sign in as {user}", user=user, code=code)


@router.post("/login/link")
async def confirm_link(request: Request, services: Services) -> Response:
    """The yes to a link."""
    form = await posted_form(request)
    return await _follow(request, services, form.text("code"))


async def _follow(request: Request, services: PoolServices, code: str) -> Response:
    attempts: FailedAttempts = request.app.state.attempts
    place = place_of(request)
    try:
        attempts.check(place.peer)
        secret, _ = await services.sessions.follow_link(code, place)
    except GpupoolError as error:
        if error.code in _COUNTED:
            attempts.failed(place.peer)
            await services.sessions.refused(place, error.message)
        return login_page(request, services, "/", error)
    return await signed_in(request, services, secret, "/")


@router.post("/logout")
async def logout(request: Request, services: Services, _form: SentForm) -> Response:
    """End the browser's session."""
    secret = secret_of(request)
    if secret is not None:
        await services.sessions.sign_out(secret)
    response = _go("/login")
    drop_cookie(response, request)
    return response


async def signed_in(request: Request, services: PoolServices, secret: str, wanted: str) -> Response:
    """On to the page that was wanted, with the new session's cookie; the one that the browser had before ends."""
    before = secret_of(request)
    if before is not None:
        await services.sessions.sign_out(before)
    response = _go(wanted)
    put_cookie(response, request, secret)
    return response


def own_path(url: str) -> str:
    """A path of ours to go on to; anything else is the overview: nobody is led elsewhere by a link to us."""
    if not url.isprintable() or "\\" in url or not url.startswith("/") or url.startswith("//"):
        return "/"
    parts = urlsplit(url)
    if parts.path == "/login" or parts.path.startswith(("/login/", "/logout", "/v1/", "/static/", "/live")):
        return "/"
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _go(path: str) -> Response:
    return RedirectResponse(quote(path, safe="/?&=%+:,@~!$'()*;-._"), 303, PAGE_HEADERS)
