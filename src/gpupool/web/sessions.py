"""Cookies of browsers that are signed in, and where a browser comes from."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.responses import Response

from gpupool.api.deps import loopback_uid, peer_name
from gpupool.domain.signin import Place

_SECRET_LIMIT = 128


def is_secure(connection: HTTPConnection) -> bool:
    """Whether the browser came over TLS."""
    return connection.url.scheme in {"https", "wss"}


def cookie_name(connection: HTTPConnection, what: str = "session") -> str:
    """The cookie of this pool, in the form that the connection allows.

    Over TLS no other host or plain page can set it (``__Host-``). On the loopback address every port is sent the
    cookies of all others: the pool's id keeps several pools apart.
    """
    pool = connection.app.state.services.info.pool_id
    return f"{'__Host-' if is_secure(connection) else ''}gpupool-{pool}-{what}"


def secret_of(connection: HTTPConnection) -> str | None:
    """What the browser shows, or None."""
    value = connection.cookies.get(cookie_name(connection))
    return value if value and len(value) <= _SECRET_LIMIT else None


def place_of(connection: HTTPConnection) -> Place:
    """Where a browser comes from."""
    return Place(loopback_uid(connection), connection.headers.get("user-agent", ""), peer_name(connection))


def put_cookie(response: Response, connection: HTTPConnection, secret: str) -> None:
    """Sign the browser in. The cookie ends with the browser, the session at the latest when it says so itself.

    Lax, so that a link to a page in a message leads to the page; nothing changes by GET.
    """
    response.set_cookie(
        cookie_name(connection), secret, path="/", httponly=True, secure=is_secure(connection), samesite="lax"
    )


def drop_cookie(response: Response, connection: HTTPConnection) -> None:
    """Take the cookie back."""
    response.delete_cookie(
        cookie_name(connection), path="/", httponly=True, secure=is_secure(connection), samesite="lax"
    )
