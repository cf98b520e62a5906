"""Parse heads of requests and responses strictly. Pure.

A regular expression refuses what servers understand differently (bare LF, folded lines, spaces before a colon, control
characters); httptools then parses the fields. Both must accept a head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

import httptools

from gpupool.gateway.framing import BodyUntilClose, ChunkedBody, Framing, LengthBody, NoBody

MAX_REQUEST_HEAD_BYTES = 32 << 10
MAX_RESPONSE_HEAD_BYTES = 64 << 10
MAX_FIELDS = 128
MAX_CACHED_HEAD_BYTES = 2 << 10
CACHED_HEADS = 512
END = b"\r\n\r\n"
Field = tuple[bytes, bytes, bytes]  # name in lower case, name, value

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_FIELDS = rb"(?:" + _TOKEN + rb"{1,256}:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
_REQUEST = re.compile(_TOKEN + rb"{1,32} [\x21-\x7e]+ HTTP/1\.[01]\r\n" + _FIELDS)
_RESPONSE = re.compile(rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*)?\r\n" + _FIELDS)
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])\r\n")
_BARE_LF = re.compile(rb"(?<!\r)\n|\r(?!\n)(?=.)", re.DOTALL)
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~\-]*)(?::[0-9]{0,5})?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_LISTS = frozenset({b"connection", b"upgrade"})  # may appear several times, unlike the others that are noted
_NOTED = _LISTS | {b"host", b"content-length", b"transfer-encoding", b"expect", b"authorization"}


class HeadError(ValueError):
    """Raised for a head that is refused; ``status`` is the HTTP status of the answer."""

    def __init__(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True, frozen=True, eq=False)
class RequestHead:
    """The head of a request. ``target`` is a path with its query; ``length`` is None without Content-Length.

    ``short``: it is kept to be used again.
    """

    method: bytes
    target: bytes
    fields: tuple[Field, ...]
    host: bytes
    minor: int
    keep_alive: bool
    websocket: bool
    chunked: bool
    length: int | None
    expects_continue: bool
    connection: frozenset[bytes]
    short: bool

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all fields with a name in lower case."""
        return [value for lower, _, value in self.fields if lower == name]

    def framing(self) -> Framing:
        """Return the framing of the body."""
        if self.chunked:
            return ChunkedBody()
        return LengthBody(self.length) if self.length else NoBody()

    @property
    def has_body(self) -> bool:
        """Return whether a body follows."""
        return self.chunked or bool(self.length)


@dataclass(slots=True, frozen=True, eq=False)
class ResponseHead:
    """The head of a response. ``short``: it is kept to be used again."""

    status: int
    reason: bytes
    fields: tuple[Field, ...]
    minor: int
    keep_alive: bool
    chunked: bool
    length: int | None
    connection: frozenset[bytes]
    short: bool

    def value(self, name: bytes) -> bytes:
        """Return the first value of a field with a name in lower case, or nothing."""
        return next((value for lower, _, value in self.fields if lower == name), b"")

    def has_body(self, method: bytes) -> bool:
        """Return whether a response to this method has a body."""
        return method != b"HEAD" and self.status >= 200 and self.status not in {204, 304}

    def framing(self, method: bytes) -> Framing:
        """Return the framing of the body of a response to this method."""
        if not self.has_body(method):
            return NoBody()
        if self.chunked:
            return ChunkedBody(trailers=True)
        return BodyUntilClose() if self.length is None else LengthBody(self.length)


class _Collector:
    """Receives the parts of a head from httptools; ``noted`` has the fields that the gateway itself reads."""

    __slots__ = ("fields", "noted", "repeated", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[Field] = []
        self.noted: dict[bytes, bytes] = {}
        self.repeated: bytes | None = None

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        lower, value = name.lower(), value.strip(b" \t")
        self.fields.append((lower, name, value))
        if lower in _NOTED:
            if lower in self.noted:
                if lower not in _LISTS:
                    self.repeated = lower
                value = self.noted[lower] + b"," + value
            self.noted[lower] = value

    def check(self) -> None:
        """Raise ``HeadError`` for too many fields, or one that may appear only once."""
        if self.repeated is not None:
            raise HeadError(f"the field {self.repeated.decode()} appears twice")
        if len(self.fields) > MAX_FIELDS:
            raise HeadError("the head has too many fields", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)


def check_part(data: bytes) -> None:
    """Refuse the beginning of a request head that can no longer become valid. Raises ``HeadError``."""
    if len(data) > MAX_REQUEST_HEAD_BYTES:
        raise HeadError("the head is too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    if _BARE_LF.search(data) or b"\0" in data:
        raise HeadError("a line of the head does not end with CR LF")


def parse_request(head: bytes) -> RequestHead:
    """Parse a complete request head with its empty line. Raises ``HeadError``."""
    return _parse_known_request(head) if len(head) <= MAX_CACHED_HEAD_BYTES else _parse_request(head)


def _parse_request(head: bytes) -> RequestHead:
    if len(head) > MAX_REQUEST_HEAD_BYTES:
        raise HeadError("the head is too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    if _REQUEST.fullmatch(head) is None:
        version = _VERSION.search(head)
        if version is not None and version[1] != b"1":
            raise HeadError("only HTTP/1.1 and HTTP/1.0 are supported", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        raise HeadError("the head is not valid HTTP/1.1")
    collected = _Collector()
    parser = httptools.HttpRequestParser(collected)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise HeadError(f"the head is not valid HTTP/1.1: {error}") from error
    collected.check()
    noted, method, minor = collected.noted, parser.get_method(), int(parser.get_http_version()[-1])
    tokens = _connection(noted)
    chunked, length = _body_of(noted, minor)
    host = noted.get(b"host", b"").lower()
    if minor and b"host" not in noted:
        raise HeadError("the field Host is missing")
    if _HOST.fullmatch(host) is None:
        raise HeadError("the field Host is not valid")
    expect = noted.get(b"expect", b"").lower()
    if expect not in _EXPECTATIONS:
        raise HeadError("this expectation is not supported", HTTPStatus.EXPECTATION_FAILED)
    upgrade = b"upgrade" in tokens and minor and method == b"GET" and not chunked and not length
    return RequestHead(
        method=method,
        target=_path(method, collected.target, host),
        fields=tuple(collected.fields),
        host=host,
        minor=minor,
        keep_alive=bool(minor) and b"close" not in tokens,
        websocket=bool(upgrade) and noted.get(b"upgrade", b"").lower() == b"websocket",
        chunked=chunked,
        length=length,
        expects_continue=bool(expect) and bool(minor) and (chunked or bool(length)),
        connection=tokens,
        short=len(head) <= MAX_CACHED_HEAD_BYTES,
    )


def parse_response(head: bytes) -> ResponseHead:
    """Parse a complete response head with its empty line. Raises ``HeadError``."""
    return _parse_known_response(head) if len(head) <= MAX_CACHED_HEAD_BYTES else _parse_response(head)


def _parse_response(head: bytes) -> ResponseHead:
    if len(head) > MAX_RESPONSE_HEAD_BYTES or _RESPONSE.fullmatch(head) is None:
        raise HeadError("the response's head is not valid HTTP/1.1")
    collected = _Collector()
    parser = httptools.HttpResponseParser(collected)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise HeadError(f"the response's head is not valid: {error}") from error
    collected.check()
    minor = int(parser.get_http_version()[-1])
    tokens = _connection(collected.noted)
    chunked, length = _body_of(collected.noted, minor)
    return ResponseHead(
        status=parser.get_status_code(),
        reason=head[13 : head.index(b"\r\n")],
        fields=tuple(collected.fields),
        minor=minor,
        keep_alive=bool(minor) and b"close" not in tokens,
        chunked=chunked,
        length=length,
        connection=tokens,
        short=len(head) <= MAX_CACHED_HEAD_BYTES,
    )


def _body_of(noted: dict[bytes, bytes], minor: int) -> tuple[bool, int | None]:
    """Return whether the body is chunked, and its length if it is given."""
    encoding, length = noted.get(b"transfer-encoding"), noted.get(b"content-length")
    if encoding is not None:
        if length is not None:
            raise HeadError("Content-Length and Transfer-Encoding exclude each other")
        if not minor:
            raise HeadError("HTTP/1.0 has no Transfer-Encoding")
        if encoding.lower() != b"chunked":
            raise HeadError("only the transfer encoding chunked is supported", HTTPStatus.NOT_IMPLEMENTED)
        return True, None
    if length is None:
        return False, None
    if _LENGTH.fullmatch(length) is None:
        raise HeadError("Content-Length is not a number")
    return False, int(length)


def _connection(noted: dict[bytes, bytes]) -> frozenset[bytes]:
    """Return the options of the field Connection in lower case."""
    value = noted.get(b"connection")
    if value is None:
        return _NONE
    return frozenset([part.strip(b" \t") for part in value.lower().split(b",")])


# Clients and servers send the same heads again and again.
_parse_known_request = lru_cache(CACHED_HEADS)(_parse_request)
_parse_known_response = lru_cache(CACHED_HEADS)(_parse_response)
_NONE: frozenset[bytes] = frozenset()
_EXPECTATIONS = frozenset({b"", b"100-continue"})


def _path(method: bytes, target: bytes, host: bytes) -> bytes:
    """Return the path of a target; an absolute target must name the same host."""
    if target.startswith(b"/"):
        if b"#" in target:
            raise HeadError("the target has a fragment")
        return target
    scheme, separator, rest = target.partition(b"://")
    if method == b"CONNECT" or not separator or scheme.lower() not in {b"http", b"https"}:
        raise HeadError("the target is not a path")
    authority, slash, path = rest.partition(b"/")
    if authority.lower() != host.lower() or not authority or b"#" in path:
        raise HeadError("the target names another host")
    return slash + path or b"/"
