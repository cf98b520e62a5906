"""Logs on disk: complete within the limit, stable cursors, and full disks."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_harness import AS_ROOT, Node, eventually, fresh_node, spec

from gpupool.domain.errors import GpupoolError
from gpupool.domain.protocol.log_records import ERR, OUT, RECORD, STREAMS, LogChunk
from gpupool.node.shepherd import output_log

pieces = st.lists(st.tuples(st.sampled_from([OUT, ERR]), st.binary(min_size=1, max_size=200)), max_size=30)
big_pieces = st.lists(st.binary(min_size=1, max_size=50_000), min_size=1, max_size=60)


def everything(folder: Path, cursor: str = "", limit: int = 1 << 16) -> list[LogChunk]:
    found: list[LogChunk] = []
    while stretches := output_log.read(folder, cursor, limit):
        found += [chunk for stretch in stretches for chunk in stretch.chunks()]
        cursor = stretches[-1].cursor
        assert found[-1].cursor == cursor
    return found


@given(pieces, st.integers(1, 300))
def test_log_is_read_unchanged_with_any_page_size(written: list[tuple[int, bytes]], limit: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name, "log")
        writer = output_log.LogWriter(folder, 1)
        for stream, data in written:
            writer.write(stream, data)
        writer.close()
        read = everything(folder, limit=limit)
        assert [(c.stream, c.data) for c in read] == [(STREAMS[s], d) for s, d in written]


@pytest.mark.parametrize("limit", [1, 1500, 4096, 100_000, 1 << 20])
def test_pages_read_each_segment_to_its_end(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "log"
    writer = output_log.LogWriter(folder, 1)
    written = [f"{number:04}".encode() * 250 for number in range(600)]
    for piece in written:
        writer.write(OUT, piece)
    writer.close()
    assert len(output_log.segments(folder)) > 2
    assert [chunk.data for chunk in everything(folder, limit=limit)] == written


@settings(max_examples=30)
@given(big_pieces, st.data())
def test_rotation_keeps_the_newest_within_the_limit(written: list[bytes], data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name, "log")
        writer = output_log.LogWriter(folder, 1)
        for piece in written * 3:
            writer.write(OUT, piece)
        writer.close()
        whole = b"".join(written * 3)
        kept = everything(folder)
        assert whole.endswith(b"".join(c.data for c in kept))
        assert output_log.size(folder) <= output_log.MIB
        if len(whole) > output_log.MIB:
            assert len(output_log.segments(folder)) == output_log.SEGMENTS
        at = data.draw(st.integers(0, len(kept) - 1))
        assert everything(folder, kept[at].cursor) == kept[at + 1 :]
        assert everything(folder, "1:0")[0] == kept[0]  # a deleted segment: continue with the oldest one


def test_next_writer_continues_in_a_new_segment(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        writer = output_log.LogWriter(tmp_path / "log", 1)
        writer.write(OUT, text)
        writer.close()
    assert [c.data for c in everything(tmp_path / "log")] == [b"one", b"two"]
    assert output_log.segments(tmp_path / "log") == [1, 2]


@given(st.binary(max_size=40), st.integers(0, 60))
def test_torn_record_is_skipped_and_following_records_are_read(rest: bytes, cut: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        first = RECORD.pack(1, OUT, 5) + b"first"
        torn = (RECORD.pack(2, ERR, 50) + rest)[:cut]
        (folder / "000001.log").write_bytes(first + torn)
        (folder / "000002.log").write_bytes(RECORD.pack(3, OUT, 4) + b"next")
        assert [c.data for c in everything(folder)] == [b"first", b"next"]


def test_reader_waits_for_an_incomplete_record(tmp_path: Path) -> None:
    record = RECORD.pack(1, OUT, 5) + b"whole"
    path = tmp_path / "000001.log"
    path.write_bytes(record + record[:9])
    (found,) = output_log.read(tmp_path, "", 100)
    assert output_log.read(tmp_path, found.cursor, 100) == []
    path.write_bytes(record + record)
    assert [part.output() for part in output_log.read(tmp_path, found.cursor, 100)] == [b"whole"]


@given(st.text(max_size=20) | st.from_regex(r"\d{0,30}:\d{0,30}(:\d{0,30})?", fullmatch=True))
def test_any_cursor_is_accepted_or_refused(text: str) -> None:
    with TemporaryDirectory() as name:
        Path(name, "000001.log").write_bytes(RECORD.pack(1, OUT, 5) + b"whole")
        try:
            found = output_log.read(Path(name), text, 100)
        except GpupoolError as error:
            assert error.code == "INVALID_REQUEST"  # noqa: PT017 - both outcomes are right
        else:
            assert all(part.output() for part in found)


@given(
    st.lists(st.lists(st.sampled_from([b"a", b"bb", b"\n"]), max_size=6).map(b"".join), max_size=12), st.integers(0, 9)
)
def test_tail_returns_exactly_the_last_lines(written: list[bytes], lines: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name, "log")
        writer = output_log.LogWriter(folder, 1)
        for piece in written:
            writer.write(OUT, piece)
        writer.close()
        whole = b"".join(written)
        read = b"".join(c.data for c in everything(folder, output_log.tail(folder, lines)))
        wanted = whole.splitlines(keepends=True)
        assert read == (b"".join(wanted[-lines:]) if lines else b"")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([], ""),
        ([b"\n \n"], ""),
        ([b"one\ntwo\n\n"], "two"),
        ([b"one\ntw", b"o", b"\n", b"\n"], "two"),
        ([b"one\n", b"x" * 2000 + b"end"], "x" * (output_log.MAX_LINE_BYTES - 3) + "end"),
        ([b"\xff two"], "\ufffd two"),
    ],
)
def test_last_line_is_the_last_that_is_not_blank(tmp_path: Path, written: list[bytes], expected: str) -> None:
    writer = output_log.LogWriter(tmp_path, 1)
    for piece in written:
        writer.write(OUT, piece)
    writer.close()
    assert output_log.last_line(tmp_path) == expected


def test_tail_reads_across_segments(tmp_path: Path) -> None:
    writer = output_log.LogWriter(tmp_path, 1)
    for number in range(60_000):
        writer.write(OUT, b"line %d\n" % number)
    writer.close()
    for lines in (1, 5000, 15_000):
        read = b"".join(c.data for c in everything(tmp_path, output_log.tail(tmp_path, lines), 1 << 20))
        assert read == b"".join(b"line %d\n" % n for n in range(60_000 - lines, 60_000))


def test_failing_disk_is_noted_and_logging_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = output_log.LogWriter(tmp_path, 1)
    writer.write(OUT, b"before")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 20:
            real(fd, data[:20])
            return 20
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    writer.write(OUT, b"x" * 500)
    writer.write(OUT, b"y")
    monkeypatch.setattr(os, "write", real)
    writer.write(OUT, b"after")
    assert writer.note == "log truncated: disk full"
    assert [c.data for c in everything(tmp_path)] == [b"before", b"after"]


@pytest.fixture
def small_disk() -> Iterator[Node]:
    """Yield a node whose state is on a disk of two MiB."""
    with fresh_node() as node:
        node.down()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", node.state.path], check=True)
        try:
            yield node.up()
        finally:
            node.down()
            unmount = ["umount", node.state.path]  # processes that end may still have files open
            assert eventually(lambda: subprocess.run(unmount, check=False).returncode == 0)
            node.up()


@pytest.mark.root
@pytest.mark.skipif(not AS_ROOT, reason="mounting needs root")
def test_full_disk_loses_log_and_keeps_program(small_disk: Node) -> None:
    node = small_disk
    wanted = spec("head -c 5000000 /dev/zero; echo survived >&2; exit 6", log_limit_mib=64)
    report = node.run_to_end(wanted)
    assert report.exit_code == 6
    status = node.status(wanted.key)
    assert status is not None
    assert "log truncated: disk full" in status.notes
    assert 0 < len(node.log(wanted.key)) < 5_000_000
