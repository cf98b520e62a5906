"""Sign-in with a token, a one-time link or an OpenID provider; sign-out; and signed-in browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from gpupool.api.login_limit import FailedAttempts
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.identity import SIGN_IN_TIMEOUT_S
from gpupool.services.pool import PoolServices
from gpupool.web.cookies import (
    cookie_name,
    delete_session_cookie,
    is_secure,
    place_of,
    session_secret,
    set_session_cookie,
)
from gpupool.web.deps import Form, SentForm, Services, posted_form, reads, visitor
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.rendering import page

if TYPE_CHECKING:
    from gpupool.web.oidc import Provider
from gpupool.api.deps import NameInPath
from gpupool.domain.people.access import Role
from gpupool.domain.people.sessions import Session, SessionOrigin
from gpupool.web.deps import Visitor
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.rendering import back_to

router = APIRouter()

Next = Annotated[str, Query(max_length=2000)]
Code = Annotated[str, Query(max_length=100)]
HOME = "/home"
_COUNTED = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.UNKNOWN_USER})
_REFUSED = _COUNTED | {ErrorCode.TOO_MANY_ATTEMPTS}


@router.get("/login")
async def login(request: Request, services: Services, next: Next = HOME) -> Response:  # noqa: A002 - as it is called in the address
    """Show the sign-in page; redirect a visitor who is already signed in."""
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
        secret = await sign_in_with_token(request, services, form)
    except GpupoolError as error:
        return login_page(request, services, wanted, error)
    return await signed_in(request, services, secret, wanted)


async def sign_in_with_token(request: Request, services: PoolServices, form: Form) -> str:
    """Create a session for the form's token and return its secret; raise ``GpupoolError``."""
    attempts: FailedAttempts = request.app.state.attempts
    place, token = place_of(request), form.text("token")[:512]
    try:
        with attempts.counted(place.peer, token, _COUNTED):
            secret, _ = await services.sessions.show_token(token, place)
    except GpupoolError as error:
        if error.code in _REFUSED:
            await services.sessions.refused(place, error.message)
        raise
    return secret


def login_page(request: Request, services: PoolServices, wanted: str, error: GpupoolError | None = None) -> Response:
    """Return the sign-in page, with the error of the last attempt."""
    status = 200 if error is None else error.http_status
    provider = request.app.state.oidc
    values = {"error": error, "wanted": own_path(wanted), "info": services.info, "provider": provider}
    return page(request, None, "sign_in/login.html", title="Sign in", status=status, **values)


@router.get("/login/link")
async def link(request: Request, services: Services, code: Code = "") -> Response:
    """Sign in with a one-time link, at once if no page sent the browser here.

    Over loopback the kernel tells the browser's user. Over the network a page of an attacker could send a browser here
    to sign it in as the attacker, so the user must confirm.
    """
    direct = request.headers.get("sec-fetch-site") == "none" or place_of(request).uid is not None
    if direct:
        return await _follow(request, services, code)
    try:
        user = services.sessions.link_user(code)
    except GpupoolError as error:
        return login_page(request, services, "/", error)
    return page(request, None, "sign_in/login_link.html", title=f"Sign in as {user}", user=user, code=code)


@router.post("/login/link")
async def confirm_link(request: Request, services: Services) -> Response:
    """Confirm a one-time link."""
    form = await posted_form(request)
    return await _follow(request, services, form.text("code"))


async def _follow(request: Request, services: PoolServices, code: str) -> Response:
    attempts: FailedAttempts = request.app.state.attempts
    place = place_of(request)
    try:
        with attempts.counted(place.peer, code, _COUNTED):
            secret, _ = await services.sessions.follow_link(code, place)
    except GpupoolError as error:
        if error.code in _REFUSED:
            await services.sessions.refused(place, error.message)
        return login_page(request, services, "/", error)
    return await signed_in(request, services, secret, HOME)


@router.post("/logout")
async def logout(request: Request, services: Services, _form: SentForm) -> Response:
    """End the browser's session."""
    secret = session_secret(request)
    if secret is not None:
        await services.sessions.sign_out(secret)
    response = _go("/login")
    delete_session_cookie(response, request)
    return response


async def signed_in(request: Request, services: PoolServices, secret: str, wanted: str) -> Response:
    """Redirect to the requested page with the new session's cookie; end the browser's previous session."""
    before = session_secret(request)
    if before is not None:
        await services.sessions.sign_out(before)
    response = _go(wanted)
    set_session_cookie(response, request, secret)
    return response


def own_path(url: str) -> str:
    """Return ``url`` if it is a page of this dashboard, else the overview. This prevents open redirects."""
    if not url.isprintable() or "\\" in url or not url.startswith("/") or url.startswith("//"):
        return "/"
    parts = urlsplit(url)
    if parts.path == "/login" or parts.path.startswith(("/login/", "/logout", "/v1/", "/static/", "/live")):
        return "/"
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _go(path: str) -> Response:
    return RedirectResponse(quote(path, safe="/?&=%+:,@~!$'()*;-._"), 303, PAGE_HEADERS)


_MAX_VALUE_LENGTH = 4096
_OIDC_COUNTED = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN})


@router.get("/login/oidc")
async def begin(request: Request, services: Services, next: Next = HOME) -> Response:  # noqa: A002 - as it is called in the address
    """Send the browser to the provider."""
    wanted = own_path(next)
    try:
        provider = _provider(request)
        if request.headers.get("host", "") != urlsplit(provider.settings.public_url).netloc:
            return _redirect(f"{provider.settings.public_url}/login/oidc?next={quote(wanted, safe='')}")
        url, cookie = await provider.begin(wanted)
    except GpupoolError as error:
        return login_page(request, services, wanted, error)
    response = _redirect(url)
    secure = is_secure(request)
    name = cookie_name(request, "oidc")
    response.set_cookie(
        name, cookie, max_age=int(SIGN_IN_TIMEOUT_S), path="/", httponly=True, secure=secure, samesite="lax"
    )
    return response


@router.get("/login/oidc/callback", dependencies=[reads("*")])
async def callback(request: Request, services: Services) -> Response:
    """Finish the sign-in of a browser that returns from the provider."""
    attempts: FailedAttempts = request.app.state.attempts
    place, name = place_of(request), cookie_name(request, "oidc")
    try:
        with attempts.counted(place.peer, "oidc", _OIDC_COUNTED):
            query = {key: value for key, value in request.query_params.items() if len(value) <= _MAX_VALUE_LENGTH}
            provider = _provider(request)
            identity, wanted = await provider.finish(query, request.cookies.get(name, ""))
            secret, _ = await services.identities.admit(identity, provider.settings, place)
    except GpupoolError as error:
        if error.code in _OIDC_COUNTED | {ErrorCode.TOO_MANY_ATTEMPTS}:
            await services.sessions.refused(place, error.message)
        response = login_page(request, services, "/", error)
    else:
        response = await signed_in(request, services, secret, own_path(wanted))
    response.delete_cookie(name, path="/", httponly=True, secure=is_secure(request), samesite="lax")
    return response


def _provider(request: Request) -> Provider:
    provider: Provider | None = request.app.state.oidc
    if provider is None:
        raise GpupoolError(ErrorCode.NOT_FOUND, "No identity provider is configured.", "Sign in with a token.")
    return provider


def _redirect(url: str) -> Response:
    return RedirectResponse(url, 303, PAGE_HEADERS)


# The first match wins, because most user agents contain names of other browsers.
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "Mac"),
    ("Linux", "Linux"),
)
_ORIGINS = {SessionOrigin.LINK: "one-time link", SessionOrigin.TOKEN: "token", SessionOrigin.OIDC: "provider"}


@router.get("/sessions", dependencies=[reads(*table_names())])
async def sessions(request: Request, services: Services, visitor: Visitor) -> Response:
    """Show the table of sessions, with a button to end each."""
    rows = services.sessions.sessions(visitor)
    own = visitor.via.removeprefix("session ")
    columns = (
        Column[Session]("user", "User", lambda s: s.user, link=_user_page if visitor.role is Role.ADMIN else None),
        Column[Session]("browser", "Browser", lambda s: browser(s.agent)),
        Column[Session]("place", "Place", lambda s: "this machine" if s.peer_uid is not None else "network"),
        Column[Session]("origin", "Sign-in method", lambda s: _ORIGINS[s.origin]),
        Column[Session]("created", "Signed in", lambda s: s.created_at, ColumnKind.TIME),
        Column[Session]("used", "Last used", lambda s: s.last_used_at, ColumnKind.TIME),
        Column[Session]("ends", "Ends by", lambda s: s.expires_at, ColumnKind.TIME),
    )
    table = listing(request, columns, rows, name="sessions", default_sort="-used")
    return page(request, visitor, "sign_in/sessions.html", title="Sessions", table=table, own=own)


@router.post("/sessions/{session_id}/end")
async def end(services: Services, visitor: Visitor, _form: SentForm, session_id: NameInPath) -> Response:
    """Sign a browser out."""
    await services.sessions.end(visitor, session_id)
    return back_to("/sessions", notice="Session ended.")


def _user_page(session: Session) -> str:
    return f"/users/{session.user}"


def browser(agent: str) -> str:
    """Return browser and system of a user agent, or the start of the text if it is unknown."""
    name = next((name for sign, name in _BROWSERS if sign in agent), "")
    system = next((system for sign, system in _SYSTEMS if sign in agent), "")
    return f"{name} on {system}" if name and system else name or agent[:60] or "unknown"
