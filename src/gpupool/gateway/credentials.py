"""Credentials in requests: find them, compare them, and remove them before a replica sees the request. Pure.

Credentials are a bearer token in Authorization, the gateway's cookie, and the parameter ``gpupool_token`` of a link.
Cookies of the dashboard arrive too, because browsers send cookies to all ports of a host; they are removed as well.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from gpupool.gateway.heads import Field

COOKIE = b"gpupool-service"
OWN_COOKIES = (b"gpupool", b"__host-gpupool", b"__secure-gpupool")  # beginnings of names, of all pools
PARAMETER = b"gpupool_token"
MAX_TOKEN_BYTES = 512
_TOKEN_PREFIX = b"gpt_"  # of every token of a pool
_KEY_FIELDS = frozenset({b"x-api-key", b"api-key"})
_COOKIE_VALUE = re.compile(rb"[A-Za-z0-9._~+/=\-]{1,512}")
_BEGINNING = 16  # digits by which digests are found


class TokenSet:
    """Digests of tokens. Digests are found by their beginning and then compared in constant time."""

    __slots__ = ("_by_beginning",)

    def __init__(self, digests: Iterable[str]) -> None:
        self._by_beginning: dict[str, list[str]] = {}
        for digest in digests:
            self._by_beginning.setdefault(digest[:_BEGINNING], []).append(digest)

    def __contains__(self, digest: str) -> bool:
        return any(hmac.compare_digest(digest, known) for known in self._by_beginning.get(digest[:_BEGINNING], ()))


def digest_of(token: bytes) -> str:
    """Return the SHA-256 of a token in hexadecimal."""
    return hashlib.sha256(token).hexdigest()


def presented(fields: Iterable[Field], parameter: bytes | None = None) -> list[str]:
    """Return the digests of all tokens in a request: the bearer token, those in cookies, and that of a link."""
    found = [] if parameter is None else [digest_of(parameter)]
    for lower, _, value in fields:
        if lower == b"authorization":
            token = _bearer(value)
            if token:
                found.append(digest_of(token))
        elif lower == b"cookie":
            found += [digest_of(cookie) for name, cookie in _cookies(value) if name == COOKIE and cookie]
    return found


def without_credentials(field: Field, known: TokenSet) -> Field | None:
    """Return a field without credentials of the pool; None if nothing is left of it."""
    lower, name, value = field
    if lower == b"cookie":
        kept = b"; ".join([part for part in _parts(value) if not part.lower().startswith(OWN_COOKIES)])
        return (lower, name, kept) if kept else None
    if lower == b"authorization":
        token = _bearer(value)
        return None if token and (token.startswith(_TOKEN_PREFIX) or digest_of(token) in known) else field
    if lower in _KEY_FIELDS and (value.startswith(_TOKEN_PREFIX) or digest_of(value) in known):
        return None
    return field


def take_parameter(target: bytes) -> tuple[bytes, bytes | None]:
    """Return a target without the token of a link, and the token; None without one."""
    if PARAMETER not in target:
        return target, None
    path, mark, query = target.partition(b"?")
    token: bytes | None = None
    kept = []
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == PARAMETER:
            token = unquote_to_bytes(value.replace(b"+", b" "))[:MAX_TOKEN_BYTES]
        else:
            kept.append(part)
    if token is None:
        return target, None
    return path + (mark + b"&".join(kept) if kept else b""), token


def is_cookie_value(token: bytes) -> bool:
    """Return whether a token can be the value of a cookie."""
    return _COOKIE_VALUE.fullmatch(token) is not None


def session_cookie(token: bytes, path: bytes, *, secure: bool) -> bytes:
    """Return the value of Set-Cookie that keeps the token of a link for the services below ``path``."""
    return b"%b=%b; Path=%b/; HttpOnly; SameSite=Lax%b" % (COOKIE, token, path, b"; Secure" if secure else b"")


def sets_own_cookie(value: bytes) -> bool:
    """Return whether a Set-Cookie of a replica would replace a cookie of the pool."""
    return value.lstrip(b" \t").lower().startswith(OWN_COOKIES)


def _bearer(value: bytes) -> bytes:
    scheme, _, token = value.partition(b" ")
    return token.strip(b" \t")[:MAX_TOKEN_BYTES] if scheme.lower() == b"bearer" else b""


def _parts(value: bytes) -> list[bytes]:
    return [part.strip(b" \t") for part in value.split(b";")]


def _cookies(value: bytes) -> list[tuple[bytes, bytes]]:
    pairs = [part.partition(b"=") for part in _parts(value)]
    return [(name, cookie[:MAX_TOKEN_BYTES]) for name, _, cookie in pairs]
