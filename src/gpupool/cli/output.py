"""Write lines, JSON and questions to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from gpupool.cli.render.text import Style, style_of


def out_style() -> Style:
    """Return the style of stdout."""
    return style_of(sys.stdout)


def show(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    text = "".join(f"{line}\n" for line in lines)
    write_out(text.encode(errors="backslashreplace"))


def write_out(data: bytes) -> None:
    """Write bytes to stdout. Raises ``BrokenPipeError`` when the reader closed it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def show_json(value: Any) -> None:
    """Print JSON on stdout, as the API returned it."""
    import json

    show([json.dumps(value, indent=2)])


def notify(text: str) -> None:
    """Print one line for the user on stderr."""
    print(f"gpupool: {text}", file=sys.stderr, flush=True)


def print_command(command: str) -> None:
    """Print a command to be copied: a line on stderr with nothing else in it."""
    print(f"  {command}", file=sys.stderr, flush=True)


def confirm(question: str) -> bool:
    """Ask a yes/no question and return the answer; without a terminal print the question and return False."""
    if not sys.stdin.isatty():
        notify(question)
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
