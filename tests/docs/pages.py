"""Pages of the documentation as scripts: their console and Python blocks, run in order against a private pool."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_KINDS = {"console", "python"}  # of fenced blocks
SHOWN_KINDS = {"sh", "text", "json", "yaml", "mermaid", "toml"}  # for an administrator's machine, or to look at
TIMEOUT_S = 100

# What differs from run to run is made the same on both sides, in this order.
VARIES = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\bw[0-9a-hjkmnp-tv-z]{10}\b"), "ID"),
    (re.compile(r"-[0-9a-hjkmnp-tv-z]{10}\b"), "-ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)?[dhms](\d+[hms])*\b"), "SPAN"),
    (re.compile(r"(loss|accuracy:?|pid|epoch) +[\d.]+%?"), r"\1 N"),
    (re.compile(r"throughput: [\d,]+"), "throughput: N"),
    (re.compile(r"(NumPy|PyTorch) [^ )]+"), "LIBRARY"),
    (re.compile(r"/\S*digits\.npz"), "digits.npz"),
    (re.compile(rf"\b(vm|{re.escape(os.uname().nodename)})\b"), "NODE"),
    (re.compile(rf"\b(you|ann|root|{re.escape(Path.home().name)})\b"), "USER"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, its lines, and the number of its first line in the page."""

    kind: str
    lines: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Step:
    """One command (or Python block) of a page and its documented output; ``...`` stands for any lines."""

    argv: tuple[str, ...]
    expected: tuple[str, ...]
    where: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found: list[Block] = []
    kind: str | None = None
    lines: list[str] = []
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not text.startswith("```"):
            lines.append(text)
        elif kind is None:
            kind, lines = text.removeprefix("```").strip(), []
        else:
            found.append(Block(kind, tuple(lines), number - len(lines)))
            kind = None
    assert kind is None, f"{page}: a block is never closed"
    return found


def steps(page: Path) -> list[Step]:
    """Return the steps of a page, in order."""
    return [step for block in blocks(page) if block.kind in RUN_KINDS for step in _steps_of(page, block)]


def _steps_of(page: Path, block: Block) -> Iterator[Step]:
    if block.kind == "python":
        yield Step((sys.executable, "-c", "\n".join(block.lines)), (), f"{page.name}:{block.line}")
        return
    starts = [i for i, text in enumerate(block.lines) if text.startswith("$ ")]
    assert starts[:1] == [0], f"{page.name}:{block.line}: a console block begins with a command"
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        command = block.lines[start].removeprefix("$ ")
        yield Step(("bash", "-c", command), block.lines[start + 1 : end], f"{page.name}:{block.line + start}")


def same(text: str) -> str:
    """Return a line without the parts that differ between runs."""
    for pattern, replacement in VARIES:
        text = pattern.sub(replacement, text)
    return text.strip()


def missing_line(expected: tuple[str, ...], said: str) -> str | None:
    """Return the first expected line that is missing in the output, in order; ``…`` stands for the rest of a line."""
    real = iter([same(line) for line in said.splitlines()])
    for line in expected:
        wanted = same(line)
        if wanted == "...":
            continue
        start = wanted.removesuffix("…").strip() if wanted.endswith("…") else None
        if not any(got == wanted if start is None else got.startswith(start) for got in real):
            return line
    return None


def perform(step: Step, env: dict[str, str]) -> None:
    """Run a step in the checkout and compare; a step that fails fails the test.

    What a log does not have yet is looked for again, as a reader of the page would do.
    """
    deadline = time.monotonic() + TIMEOUT_S
    looks = step.argv[-1].startswith("gpupool logs ")
    said = _said(step, env)
    while absent := missing_line(step.expected, said):
        told = f"no line as '{absent}' in the output of {step.where}: {step.argv[-1]}\n{said}"
        assert looks, told
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
        said = _said(step, env)


def _said(step: Step, env: dict[str, str]) -> str:
    """Return the output of a step. Its failure fails the test."""
    done = subprocess.run(
        step.argv,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode} of {step.where}: {step.argv[-1]}\n{done.stdout}"
    return done.stdout
