"""The peer of a connection: its account or address, and what the server keeps about it in the ASGI scope."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from gpupool.api.server.connections import ClientKind, Slot
from gpupool.api.server.proxies import TrustedProxies

PEER_UID = "gpupool.peer_uid"  # key of an ASGI scope's extensions: the uid at the other end of a unix socket
RATE_COUNTED = "gpupool.rate_counted"  # likewise: the request was counted by ``request_rate``
SLOT = "gpupool.slot"  # likewise: the ``connections.Slot`` of the connection
LOOPBACK_UID = "gpupool.loopback_uid"  # likewise: the account of a peer on the dashboard's loopback address, or None


def peer_uid(connection: HTTPConnection) -> int | None:
    """Return the uid of the peer of a unix socket; None over the network."""
    uid: int | None = (connection.scope.get("extensions") or {}).get(PEER_UID)
    return uid


def loopback_uid(connection: HTTPConnection) -> int | None:
    """Return the uid of the peer of a loopback connection; -1 if unknown, None over TLS or a unix socket.

    It identifies the program's account and does not authenticate the request.
    """
    extensions = connection.scope.get("extensions") or {}
    if LOOPBACK_UID not in extensions:
        return None
    uid: int | None = extensions[LOOPBACK_UID]
    return -1 if uid is None else uid


def peer_name(connection: HTTPConnection) -> str:
    """Return the key under which failed attempts are counted: an address, or on this machine an account."""
    uid = loopback_uid(connection)
    if uid is not None:
        return f"uid {uid}"
    peer = connection.client.host if connection.client else ""
    proxies: TrustedProxies | None = getattr(connection.app.state, "trusted_proxies", None)
    return peer if proxies is None else proxies.origin(peer, connection.headers.getlist("x-forwarded-for"))


def slot_of(connection: HTTPConnection) -> Slot | None:
    """Return the slot of the connection; None if the application runs without this server."""
    slot: Slot | None = (connection.scope.get("extensions") or {}).get(SLOT)
    return slot


def is_stranger(connection: HTTPConnection) -> bool:
    """Return whether the connection came over the network without a valid credential so far."""
    slot = slot_of(connection)
    return slot is not None and slot.kind is ClientKind.STRANGER
