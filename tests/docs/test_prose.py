"""Words that the project avoids become fewer: scripts/check-prose against its baseline."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest
from pages import ROOT

SCRIPT = ROOT / "scripts" / "check-prose"
CHECK = runpy.run_path(str(SCRIPT))
PATTERNS, NOMINAL = CHECK["PATTERNS"], CHECK["NOMINAL"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_no_new_words_to_avoid() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("It is kept, whoever asks.", "whoever"),
        ("The file beside it.", "beside"),
        ("It goes\n# on.", "goes on"),
        (
            '    """Whether it runs."""',
            NOMINAL,
        ),
    ],
)
def test_word_to_avoid_is_found(text: str, word: str) -> None:
    assert [name for name, pattern in PATTERNS.items() if pattern.search(text)] == [word]


@pytest.mark.parametrize("text", ["The grace period besides the limit.", '    """Return whether it runs."""', "stripe"])
def test_other_words_are_not_found(text: str) -> None:
    assert [name for name, pattern in PATTERNS.items() if pattern.search(text)] == []
