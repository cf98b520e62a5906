"""Writing to the terminal: lines, JSON, questions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from gpupool.cli.errors import ReaderGone
from gpupool.cli.pool import Pool
from gpupool.cli.render.machines import EMULATED
from gpupool.cli.render.text import Style, style_of


def out_style() -> Style:
    """The style of stdout."""
    return style_of(sys.stdout)


def show(lines: Iterable[str]) -> None:
    """Lines on stdout."""
    text = "".join(f"{line}\n" for line in lines)
    write_out(text.encode(errors="backslashreplace"))


def write_out(data: bytes) -> None:
    """Bytes on stdout; raises ``ReaderGone`` when nobody takes them any more."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


def show_json(value: Any) -> None:
    """JSON on stdout, as the API gave it."""
    show([json.dumps(value, indent=2)])


def tell(text: str) -> None:
    """One line for the person at the terminal, on stderr."""
    print(f"gpupool: {text}", file=sys.stderr, flush=True)


def tell_emulated(pool: Pool) -> None:
    """Say on stderr that the GPUs are emulated, when they are."""
    if pool.get("pool")["emulated"]:
        print(style_of(sys.stderr).dim(EMULATED), file=sys.stderr, flush=True)


def ask_yes(question: str) -> bool:
    """Whether the user agrees; without a terminal nobody can."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
