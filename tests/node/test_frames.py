"""Frames cut at any place come out as they went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain import frames


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=100)), max_size=20), st.lists(st.integers(1, 50)))
def test_any_cutting_gives_the_same_frames(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(frames.encode(kind, payload) for kind, payload in sent)
    buffer, got, at = bytearray(), [], 0
    for size in [*cuts, len(data)]:
        buffer += data[at : at + size]
        at += size
        got += frames.decode(buffer)
    assert got == sent
    assert not buffer


def test_too_large_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="at most"):
        frames.encode(frames.STDIN, b"x" * (frames.LIMIT + 1))
    with pytest.raises(ValueError, match="above the limit"):
        frames.decode(bytearray(frames.HEADER.pack(1, frames.LIMIT + 1)))


def test_sizes() -> None:
    assert frames.unpack_size(frames.pack_size(24, 80)) == (24, 80)
    assert frames.unpack_size(frames.pack_size(-1, 1 << 20)) == (0, 0xFFFF)
    with pytest.raises(ValueError, match="four bytes"):
        frames.unpack_size(b"123")
