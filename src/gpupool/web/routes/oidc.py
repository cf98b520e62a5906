"""Signing in with a provider: there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from gpupool.api.attempts import FailedAttempts
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.identity import TRIP_LIFE_S
from gpupool.web.deps import Services
from gpupool.web.headers import PAGE_HEADERS
from gpupool.web.routes.signing_in import Next, login_page, own_path, signed_in
from gpupool.web.sessions import cookie_name, is_secure, place_of

if TYPE_CHECKING:
    from gpupool.web.oidc import Provider

router = APIRouter()

_MOST = 4096


@router.get("/login/oidc")
async def begin(request: Request, services: Services, next: Next = "/") -> Response:  # noqa: A002 - as it is called in the address
    """Send the browser to the provider."""
    wanted = own_path(next)
    try:
        provider = _provider(request)
        if request.headers.get("host", "") != urlsplit(provider.settings.public_url).netloc:
            return _go(f"{provider.settings.public_url}/login/oidc?next={quote(wanted, safe='')}")
        url, cookie = await provider.begin(wanted)
    except GpupoolError as error:
        return login_page(request, services, wanted, error)
    response = _go(url)
    secure = is_secure(request)
    name = cookie_name(request, "oidc")
    response.set_cookie(name, cookie, max_age=int(TRIP_LIFE_S), path="/", httponly=True, secure=secure, samesite="lax")
    return response


@router.get("/login/oidc/callback")
async def callback(request: Request, services: Services) -> Response:
    """The browser is back: it is let in if all of what it brings is right."""
    attempts: FailedAttempts = request.app.state.attempts
    place, name = place_of(request), cookie_name(request, "oidc")
    try:
        attempts.check(place.peer)
        query = {key: value for key, value in request.query_params.items() if len(value) <= _MOST}
        provider = _provider(request)
        identity, wanted = await provider.finish(query, request.cookies.get(name, ""))
        secret, _ = await services.identities.admit(identity, provider.settings, place)
    except GpupoolError as error:
        if error.code in {ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN}:
            attempts.failed(place.peer)
            await services.sessions.refused(place, error.message)
        response = login_page(request, services, "/", error)
    else:
        response = await signed_in(request, services, secret, own_path(wanted))
    response.delete_cookie(name, path="/", httponly=True, secure=is_secure(request), samesite="lax")
    return response


def _provider(request: Request) -> Provider:
    provider: Provider | None = getattr(request.app.state, "oidc", None)
    if provider is None:
        raise GpupoolError(ErrorCode.NOT_FOUND, "No provider is set up here.", "Sign in with a token.")
    return provider


def _go(url: str) -> Response:
    return RedirectResponse(url, 303, PAGE_HEADERS)
