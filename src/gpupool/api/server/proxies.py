"""Trusted reverse proxies, whose ``X-Forwarded-For`` gives the client address of a request."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_PROXIES = 64
MAX_HOPS = 32
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """Networks (CIDR) of trusted proxies."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raise ``GpupoolError(INVALID_REQUEST)`` for an invalid network, all addresses, or too many networks."""
        self._networks = [_network(text) for text in networks]
        if len(self._networks) > MAX_PROXIES:
            raise _invalid(f"At most {MAX_PROXIES} networks can be trusted proxies.")

    def __contains__(self, address: str) -> bool:
        found = _address(address)
        return found is not None and any(found in network for network in self._networks)

    def origin(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the client address of a request.

        ``forwarded`` has the values of all ``X-Forwarded-For`` headers. Each proxy appends the address of its client,
        so the result is the rightmost address that is not a trusted proxy. Values further left may be forged by the
        client; a value that is not an address ends the search.
        """
        if peer not in self:
            return peer
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        origin = peer
        for hop in reversed(hops[-MAX_HOPS:]):
            found = _address(hop)
            if found is None:
                break
            origin = str(found)
            if origin not in self:
                break
        return origin


def network_of(address: str) -> str:
    """Return the unit that limits count as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return address if found is None else str(found)


def _address(text: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(text, strict=True)
    except ValueError as error:
        raise _invalid(f"'{text[:80]}' is not an IP address or network.") from error
    if network.prefixlen == 0:
        raise _invalid(f"'{text[:80]}' would trust every address.")
    return network


def _invalid(sentence: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_REQUEST, sentence, "Give the address of each proxy, as in --trusted-proxy 10.0.0.5/32."
    )
