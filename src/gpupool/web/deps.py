"""Dependencies of page routes: the signed-in visitor, and forms that one of our pages sent.

``Visitor`` gives the domain's ``Actor``. A route that changes anything takes ``SentForm``: it answers 403 unless the
form carries the visitor's own token (``parts.form`` and ``parts.action`` put it there)::

    @router.post("/nodes/{name}/cordon")
    async def cordon(services: Services, visitor: Visitor, form: SentForm, name: NodeName) -> Response:
        await services.nodes.cordon(visitor, name, form.text("reason"))
        return back_to(f"/nodes/{name}", notice=f"{name} cordoned.")
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import HTTPConnection, Request

from gpupool.api.deps import ReadsQuery, Services, authenticate, count_for, dependants_of, unknown_parameter
from gpupool.api.scopes import need_scope
from gpupool.api.server.peer import peer_uid
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor
from gpupool.services.pool import PoolServices
from gpupool.web.cookies import place_of, session_secret

__all__ = ["Form", "SentForm", "Services", "Visitor", "form_token", "reads", "visitor", "while_allowed"]

RECHECK_INTERVAL_S = 1.0
MAX_FORM_BYTES = 256 * 1024
MAX_FORM_FIELDS = 500
TOKEN_FIELD = "form_token"  # noqa: S105 - the name of a field
_key = secrets.token_bytes(32)  # forms rendered by an earlier process are refused; the user reloads the page


async def visitor(connection: HTTPConnection) -> Actor:
    """Return the visitor; raise ``GpupoolError(UNAUTHENTICATED)``, for which page routes redirect to sign-in.

    A session cookie has precedence over other credentials. Programs are identified by the account at the unix
    socket, or by their token over TLS.
    """
    secret = session_secret(connection)
    if secret is not None:
        services: PoolServices = connection.app.state.services
        actor = await services.sessions.actor(secret, place_of(connection), in_person=_in_person(connection))
        count_for(connection, actor)
        need_scope(connection, actor)
        return actor
    if peer_uid(connection) is None and "authorization" not in connection.headers:
        raise GpupoolError(ErrorCode.UNAUTHENTICATED, "You are not signed in.", "Open /login.")
    return await authenticate(connection)


def _in_person(connection: HTTPConnection) -> bool:
    """Return True for a request by a person. Live updates of an open page do not extend a session."""
    path = connection.url.path
    return connection.headers.get("x-live") != "1" and path != "/live" and not path.startswith("/ui/")


async def while_allowed(
    connection: HTTPConnection, allowed: Callable[[Actor], Awaitable[object]] | None = None
) -> GpupoolError:
    """Wait until the visitor's session ends or ``allowed`` raises; return the error. For long-lived streams.

    Run it concurrently with the stream, and close the stream when it returns::

        over = asyncio.create_task(while_allowed(websocket, lambda actor: may_attach(actor, workload)))
    """
    while True:
        await asyncio.sleep(RECHECK_INTERVAL_S)
        try:
            actor = await visitor(connection)
            if allowed is not None:
                await allowed(actor)
        except GpupoolError as error:
            return error


Visitor = Annotated[Actor, Depends(visitor)]


async def check_page_query(connection: HTTPConnection) -> None:
    """Raise INVALID_REQUEST for a query parameter that a page does not have: a misspelt filter would show all rows.

    The visitor is checked first, so that those who are not signed in get the sign-in page.
    """
    scope = connection.scope
    if scope["type"] != "http" or scope["method"] != "GET" or not scope.get("query_string"):
        return
    error = unknown_parameter(connection)
    if error is None:
        return
    if any(dependant.call is visitor for dependant in dependants_of(connection)):
        await visitor(connection)
    raise error


def reads(*names: str) -> Any:
    """Return a dependency of a route that reads these query parameters from its address itself."""
    return Depends(ReadsQuery(*names))


def form_token(actor: Actor) -> str:
    """Return the token that proves that a form comes from a page rendered for this visitor and session."""
    return hmac.new(_key, f"{actor.user}\0{actor.via}".encode(), hashlib.sha256).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Form:
    """Fields of a posted form; a field can have several values."""

    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """Return a field without surrounding spaces; ``default`` if it is empty or missing."""
        return self.fields.get(name, ("",))[0].strip() or default

    def all_values(self, name: str) -> tuple[str, ...]:
        """Return all non-empty values of a field."""
        return tuple(value.strip() for value in self.fields.get(name, ()) if value.strip())

    def is_checked(self, name: str) -> bool:
        """Return True if a checkbox was selected."""
        return bool(self.fields.get(name))

    def __contains__(self, name: str) -> bool:
        return name in self.fields


async def checked_form(request: Request, actor: Visitor) -> Form:
    """Return a posted form; raise FORBIDDEN without the visitor's token, TOO_LARGE or INVALID_REQUEST."""
    form = await posted_form(request)
    if not hmac.compare_digest(form.text(TOKEN_FIELD).encode(), form_token(actor).encode()):
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            "The form has expired or is not from this dashboard.",
            "Go back, reload, and try again.",
        )
    return form


async def posted_form(request: Request) -> Form:
    """Return a posted form without a token check, for sign-in. Raise TOO_LARGE or INVALID_REQUEST."""
    return _parse(await _body(request), request.headers.get("content-type", ""))


SentForm = Annotated[Form, Depends(checked_form)]


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MAX_FORM_BYTES:
            raise GpupoolError(ErrorCode.TOO_LARGE, "The form is too large.", "Put large data in files.")
    return b"".join(parts)


def _parse(body: bytes, content_type: str) -> Form:
    if content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "This address accepts only forms.", "Send it as a web form.")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError as error:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "The form cannot be read.", "Reload the page.") from error
    fields: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        fields[name] = (*fields.get(name, ()), value.replace("\r\n", "\n"))
    return Form(fields)
