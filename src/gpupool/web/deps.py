"""What page routes ask for: who looks, and forms that were really sent from one of our pages.

``Visitor`` gives the domain's ``Actor``. A route that changes anything takes ``SentForm``: it answers 403 unless the
form carries the visitor's own token (``parts.form`` and ``parts.action`` put it there)::

    @router.post("/nodes/{name}/cordon")
    async def cordon(services: Services, visitor: Visitor, form: SentForm, name: NodeName) -> Response:
        await services.nodes.cordon(visitor, name, form.text("reason"))
        return back_to(f"/nodes/{name}", said=f"{name} takes nothing new.")
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import HTTPConnection, Request

from gpupool.api.deps import Services, authenticate, peer_uid
from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.pool import PoolServices
from gpupool.web.sessions import place_of, secret_of

__all__ = ["Form", "SentForm", "Services", "Visitor", "form_token", "visitor", "while_allowed"]

LOOK_AGAIN_S = 1.0
MAX_FORM_BYTES = 256 * 1024
MAX_FORM_FIELDS = 500
TOKEN_FIELD = "form_token"  # noqa: S105 - the name of a field
_key = secrets.token_bytes(32)  # forms of an earlier control plane are refused: their page is loaded anew


async def visitor(connection: HTTPConnection) -> Actor:
    """Who looks; raises ``GpupoolError(UNAUTHENTICATED)``, which page routes turn into the way to sign in.

    A browser is known by the cookie of its session, whatever else it shows; a program by the account that the unix
    socket tells, or over TLS by its token.
    """
    secret = secret_of(connection)
    if secret is not None:
        services: PoolServices = connection.app.state.services
        return await services.sessions.actor(secret, place_of(connection), in_person=_in_person(connection))
    if peer_uid(connection) is None and "authorization" not in connection.headers:
        raise GpupoolError(ErrorCode.UNAUTHENTICATED, "You are not signed in.", "Open /login.")
    return await authenticate(connection)


def _in_person(connection: HTTPConnection) -> bool:
    """Whether a person asked, and not a page that keeps itself up to date: an open page is no presence."""
    path = connection.url.path
    return connection.headers.get("x-live") != "1" and path != "/live" and not path.startswith("/ui/")


async def while_allowed(
    connection: HTTPConnection, allowed: Callable[[Actor], Awaitable[object]] | None = None
) -> GpupoolError:
    """Wait until the visitor's session ends, or ``allowed`` raises for the visitor: for streams, which outlive both.

    Run it beside the stream and close that when it returns::

        over = asyncio.create_task(while_allowed(websocket, lambda actor: may_attach(actor, workload)))
    """
    while True:
        await asyncio.sleep(LOOK_AGAIN_S)
        try:
            actor = await visitor(connection)
            if allowed is not None:
                await allowed(actor)
        except GpupoolError as error:
            return error


Visitor = Annotated[Actor, Depends(visitor)]


def form_token(actor: Actor) -> str:
    """What a form carries to show that it comes from a page made for this visitor, signed in this way."""
    return hmac.new(_key, f"{actor.user}\0{actor.via}".encode(), hashlib.sha256).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form that was sent; each may have come several times."""

    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """A field without the spaces around it; ``default`` when it is empty or missing."""
        return self.fields.get(name, ("",))[0].strip() or default

    def every(self, name: str) -> tuple[str, ...]:
        """All values of a field, empty ones left out."""
        return tuple(value.strip() for value in self.fields.get(name, ()) if value.strip())

    def ticked(self, name: str) -> bool:
        """Whether a checkbox was on."""
        return bool(self.fields.get(name))

    def __contains__(self, name: str) -> bool:
        return name in self.fields


async def checked_form(request: Request, actor: Visitor) -> Form:
    """The form of a POST; raises FORBIDDEN without the visitor's token, TOO_LARGE, INVALID_REQUEST."""
    form = await posted_form(request)
    if not hmac.compare_digest(form.text(TOKEN_FIELD).encode(), form_token(actor).encode()):
        raise GpupoolError(
            ErrorCode.FORBIDDEN, "The form is too old, or not from this dashboard.", "Go back, reload, and try again."
        )
    return form


async def posted_form(request: Request) -> Form:
    """A form whoever sent it, for the ways in: who signs in has no token yet. Raises TOO_LARGE, INVALID_REQUEST."""
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
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "This address takes forms.", "Send it as a web form.")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError as error:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "The form cannot be read.", "Reload the page.") from error
    fields: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        fields[name] = (*fields.get(name, ()), value.replace("\r\n", "\n"))
    return Form(fields)
