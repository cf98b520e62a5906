"""Dependencies of routes: the services, the caller, and bounded query parameters."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from difflib import get_close_matches
from typing import Annotated, cast

from fastapi import Depends, Query
from fastapi.dependencies.models import Dependant
from fastapi.params import Path
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.responses import Response

from gpupool.api.login_limit import FailedAttempts
from gpupool.api.schemas import name_patterns
from gpupool.api.schemas.base import MAX_PAGE
from gpupool.api.scopes import need_scope
from gpupool.api.server.acceptor import overloaded
from gpupool.api.server.peer import RATE_COUNTED, loopback_uid, peer_name, peer_uid, slot_of
from gpupool.api.server.request_rate import request_rates
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId, is_workload_id
from gpupool.domain.people.access import Actor, Role
from gpupool.services.access.permissions import require_role
from gpupool.services.pool import PoolServices
from gpupool.services.refusals import RefusalReason

_TOKEN_LIMIT = 512
_MAX_SHOWN = 40  # characters of an unknown parameter
_METRICS_PATH = "/metrics"
RECHECK_INTERVAL_S = 10.0  # of the callers of long-lived streams


def count_for(connection: HTTPConnection, actor: Actor) -> None:
    """Count the connection and the request for the user who has shown a valid credential.

    Raises ``GpupoolError``: OVERLOADED, RATE_LIMITED.
    """
    slot, rates = slot_of(connection), request_rates(connection)
    if slot is None:
        return
    if peer_uid(connection) is not None or loopback_uid(connection) is not None:
        if rates is not None and actor.role is Role.ADMIN:
            rates.note_administrator(slot.group)
        return
    extensions = connection.scope["extensions"]
    if rates is not None and not extensions.get(RATE_COUNTED):
        extensions[RATE_COUNTED] = True
        rates.take(f"user {actor.user}", privileged=actor.role is Role.ADMIN)
    if not slot.identify(actor.user, privileged=actor.role is Role.ADMIN):
        if rates is not None:
            connection.app.state.services.refusals.note(RefusalReason.CONNECTIONS, f"user {actor.user}")
        raise overloaded(f"The pool is overloaded: {actor.user} has too many connections open.")


async def get_services(connection: HTTPConnection) -> PoolServices:
    """Return the application's services. All dependencies are coroutines; functions would run in threads."""
    services: PoolServices = connection.app.state.services
    return services


async def get_closing(connection: HTTPConnection) -> asyncio.Event:
    """Return the event that is set when the server is about to stop: all waits and streams then end."""
    closing: asyncio.Event = connection.app.state.closing
    return closing


Services = Annotated[PoolServices, Depends(get_services)]


async def authenticate(connection: HTTPConnection) -> Actor:
    """Return the caller, after checking that the token may be used for this address.

    Raises ``GpupoolError`` as ``identify`` does, and FORBIDDEN.
    """
    actor = await identify(connection)
    need_scope(connection, actor)
    return actor


async def identify(connection: HTTPConnection) -> Actor:
    """Return the caller: by peer credentials on the unix socket, else by bearer token.

    Raises ``GpupoolError``: UNAUTHENTICATED, TOO_MANY_ATTEMPTS for a wrong token after many others, OVERLOADED.
    """
    services: PoolServices = connection.app.state.services
    uid = peer_uid(connection)
    if uid is not None:
        actor = await services.access.actor_for_uid(uid)
        count_for(connection, actor)
        return actor
    attempts: FailedAttempts = connection.app.state.attempts
    with attempts.counted(peer_name(connection), _shown(connection)):
        actor = await services.access.actor_for_token(_bearer_token(connection))
    count_for(connection, actor)
    return actor


async def administrator(connection: HTTPConnection) -> Actor:
    """Return the caller. Raises as ``authenticate`` does, and FORBIDDEN for all but administrators."""
    return await _with_role(connection, Role.ADMIN)


async def manager(connection: HTTPConnection) -> Actor:
    """Return the caller. Raises as ``authenticate`` does, and FORBIDDEN for members and viewers."""
    return await _with_role(connection, Role.MANAGER)


async def member(connection: HTTPConnection) -> Actor:
    """Return the caller. Raises as ``authenticate`` does, and FORBIDDEN for viewers."""
    return await _with_role(connection, Role.MEMBER)


async def administrator_or_self(connection: HTTPConnection) -> Actor:
    """Return the caller. Raises FORBIDDEN for all but administrators and the user whom the address names."""
    actor = await authenticate(connection)
    if actor.user != connection.path_params.get("name"):
        require_role(actor, Role.ADMIN)
    return actor


async def _with_role(connection: HTTPConnection, role: Role) -> Actor:
    actor = await authenticate(connection)
    require_role(actor, role)
    return actor


CALLER_CHECKS = frozenset({authenticate, administrator, manager, member, administrator_or_self})


async def check_caller(connection: HTTPConnection) -> None:
    """Check the caller of the route, and raise that error first: the request itself cannot be read."""
    for dependant in dependants_of(connection):
        if dependant.call in CALLER_CHECKS:
            await dependant.call(connection)


def dependants_of(connection: HTTPConnection) -> list[Dependant]:
    """Return the route of a request, as FastAPI describes it, and all its dependencies."""
    found = [dependant] if (dependant := getattr(connection.scope.get("route"), "dependant", None)) else []
    for each in found:
        found.extend(each.dependencies)
    return found


async def check_query(connection: HTTPConnection) -> None:
    """Raise ``GpupoolError(INVALID_REQUEST)`` for a query parameter that the route does not have; most are misspelt.

    The caller is checked first, as for other invalid requests. WebSockets of newer clients may have more parameters.
    ``/metrics`` accepts all, because Prometheus can be configured to send some to all its targets.
    """
    scope = connection.scope
    if scope["type"] != "http" or not scope.get("query_string") or scope["path"] == _METRICS_PATH:
        return
    error = unknown_parameter(connection)
    if error is not None:
        await check_caller(connection)
        raise error


class ReadsQuery:
    """A dependency that names query parameters which a route reads from its address itself; ``*``: it accepts all."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    async def __call__(self) -> None:
        """Do nothing: ``query_names`` finds the names."""


def query_names(dependants: Iterable[Dependant]) -> set[str]:
    """Return the names of all query parameters of a route."""
    found = set[str]()
    for dependant in dependants:
        found.update(field.alias for field in dependant.query_params)
        found.update(dependant.call.names if isinstance(dependant.call, ReadsQuery) else ())
    return found


def unknown_parameter(connection: HTTPConnection) -> GpupoolError | None:
    """Return the error of the first query parameter that the route does not have; None if it has all."""
    known = query_names(dependants_of(connection))
    unknown = next((name for name in connection.query_params if name not in known), None)
    if unknown is None or "*" in known:
        return None
    similar = get_close_matches(unknown, known, 1)
    meant = f" Did you mean '{similar[0]}'?" if similar else ""
    hint = f"It has {', '.join(sorted(known))}." if known else "It has none."
    shown = unknown[:_MAX_SHOWN]
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"This path has no query parameter '{shown}'.{meant}", hint)


def _shown(connection: HTTPConnection) -> str:
    return connection.headers.get("authorization", "").partition(" ")[2].strip()


def _bearer_token(connection: HTTPConnection) -> str:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_LIMIT or not token.isascii():
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            "This request needs a token.",
            "Send 'Authorization: Bearer gpt_...'; create a token with 'gpupool token create' on the pool's machine.",
        )
    return token


async def still_allowed(connection: HTTPConnection) -> None:
    """Check the caller of a long-lived stream again.

    Raises ``GpupoolError``: UNAUTHENTICATED for a token that was revoked or has expired, FORBIDDEN for a disabled user.
    """
    services: PoolServices = connection.app.state.services
    uid = peer_uid(connection)
    if uid is not None:
        need_scope(connection, await services.access.actor_for_uid(uid))
    else:
        need_scope(connection, await services.access.actor_for_token(_bearer_token(connection)))


async def refusal_of(connection: HTTPConnection) -> GpupoolError | None:
    """Return the error if the caller of a long-lived stream is no longer allowed; None also if that is not known."""
    try:
        await still_allowed(connection)
    except GpupoolError as error:
        if error.code in {ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN}:
            return error
    return None


async def until_refused(connection: HTTPConnection) -> GpupoolError:
    """Wait until the caller is no longer allowed; return the error. Run it concurrently with a stream."""
    while True:
        await asyncio.sleep(RECHECK_INTERVAL_S)
        if (error := await refusal_of(connection)) is not None:
            return error


async def end_when_refused(connection: HTTPConnection, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the messages of a stream that is never silent for long, until the caller is no longer allowed."""
    checked_at = asyncio.get_running_loop().time()
    async with contextlib.aclosing(cast("AsyncGenerator[bytes, None]", stream)) as pieces:
        async for piece in pieces:
            if asyncio.get_running_loop().time() - checked_at >= RECHECK_INTERVAL_S:
                checked_at = asyncio.get_running_loop().time()
                if await refusal_of(connection) is not None:
                    return
            yield piece


Caller = Annotated[Actor, Depends(authenticate)]
# Rights that do not depend on the body are checked before the body, so that others learn nothing about it.
Administrator = Annotated[Actor, Depends(administrator)]
Manager = Annotated[Actor, Depends(manager)]
Member = Annotated[Actor, Depends(member)]
AdministratorOrSelf = Annotated[Actor, Depends(administrator_or_self)]
Closing = Annotated[asyncio.Event, Depends(get_closing)]

Ref = Annotated[str, Path(pattern=name_patterns.NAME, description="A workload's id or name.")]
ServiceRef = Annotated[
    str,
    Path(
        pattern=name_patterns.SERVICE_REF,
        description="A service's id, name, or PROJECT:NAME.",
    ),
]
NodeName = Annotated[str, Path(pattern=name_patterns.NODE_NAME, description="A node's name.")]
NameInPath = Annotated[str, Path(pattern=name_patterns.USER_NAME)]
Index = Annotated[int, Query(ge=0, le=10_000_000, description="Which replica.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of entries.")]
MAX_OFFSET_DIGITS = 9
EventId = Annotated[int, Query(ge=0, le=2**62)]
Moment = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since the epoch.")]
TimeoutS = Annotated[float, Query(ge=0, le=60, allow_inf_nan=False, description="Maximum wait in seconds.")]
Cursor = Annotated[str, Query(max_length=200, pattern=r"^[\x20-\x7e]*$", description="Cursor of the last page.")]
Word = Annotated[str, Query(max_length=128, pattern=r"^[^\x00]*$")]
Search = Annotated[str, Query(max_length=128, pattern=r"^[^\x00]*$", description="A part of the name.")]


def answer(model: BaseModel, status: int = 200, location: str | None = None) -> Response:
    """Return a model as JSON, without validation, because it is made of trusted values.

    ``location`` is the address of a created object.
    """
    headers = None if location is None else {"location": location}
    return Response(model.model_dump_json(), status, headers, media_type="application/json")


def encode_page(created_at: float, workload: WorkloadId) -> str:
    """Return the opaque cursor of the page after a workload."""
    return base64.urlsafe_b64encode(f"{created_at!r} {workload}".encode()).decode().rstrip("=")


def decode_page(cursor: str) -> tuple[float, WorkloadId]:
    """Decode a cursor of ``encode_page``; raise ``GpupoolError(INVALID_REQUEST)`` if it is invalid."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        when, _, workload = text.partition(" ")
        created_at = float(when)
    except (ValueError, binascii.Error) as error:
        raise _bad_cursor() from error
    if not is_workload_id(workload) or not 0 <= created_at < 1e11:
        raise _bad_cursor()
    return created_at, WorkloadId(workload)


def encode_offset(rows: int) -> str:
    """Return the opaque cursor of the page after ``rows`` rows."""
    return f"o{rows}"


def decode_offset(cursor: str) -> int:
    """Return the offset in a cursor of ``encode_offset``; raise ``GpupoolError(INVALID_REQUEST)`` for anything else."""
    digits = cursor.removeprefix("o")
    if not cursor.startswith("o") or not digits.isascii() or not digits.isdigit() or len(digits) > MAX_OFFSET_DIGITS:
        raise _bad_cursor()
    return int(digits)


def _bad_cursor() -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_REQUEST, "cursor: is not a cursor of this pool.", "Repeat the request without a cursor."
    )
