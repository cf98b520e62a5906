"""Ports of workloads: programs that expect requests from their own machine, such as notebooks and editors. Pure.

Each port has a host name, and thus an origin, of its own: pages of other programs and services cannot read it. Cookies
are sent with requests that pages of other origins cause, so the gateway refuses these requests. The program sees
requests for localhost, as through a tunnel, so its own checks of host and origin work.
"""

from __future__ import annotations

from gpupool.gateway.heads import Field, RequestHead

_ORIGIN, _REFERER, _LOCATION = b"origin", b"referer", b"location"
_OWN_SITES = frozenset({b"same-origin", b"none"})


def from_own_origin(head: RequestHead, scheme: bytes) -> bool:
    """Return whether a page of the same origin, an address bar, a link or no browser sent a request."""
    own = scheme + b"://" + head.host
    origins = head.values(_ORIGIN)
    if origins and origins != [own]:
        return False
    sites = head.values(b"sec-fetch-site")
    if not sites or all(site in _OWN_SITES for site in sites):
        return True
    followed_link = head.values(b"sec-fetch-mode") == [b"navigate"] and head.values(b"sec-fetch-dest") == [b"document"]
    return followed_link and head.method in {b"GET", b"HEAD"} and not origins


def field_to_program(field: Field, host: bytes, local_host: bytes) -> Field | None:
    """Return a field of a request as its program sees it; None if it is left out."""
    lower, name, value = field
    if lower not in {_ORIGIN, _REFERER}:
        return field
    _, separator, rest = value.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    if not separator or authority.lower() != host:
        return None
    return lower, name, b"http://" + local_host + slash + path


def location_to_client(value: bytes, local_host: bytes) -> bytes:
    """Return the place of a redirect; a path if it names the program itself."""
    for own in (local_host, local_host.replace(b"localhost", b"127.0.0.1")):
        prefix = b"http://" + own
        if value == prefix or value.startswith(prefix + b"/"):
            return b"/" + value[len(prefix) :].lstrip(b"/\\")
    return value
