"""The end of a message body, for any pieces in which it arrives; httptools is the second opinion."""

from __future__ import annotations

from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.gateway.framing import (
    LAST_CHUNK,
    MAX_SIZE_LINE_BYTES,
    BodyUntilClose,
    ChunkedBody,
    Framing,
    FramingError,
    LengthBody,
    NoBody,
    chunk,
)

contents = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
extensions = st.sampled_from([b"", b";a=b", b";x=y z", b';q="\xff"'])
trailers = st.lists(st.sampled_from([b"X-A: 1", b"Checksum:abc", b"A: "]), max_size=3)


def feed_in_pieces(framing: Framing, data: bytes, cuts: list[int]) -> tuple[int, bytes]:
    """Return the index after the body, and its content."""
    content: list[bytes] = []
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for begin, end in pairwise(places):
        consumed = framing.feed(data[begin:end], 0, content)
        if framing.done:
            return begin + consumed, b"".join(content)
        assert consumed == end - begin
    return len(data), b"".join(content)


def chunked(parts: list[bytes], extension: bytes, fields: list[bytes]) -> bytes:
    body = b"".join(b"%X%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return body + b"0\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


@given(contents, extensions, trailers, st.binary(max_size=30), st.lists(st.integers(0, 10**6), max_size=8))
def test_a_chunked_body_ends_at_the_same_byte_in_any_pieces(
    parts: list[bytes], extension: bytes, fields: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    body = chunked(parts, extension, fields)
    framing = ChunkedBody(trailers=True)
    assert feed_in_pieces(framing, body + rest, cuts) == (len(body), b"".join(parts))
    assert framing.done
    assert framing.received == sum(map(len, parts))


@given(st.integers(0, 50), st.binary(max_size=80), st.lists(st.integers(0, 10**6), max_size=8))
def test_a_body_of_known_length_ends_after_it(length: int, data: bytes, cuts: list[int]) -> None:
    framing = LengthBody(length)
    end, content = feed_in_pieces(framing, data, cuts) if not framing.done else (0, b"")
    assert content == data[:length]
    assert end == min(length, len(data))
    assert framing.done == (len(data) >= length)


@given(st.binary(max_size=50))
def test_other_bodies(data: bytes) -> None:
    assert NoBody().feed(data, 0) == 0
    framing, content = BodyUntilClose(), list[bytes]()
    assert framing.feed(data, 0, content) == len(data)
    assert (b"".join(content), framing.done) == (data, False)


class _Reference:
    """The content and the completeness of a body, as httptools sees them."""

    def __init__(self) -> None:
        self.content = b""
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self.content += body

    def on_message_complete(self) -> None:
        self.complete = True


PIECES = [b"0", b"1", b"5", b"a", b"F", b"\r\n", b"\n", b"\r", b";", b" ", b"x", b"hello", b"\0", b"-1", b"0x1", b"+1"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), st.lists(st.integers(0, 10**6), max_size=4))
def test_what_is_accepted_means_the_same_to_another_parser(body: bytes, cuts: list[int]) -> None:
    framing = ChunkedBody()
    try:
        end, content = feed_in_pieces(framing, body, cuts)
    except FramingError:
        return
    if not framing.done:
        return  # an invalid line is refused when it is complete
    reference = _Reference()
    parser = httptools.HttpRequestParser(reference)
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    parser.feed_data(body[:end])  # raises if it does not agree that this is valid
    assert (reference.content, reference.complete) == (content, True)


@given(contents, st.lists(st.integers(0, 10**6), max_size=8), st.data())
def test_a_damaged_chunked_body_is_refused_or_incomplete(
    parts: list[bytes], cuts: list[int], data: st.DataObject
) -> None:
    body = chunked(parts, b"", [])
    places = [at for at, byte in enumerate(body) if byte == 13]
    at = data.draw(st.sampled_from(places))
    framing = ChunkedBody()
    try:
        feed_in_pieces(framing, body[:at] + body[at + 1 :], cuts)  # a CR is missing
    except FramingError:
        return
    assert not framing.done or b"\r" in b"".join(parts)


@pytest.mark.parametrize(
    "body",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\n",
        b"+5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"\r\n",
        b"5;a\x00b\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"ffffffffffffffff\r\n",
        b"0" * (MAX_SIZE_LINE_BYTES + 1),
        b"5;" + b"a" * MAX_SIZE_LINE_BYTES,
        b"0\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",
        b"0\r\nabc\r\n\r\n",
    ],
)
def test_invalid_chunks_are_refused_in_any_pieces(body: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(body)
    with pytest.raises(FramingError):
        feed_in_pieces(ChunkedBody(), body, list(range(len(body))))


def test_trailers_have_a_limit() -> None:
    with pytest.raises(FramingError):
        ChunkedBody(trailers=True).feed(b"0\r\n" + b"A: b\r\n" * 2000)


@given(contents)
def test_chunks_of_the_gateway_are_read_back(parts: list[bytes]) -> None:
    body = b"".join(map(chunk, [*parts, b""])) + LAST_CHUNK
    content: list[bytes] = []
    framing = ChunkedBody()
    assert framing.feed(body, 0, content) == len(body)
    assert framing.done
    assert b"".join(content) == b"".join(parts)
