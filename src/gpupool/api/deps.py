"""What routes ask for: the services, who is calling, and bounded query parameters."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Annotated

from fastapi import Depends, Query
from fastapi.params import Path
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.responses import Response

from gpupool.api.attempts import FailedAttempts
from gpupool.api.schemas import MAX_PAGE
from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId, is_workload_id
from gpupool.services.pool import PoolServices

PEER_UID = "gpupool.peer_uid"  # key of an ASGI scope's extensions: the uid at the other end of a unix socket
LOOPBACK_UID = "gpupool.loopback_uid"  # likewise: the account of a peer on the dashboard's loopback address, or None
_TOKEN_LIMIT = 512


def peer_uid(connection: HTTPConnection) -> int | None:
    """The uid at the other end of a unix socket; None over the network."""
    uid: int | None = (connection.scope.get("extensions") or {}).get(PEER_UID)
    return uid


def loopback_uid(connection: HTTPConnection) -> int | None:
    """The account at the other end of a loopback connection; -1 when the kernel did not say, None over TLS or unix.

    It says whose program it is, and is no proof of who is asking.
    """
    extensions = connection.scope.get("extensions") or {}
    if LOOPBACK_UID not in extensions:
        return None
    uid: int | None = extensions[LOOPBACK_UID]
    return -1 if uid is None else uid


def peer_name(connection: HTTPConnection) -> str:
    """Whom failed attempts are counted for: an address, or on this machine an account."""
    uid = loopback_uid(connection)
    if uid is not None:
        return f"uid {uid}"
    return connection.client.host if connection.client else ""


async def get_services(connection: HTTPConnection) -> PoolServices:
    """The services the application was made with. A coroutine, as all of these: others would run in threads."""
    services: PoolServices = connection.app.state.services
    return services


async def get_closing(connection: HTTPConnection) -> asyncio.Event:
    """Set when the server is about to stop: whatever waits or streams ends."""
    closing: asyncio.Event = connection.app.state.closing
    return closing


Services = Annotated[PoolServices, Depends(get_services)]


async def authenticate(connection: HTTPConnection) -> Actor:
    """Who is calling: by peer credentials on the unix socket, else by bearer token.

    Raises ``GpupoolError(UNAUTHENTICATED)``, or TOO_MANY_ATTEMPTS for a peer that keeps showing wrong tokens.
    """
    services: PoolServices = connection.app.state.services
    uid = peer_uid(connection)
    if uid is not None:
        return await services.access.actor_for_uid(uid)
    attempts: FailedAttempts = connection.app.state.attempts
    peer = peer_name(connection)
    attempts.check(peer)
    try:
        return await services.access.actor_for_token(_bearer_token(connection))
    except GpupoolError as error:
        if error.code is ErrorCode.UNAUTHENTICATED:
            attempts.failed(peer)
        raise


def _bearer_token(connection: HTTPConnection) -> str:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_LIMIT or not token.isascii():
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            "This address needs a token.",
            "Send 'Authorization: Bearer gpt_...'; make a token with 'gpupool token create' on the pool's machine.",
        )
    return token


Caller = Annotated[Actor, Depends(authenticate)]
Closing = Annotated[asyncio.Event, Depends(get_closing)]

Ref = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$", description="A workload's id or name.")
]
NodeName = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,253}$", description="A node's name.")]
NameInPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9._@+-]{1,64}$")]
Index = Annotated[int, Query(ge=0, le=10_000_000, description="Which replica.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most entries to return.")]
EventId = Annotated[int, Query(ge=0, le=2**62)]
Moment = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since the epoch.")]
TimeoutS = Annotated[float, Query(ge=0, le=60, allow_inf_nan=False, description="Longest wait in seconds.")]
Cursor = Annotated[str, Query(max_length=200, pattern=r"^[\x20-\x7e]*$", description="Where to go on.")]
Word = Annotated[str, Query(max_length=128, pattern=r"^[^\x00]*$")]


def answer(model: BaseModel, status: int = 200) -> Response:
    """A model as JSON; made here of trusted values, so it is written without being validated again."""
    return Response(model.model_dump_json(), status, media_type="application/json")


def encode_page(created_at: float, workload: WorkloadId) -> str:
    """The opaque cursor of the page after a workload."""
    return base64.urlsafe_b64encode(f"{created_at!r} {workload}".encode()).decode().rstrip("=")


def decode_page(cursor: str) -> tuple[float, WorkloadId]:
    """What ``encode_page`` was given; raises ``GpupoolError(INVALID_REQUEST)`` for anything else."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        when, _, workload = text.partition(" ")
        created_at = float(when)
    except (ValueError, binascii.Error) as error:
        raise _bad_cursor() from error
    if not is_workload_id(workload) or not 0 <= created_at < 1e11:
        raise _bad_cursor()
    return created_at, WorkloadId(workload)


def _bad_cursor() -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_REQUEST, "cursor: is not one that this pool gave.", "Start again without a cursor."
    )
