"""Selection of lines: every way to cut the output into pieces gives the lines that ``grep`` gives."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli.render.line_filter import LineFilter, LineSearch
from gpupool.domain.protocol.log_records import ERROR_LINE


def selected(pattern: bytes, context: int, pieces: list[bytes]) -> bytes:
    only = LineFilter(re.compile(pattern), context)
    lines = [line for piece in pieces for _, line, _ in only.feed("out", piece, 1.0)]
    return b"".join([*lines, *(line for _, line, _ in only.finish())])


@pytest.mark.skipif(shutil.which("grep") is None, reason="no grep")
@given(st.lists(st.sampled_from([b"a", b"bb", b"", b"xax", b"ccc"]), max_size=30), st.integers(0, 3), st.integers(1, 7))
def test_it_selects_the_lines_of_grep(lines: list[bytes], context: int, size: int) -> None:
    text = b"\n".join(lines)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    known = subprocess.run(["grep", f"-C{context}", "a"], input=text, capture_output=True, check=False).stdout
    if context == 0:
        known = known.replace(b"--\n", b"")
    assert selected(b"a", context, pieces) == known


def test_streams_are_separate_lines_in_one_order() -> None:
    only = LineFilter(re.compile(b"x"), 1)
    fed = [("out", b"one "), ("err", b"bad x\n"), ("out", b"two\n"), ("out", b"three\n")]
    lines = [(stream, line) for where, data in fed for stream, line, _ in only.feed(where, data, 1.0)]
    assert lines == [("err", b"bad x\n"), ("out", b"one two\n")]


def test_colours_are_kept_and_not_searched() -> None:
    line = b"\x1b[31mfat\x1b[0mal: \x1b]0;title\x07gone\n"
    assert selected(b"fatal: gone", 0, [line]) == line
    assert selected(b"title|31m", 0, [line]) == b""


def test_unfinished_long_line_is_bounded() -> None:
    only = LineFilter(re.compile(b"y"), 0)
    assert not list(only.feed("out", b"y" * (1 << 20), 1.0))
    assert len(list(only.feed("out", b"y", 1.0))) == 1


def test_matches_of_all_members_are_counted() -> None:
    search = LineSearch(re.compile(b"x"))
    for member in (search.filter(), search.filter()):
        list(member.feed("out", b"x\nx\n", 1.0))
    assert search.found == 4


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("ValueError: wrong", True),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", True),
        ("Traceback (most recent call last):", True),
        ("2026-11-24 ERROR main", True),
        ("Segmentation fault (core dumped)", True),
        ("error: no such option", True),
        ("bash: x: No such file or directory", True),
        ("0 errors, loss 0.1", False),
        ("mean squared error 0.2", False),
        ("ErrorBudget is fine", False),
    ],
)
def test_error_lines(line: str, error: bool) -> None:
    assert bool(re.search(ERROR_LINE, line)) is error
