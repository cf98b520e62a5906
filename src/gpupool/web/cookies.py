"""Session cookies of browsers, and where a browser connects from."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.responses import Response

from gpupool.api.server.peer import loopback_uid, peer_name
from gpupool.domain.people.sessions import BrowserClient

_SECRET_LIMIT = 128


def is_secure(connection: HTTPConnection) -> bool:
    """Return True if the connection uses TLS."""
    return connection.url.scheme in {"https", "wss"}


def cookie_name(connection: HTTPConnection, what: str = "session") -> str:
    """Return the name of this pool's cookie for the connection.

    With TLS, ``__Host-`` stops other hosts and plain pages from setting it. On the loopback address browsers send
    cookies to all ports, so the pool's id distinguishes several pools.
    """
    pool = connection.app.state.services.info.pool_id
    return f"{'__Host-' if is_secure(connection) else ''}gpupool-{pool}-{what}"


def session_secret(connection: HTTPConnection) -> str | None:
    """Return the session secret that the browser sent, or None."""
    value = connection.cookies.get(cookie_name(connection))
    return value if value and len(value) <= _SECRET_LIMIT else None


def place_of(connection: HTTPConnection) -> BrowserClient:
    """Return where a browser connects from."""
    return BrowserClient(loopback_uid(connection), connection.headers.get("user-agent", ""), peer_name(connection))


def set_session_cookie(response: Response, connection: HTTPConnection, secret: str) -> None:
    """Sign the browser in. The cookie ends when the browser closes; the session can end earlier.

    SameSite is Lax so that links in messages work; GET requests change nothing.
    """
    response.set_cookie(
        cookie_name(connection), secret, path="/", httponly=True, secure=is_secure(connection), samesite="lax"
    )


def delete_session_cookie(response: Response, connection: HTTPConnection) -> None:
    """Delete the session cookie."""
    response.delete_cookie(
        cookie_name(connection), path="/", httponly=True, secure=is_secure(connection), samesite="lax"
    )
