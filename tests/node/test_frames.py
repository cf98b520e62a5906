"""Frames are decoded correctly, wherever the stream is divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.protocol import frames


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=100)), max_size=20), st.lists(st.integers(1, 50)))
def test_frames_are_independent_of_read_boundaries(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(frames.encode(kind, payload) for kind, payload in sent)
    buffer, got, at = bytearray(), [], 0
    for size in [*cuts, len(data)]:
        buffer += data[at : at + size]
        at += size
        got += frames.decode(buffer)
    assert got == sent
    assert not buffer


def test_too_large_frame_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="at most"):
        frames.encode(frames.STDIN, b"x" * (frames.MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(ValueError, match="above the limit"):
        frames.decode(bytearray(frames.HEADER.pack(1, frames.MAX_PAYLOAD_BYTES + 1)))


def test_terminal_sizes_are_encoded_and_decoded() -> None:
    assert frames.unpack_size(frames.pack_size(24, 80)) == (24, 80)
    assert frames.unpack_size(frames.pack_size(-1, 1 << 20)) == (0, 0xFFFF)
    with pytest.raises(ValueError, match="four bytes"):
        frames.unpack_size(b"123")
