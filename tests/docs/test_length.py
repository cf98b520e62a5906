"""The hand-written documentation stays short: a change replaces text rather than adds to it."""

from __future__ import annotations

import re

import pytest
from pages import ROOT

MAX_WORDS = 30_000
GENERATED = {"cli.md", "kubernetes-fields.md", "metrics-list.md"}
CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def words(text: str) -> int:
    """Return the number of words outside of code blocks; cells of tables count, lines of tables do not."""
    return sum(any(letter.isalnum() for letter in word) for word in CODE.sub("", text).split())


def test_documentation_is_short() -> None:
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
    counts = {page.name: words(page.read_text()) for page in (*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
    longest = sorted(counts.items(), key=lambda item: -item[1])[:5]
    assert sum(counts.values()) <= MAX_WORDS, f"{sum(counts.values())} words; shorten a page. Longest: {longest}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Two words.", 2),
        ("| a cell | `code` |\n|---|---|\n", 3),
        ("- one\n\n```sh\ngpupool run\n```\n\ntwo", 2),
        ("1. item\n\n   ```yaml\n   a: b\n   ```\n", 2),
    ],
)
def test_words_are_counted_outside_of_code(text: str, count: int) -> None:
    assert words(text) == count
