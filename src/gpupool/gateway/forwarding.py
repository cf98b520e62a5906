"""Build the heads that the gateway sends: requests to replicas and responses to clients. Pure.

Heads are written anew from parsed fields, so a replica and a client see exactly what the gateway has checked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gpupool.gateway.credentials import TokenSet, sets_own_cookie, without_credentials
from gpupool.gateway.heads import CACHED_HEADS, RequestHead, ResponseHead
from gpupool.gateway.local_programs import field_to_program, location_to_client

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te"}
    | {b"trailer", b"transfer-encoding", b"content-length", b"upgrade", b"expect", b"http2-settings"}
)
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
_NOT_FORWARDED = _HOP_BY_HOP | _FORWARDED | {b"host", b"x-forwarded-prefix", b"x-forwarded-port", b"x-real-ip"}
_CREDENTIALS = frozenset({b"authorization", b"cookie", b"x-api-key", b"api-key"})
# Fields of a response that would change other services or the dashboard on the same host.
_NOT_RETURNED = _HOP_BY_HOP | {
    b"alt-svc",
    b"clear-site-data",
    b"service-worker-allowed",
    b"strict-transport-security",
}


class Networks:
    """Networks of trusted proxies: their X-Forwarded-For and X-Forwarded-Proto are kept."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raise ``ValueError`` for a text that is not a network."""
        self._networks = [ipaddress.ip_network(text, strict=False) for text in networks]

    def __contains__(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


@dataclass(frozen=True, slots=True, eq=False)
class ForwardedPeer:
    """A client's address, whether it is a trusted proxy, and the scheme of its connection."""

    address: bytes
    trusted: bool
    scheme: bytes

    def scheme_of(self, head: RequestHead) -> bytes:
        """Return the scheme that the user's browser uses."""
        given = head.values(b"x-forwarded-proto") if self.trusted else []
        return b"https" if given and given[-1].strip().lower() == b"https" else self.scheme


class Destination(NamedTuple):
    """The target of a request to a replica: ``prefix`` was removed from its path.

    ``local_host`` is the address as which a program that expects requests from its own machine is asked. It is a tuple
    because it is hashed for each request.
    """

    target: bytes
    prefix: bytes = b""
    local_host: bytes = b""


def request_to_replica(
    head: RequestHead, to: Destination, peer: ForwardedPeer, known: TokenSet, length: int | None = None
) -> bytes:
    """Return the head for a replica; ``length``: of a body already read."""
    return (_kept_request if head.short else _request)(head, to, peer, known, length)


def _request(  # noqa: C901, PLR0912 - one head, from top to bottom
    head: RequestHead, to: Destination, peer: ForwardedPeer, known: TokenSet, length: int | None
) -> bytes:
    dropped, connection = _NOT_FORWARDED, head.connection
    host = head.host or b"localhost"  # HTTP/1.0 needs none
    lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (head.method, to.target, to.local_host or host)]
    for field in head.fields:
        lower, name, value = field
        if lower in dropped or lower in connection:
            continue
        if to.local_host:
            local = field_to_program(field, head.host, to.local_host)
            if local is None:
                continue
            value = local[2]
        if lower not in _CREDENTIALS:
            lines.append(name + b": " + value)
        elif kept := without_credentials(field, known):
            lines.append(name + b": " + kept[2])
    if not to.local_host:
        chain = peer.address
        if peer.trusted:
            chain = b", ".join([*head.values(b"x-forwarded-for"), chain])
        lines += [
            b"X-Forwarded-For: " + chain,
            b"X-Forwarded-Proto: " + peer.scheme_of(head),
            b"X-Forwarded-Host: " + host,
        ]
    if to.prefix:
        lines.append(b"X-Forwarded-Prefix: " + to.prefix)
    if head.chunked and length is None:
        lines.append(b"Transfer-Encoding: chunked")
    else:
        size = head.length if length is None else length
        if size is not None:
            lines.append(b"Content-Length: %d" % size)
    if head.expects_continue and length is None:
        lines.append(b"Expect: 100-continue")
    if head.websocket:
        lines += [b"Connection: Upgrade", b"Upgrade: websocket"]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def response_to_client(head: ResponseHead, to: Destination, ending: tuple[bytes, ...]) -> bytes:
    """Return the head for the client; ``ending`` has the fields of framing and connection."""
    return (_kept_response if head.short else _response)(head, to.prefix, to.local_host, ending)


def _response(head: ResponseHead, prefix: bytes, local_host: bytes, ending: tuple[bytes, ...]) -> bytes:
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    for lower, name, value in head.fields:
        if lower in _NOT_RETURNED or lower in head.connection or (lower == b"set-cookie" and sets_own_cookie(value)):
            continue
        if lower == b"location" and prefix and value.startswith(b"/") and not _is_below(value, prefix):
            value = prefix + value  # noqa: PLW2901 - the replica does not know its prefix
        elif lower == b"location" and local_host:
            value = location_to_client(value, local_host)  # noqa: PLW2901 - nor its host name
        lines.append(name + b": " + value)
    if local_host:
        lines.append(b"Content-Security-Policy: frame-ancestors 'self'")
    return b"\r\n".join([*lines, *ending]) + b"\r\n\r\n"


def _is_below(path: bytes, prefix: bytes) -> bool:
    """Return whether a path has the prefix already, or is the address of another host."""
    return path.startswith((prefix + b"/", b"//")) or path == prefix


_kept_request = lru_cache(CACHED_HEADS)(_request)
_kept_response = lru_cache(CACHED_HEADS)(_response)
