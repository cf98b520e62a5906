"""A log on its way to a client: it is complete for any sizes of the pieces, and an invalid one is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.protocol.log_records import (
    ERR,
    MAX_RECORD_BYTES,
    OUT,
    RECORD,
    STREAMS,
    WHOLE,
    LogBatch,
    LogDecoder,
    parse_records,
)

Record = tuple[int, int, bytes]
records = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([OUT, ERR]), st.binary(max_size=20)), max_size=8)


def packed(written: list[Record]) -> bytes:
    return b"".join(RECORD.pack(at * 10**9, stream, len(data)) + data for at, stream, data in written)


def stretch(written: list[Record], segment: int = 1, begin: int = 0) -> LogBatch:
    data = packed(written)
    return LogBatch(segment, begin + len(data), data)


@given(st.lists(records, max_size=5), st.integers(1, 50))
def test_answer_is_decoded_from_chunks_of_any_size(logs: list[list[Record]], size: int) -> None:
    sent = [stretch(written, number) for number, written in enumerate(logs)]
    answer = b"".join(part.encode() for part in sent) + WHOLE
    decoder, found = LogDecoder(), []
    for at in range(0, len(answer), size):
        assert not decoder.whole
        found += decoder.feed(answer[at : at + size])
    assert (found, decoder.whole) == (sent, True)


@given(records)
def test_chunks_and_runs_keep_all_data_in_order(written: list[Record]) -> None:
    part = stretch(written, 3, 100)
    chunks = list(part.chunks())
    assert [(c.at, c.stream, c.data) for c in chunks] == [(float(at), STREAMS[s], data) for at, s, data in written]
    ends = [100 + piece.end for piece in parse_records(part.data)]
    assert [c.cursor for c in chunks] == [f"3:{end}" for end in ends]
    assert part.output() == b"".join(data for _, _, data in written)
    runs = list(part.runs())
    assert b"".join(data for _, data in runs) == part.output()
    assert all(one[0] != other[0] for one, other in pairwise(runs))


@given(records, st.integers(0, 10))
def test_older_records_are_skipped_with_correct_cursors(written: list[Record], moment: int) -> None:
    part = stretch(written, 2, 50)
    kept = [chunk for one in part.since(moment) for chunk in one.chunks()]
    assert kept == [chunk for chunk in part.chunks() if chunk.at >= moment]


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    decoder = LogDecoder()
    try:
        found = decoder.feed(data)
    except ValueError:
        return
    assert sum(len(part.data) for part in found) <= len(data)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(RECORD.pack(0, 7, 1) + b"x", id="an unknown stream"),
        pytest.param(RECORD.pack(0, OUT, MAX_RECORD_BYTES + 1), id="a record that is too long"),
        pytest.param(RECORD.pack(0, 0, 65) + b"1" * 65, id="a cursor that is too long"),
        pytest.param(RECORD.pack(0, 0, 3) + b"1:x", id="an invalid cursor"),
        pytest.param(WHOLE + RECORD.pack(0, OUT, 0), id="something after the end"),
        pytest.param((RECORD.pack(0, OUT, MAX_RECORD_BYTES) + bytes(MAX_RECORD_BYTES)) * 3, id="no mark"),
    ],
)
def test_invalid_records_are_refused_before_using_memory(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"not program output|invalid literal"):
        LogDecoder().feed(answer)
