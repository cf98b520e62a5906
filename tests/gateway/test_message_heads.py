"""Heads of requests and responses: valid ones are understood, all others are refused."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.gateway.credentials import TokenSet, digest_of
from gpupool.gateway.forwarding import Destination, ForwardedPeer, request_to_replica, response_to_client
from gpupool.gateway.heads import MAX_CACHED_HEAD_BYTES, HeadError, check_part, parse_request, parse_response

tokens = st.text("abcXYZ019-_", min_size=1, max_size=12)
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30)


def request(*lines: str, first: str = "GET /a HTTP/1.1", host: str = "Host: x") -> bytes:
    return "\r\n".join([first, *([host] if host else []), *lines, "", ""]).encode("latin-1")


def test_a_head_is_understood() -> None:
    head = parse_request(
        request("Content-Length: 5", "X-A:  b c\t", "Expect: 100-Continue", first="POST /a?b HTTP/1.1")
    )
    assert (head.method, head.target, head.host, head.minor) == (b"POST", b"/a?b", b"x", 1)
    assert (head.length, head.chunked, head.keep_alive, head.expects_continue) == (5, False, True, True)
    assert head.fields[2] == (b"x-a", b"X-A", b"b c")


@given(st.lists(st.tuples(tokens, values), max_size=8))
def test_fields_survive(fields: list[tuple[str, str]]) -> None:
    fields = [(name, value) for name, value in fields if name.lower() not in {"host", "te", "upgrade", "connection"}]
    head = parse_request(request(*[f"{name}: {value}" for name, value in fields]))
    assert [(name.decode(), value.decode("latin-1")) for _, name, value in head.fields[1:]] == [
        (name, value.strip(" \t")) for name, value in fields
    ]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (request("Content-Length: 5", "Content-Length: 6"), 400),
        (request("Content-Length: 5", "Content-Length: 5"), 400),
        (request("Content-Length: 5, 5"), 400),
        (request("Content-Length: +5"), 400),
        (request("Content-Length: -5"), 400),
        (request("Content-Length: 0x5"), 400),
        (request("Content-Length: 5 5"), 400),
        (request("Content-Length:"), 400),
        (request("Content-Length: 9999999999999999999"), 400),
        (request("Content-Length: 5", "Transfer-Encoding: chunked"), 400),
        (request("Transfer-Encoding: chunked", "Content-Length: 5"), 400),
        (request("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
        (request("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), 400),
        (request("Transfer-Encoding: gzip, chunked"), 501),
        (request("Transfer-Encoding: identity"), 400),
        (request("Transfer-Encoding: xchunked"), 400),
        (request("Transfer-Encoding : chunked"), 400),
        (request(" Transfer-Encoding: chunked"), 400),
        (request("X: a", " folded"), 400),
        (request("X: a", "\tfolded"), 400),
        (request("X: a\nTransfer-Encoding: chunked"), 400),
        (request("X: a\rTransfer-Encoding: chunked"), 400),
        (request("X: a\x00b"), 400),
        (request("X\x0b: a"), 400),
        (request(": a"), 400),
        (request("novalue"), 400),
        (request("Host: y"), 400),
        (request(host=""), 400),
        (request(host="Host: a b"), 400),
        (request(host="Host: a/b"), 400),
        (request(host="Host: a@b"), 400),
        (request("Expect: 200-ok"), 417),
        (request(first="GET  /a HTTP/1.1"), 400),
        (request(first="GET /a  HTTP/1.1"), 400),
        (request(first="GET /a\tHTTP/1.1"), 400),
        (request(first="GET /a"), 400),
        (request(first="GE T /a HTTP/1.1"), 400),
        (request(first="GET a HTTP/1.1"), 400),
        (request(first="GET * HTTP/1.1"), 400),
        (request(first="CONNECT x:80 HTTP/1.1"), 400),
        (request(first="GET http://y/a HTTP/1.1"), 400),
        (request(first="GET http://x@y/a HTTP/1.1"), 400),
        (request(first="GET ftp://x/a HTTP/1.1"), 400),
        (request(first="GET /a#b HTTP/1.1"), 400),
        (request(first="GET /\xe4 HTTP/1.1"), 400),
        (request(first="GET /a HTTP/1.2"), 400),
        (request(first="GET /a HTTP/2.0"), 505),
        (request(first="GET /a http/1.1"), 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (request("Transfer-Encoding: chunked", first="POST /a HTTP/1.0"), 400),
        (request(*[f"X-{number}: a" for number in range(200)]), 431),
        (request("X: " + "a" * 40_000), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    ],
)
def test_a_request_head_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(HeadError) as refused:
        parse_request(head)
    assert refused.value.status == HTTPStatus(status)


def test_an_absolute_target_of_the_same_host_is_a_path() -> None:
    assert parse_request(request(first="GET http://X/a?b HTTP/1.1")).target == b"/a?b"
    assert parse_request(request(first="GET http://x HTTP/1.1")).target == b"/"


@pytest.mark.parametrize(
    ("lines", "websocket"),
    [
        (["Connection: Upgrade", "Upgrade: websocket"], True),
        (["Connection: keep-alive, upgrade", "Upgrade: WebSocket"], True),
        (["Upgrade: websocket"], False),
        (["Connection: Upgrade", "Upgrade: h2c"], False),
        (["Connection: Upgrade", "Upgrade: websocket, h2c"], False),
        (["Connection: Upgrade", "Upgrade: websocket", "Content-Length: 5"], False),
    ],
)
def test_only_a_websocket_is_an_upgrade(lines: list[str], websocket: bool) -> None:
    assert parse_request(request(*lines)).websocket is websocket


@pytest.mark.parametrize(
    "part", [b"GET / HTTP/1.1\nHost: x\n\n", b"GET / HTTP/1.1\r\nHost: x\rX", b"G\0", b"x" * 40_000]
)
def test_the_beginning_of_an_invalid_head_is_refused_at_once(part: bytes) -> None:
    with pytest.raises(HeadError):
        check_part(part)


@given(st.integers(0, 200))
def test_the_beginning_of_a_valid_head_is_not_refused(length: int) -> None:
    check_part(request("X-A: b", "Content-Length: 5")[:length])


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: a\n\n\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_a_response_head_is_refused(head: bytes) -> None:
    with pytest.raises(HeadError):
        parse_response(head)


@pytest.mark.parametrize("first", ["HTTP/1.1 200 OK", "HTTP/1.1 200 ", "HTTP/1.1 200"])
def test_a_response_head_is_understood(first: str) -> None:
    head = parse_response(f"{first}\r\nContent-Length: 5\r\nConnection: close\r\nEmpty:\r\n\r\n".encode())
    assert (head.status, head.length, head.keep_alive, head.value(b"empty")) == (200, 5, False, b"")
    assert head.framing(b"HEAD").done
    assert not head.framing(b"GET").done


@given(st.binary(max_size=60))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    for parse in (parse_request, parse_response):
        for head in (data, b"GET / HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n"):
            try:
                parse(head)
            except HeadError:
                continue


def test_head_seen_before_is_rewritten_for_other_tokens_peers_and_prefixes() -> None:
    secret = b"not-of-a-pool"
    head = parse_request(request(f"Authorization: Bearer {secret.decode()}"))
    assert parse_request(request(f"Authorization: Bearer {secret.decode()}")) is head
    near, far = (ForwardedPeer(address, trusted=False, scheme=b"http") for address in (b"127.0.0.1", b"10.0.0.9"))
    known, to = TokenSet([digest_of(secret)]), Destination(b"/a", b"/s/p/n")
    assert secret in request_to_replica(head, to, near, TokenSet(()))
    assert secret not in request_to_replica(head, to, near, known)
    assert b"X-Forwarded-For: 10.0.0.9\r\n" in request_to_replica(head, to, far, known)
    other = request_to_replica(head, Destination(b"/b", b"/s/p/m"), near, known)
    assert other.startswith(b"GET /b HTTP/1.1\r\n")
    assert b"X-Forwarded-Prefix: /s/p/m\r\n" in other
    answer = parse_response(b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n")
    assert b"Location: /s/p/n/x\r\n" in response_to_client(answer, to, ())
    closes = (b"Connection: close",)
    assert response_to_client(answer, Destination(b"/a"), closes).endswith(b"/x\r\nConnection: close\r\n\r\n")


def test_long_heads_are_not_kept() -> None:
    head = request(f"X-Long: {'x' * MAX_CACHED_HEAD_BYTES}")
    assert parse_request(head) is not parse_request(head)
    assert not parse_request(head).short
