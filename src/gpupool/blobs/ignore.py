"""Patterns for files that are not sent, in the syntax of ``.gitignore`` (gitignore(5)).

The last matching pattern decides. ``!`` includes a file again, unless its folder is excluded. Pattern files in
subfolders apply to the content of that folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

IGNORE_FILE = ".gpupoolignore"
GIT_IGNORE_FILE = ".gitignore"
MAX_PATTERNS_BYTES = 1 << 20
# Excluded by default, unless a pattern includes it again.
ALWAYS = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    "venv/",
    "node_modules/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    ".DS_Store",
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of a pattern file; ``base`` is the folder of that file (empty: the root)."""

    expression: re.Pattern[str]
    base: str
    takes_in: bool
    folders_only: bool

    def fits(self, path: str, *, is_folder: bool) -> bool:
        """Return True if the pattern matches a path (from the root)."""
        if self.folders_only and not is_folder:
            return False
        if self.base:
            if not path.startswith(f"{self.base}/"):
                return False
            path = path[len(self.base) + 1 :]
        return self.expression.fullmatch(path) is not None


@dataclass(frozen=True, slots=True)
class Ignored:
    """Patterns in the order in which they were read."""

    patterns: tuple[Pattern, ...] = ()

    def more(self, text: str, base: str = "") -> Ignored:
        """Return the patterns extended by a pattern file in the folder ``base``."""
        found = (_pattern(line, base) for line in text.splitlines())
        return Ignored(self.patterns + tuple(pattern for pattern in found if pattern is not None))

    def leaves(self, path: str, *, is_folder: bool) -> bool:
        """Return True if the path (and, for a folder, its content) is excluded."""
        for pattern in reversed(self.patterns):
            if pattern.fits(path, is_folder=is_folder):
                return not pattern.takes_in
        return False


def default_patterns() -> Ignored:
    """Return the default patterns."""
    return Ignored().more("\n".join(ALWAYS))


def _pattern(line: str, base: str) -> Pattern | None:
    line = re.sub(r"(?<!\\) +$", "", line.rstrip("\r"))
    if not line or line.startswith("#"):
        return None
    takes_in = line.startswith("!")
    line = line[1:] if takes_in else line.removeprefix("\\") if line[:2] in {"\\#", "\\!"} else line
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    anchored = "/" in line
    return Pattern(_expression(line.removeprefix("/"), anchored), base, takes_in, folders_only)


@cache
def _expression(text: str, anchored: bool) -> re.Pattern[str]:
    parts = text.split("/")
    found = "" if anchored else "(?:.*/)?"
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            found += ".*" if last else "(?:.*/)?"
        else:
            found += _of_name(part) + ("" if last else "/")
    return re.compile(found, re.DOTALL)


def _of_name(part: str) -> str:
    found, at = "", 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            found += "[^/]*"
        elif char == "?":
            found += "[^/]"
        elif char == "[" and (end := part.find("]", at + 1)) > 0:
            inside = part[at:end].replace("\\", "\\\\").replace("[", "\\[")
            found += f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]"
            at = end + 1
        elif char == "\\" and at < len(part):
            found += re.escape(part[at])
            at += 1
        else:
            found += re.escape(char)
    return found
