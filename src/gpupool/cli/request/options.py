"""The options of ``run``, ``client`` and ``request-gpus``, and the fast parser for them.

The fast path reads the tables with ``parse``; the Typer commands are made from the same tables
(``commands/common.py``), so that both accept the same options.
"""

from __future__ import annotations

from gpupool.specs.job_options import (
    CONTAINER_OPTIONS,
    GPU_OPTIONS,
    GPUS,
    HOST_OPTIONS,
    OUTPUT,
    PREEMPTIBLE,
    PROGRAM,
    PROGRAM_OPTIONS,
    QUEUE,
    QUEUE_OPTIONS,
    QUIET,
    TERMINAL,
    Option,
    OptionKind,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

RUN = (
    *GPU_OPTIONS,
    *QUEUE_OPTIONS,
    PREEMPTIBLE,
    *HOST_OPTIONS,
    *PROGRAM_OPTIONS,
    TERMINAL,
    Option("detach", "-d --detach", OptionKind.FLAG, "Print the id and return; the program keeps running.", PROGRAM),
    *CONTAINER_OPTIONS,
    QUIET,
)
CLIENT = (
    Option("file", "-f --file", OptionKind.TEXT, "Use the lease in this file; default: your last lease.", GPUS, "FILE"),
    Option("lease", "--lease", OptionKind.TEXT, "Use this lease, by name or id.", GPUS, "NAME"),
    Option("max_time", "--max-time", OptionKind.TEXT, "Limit the run time: 2h.", QUEUE, "TIME"),
    Option(
        "linger",
        "--linger",
        OptionKind.TEXT,
        "Let its background processes run on for this time after it: 1h.",
        PROGRAM,
        "TIME",
    ),
    *PROGRAM_OPTIONS,
    TERMINAL,
    QUIET,
)
LEASE = (
    *GPU_OPTIONS,
    *QUEUE_OPTIONS,
    Option(
        "lifetime",
        "--lifetime --for",
        OptionKind.TEXT,
        "Release the lease this long after its grant: 2h.",
        QUEUE,
        "TIME",
    ),
    Option("file", "-f --file", OptionKind.TEXT, "Write the lease file to this path.", OUTPUT, "FILE"),
    Option("json", "--json", OptionKind.FLAG, "Print the lease as JSON.", OUTPUT),
    QUIET,
)


class NeedsFullParser(Exception):  # noqa: N818 - not an error: the full parser handles it
    """The arguments need the full command line: help, a usage error, or a form that this parser does not read."""


def parse(options: Iterable[Option], argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the given values by name, and the command that follows. Raises ``NeedsFullParser``."""
    known = {flag: (option, True) for option in options for flag in option.flags}
    known |= {flag: (option, False) for option in options for flag in option.off}
    values: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return values, rest
        if not word.startswith("-") or word == "-":
            return values, [word, *rest]
        flag, attached = _split(word)
        if flag not in known:
            raise NeedsFullParser
        option, on = known[flag]
        if option.kind is OptionKind.FLAG:
            if attached is not None:
                raise NeedsFullParser
            values[option.name] = on
            continue
        if attached is None:
            if not rest:
                raise NeedsFullParser
            attached = rest.pop(0)
        _store(values, option, attached)
    return values, []


def _split(word: str) -> tuple[str, str | None]:
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return flag, value if equals else None
    return word[:2], word[2:] or None


def _store(values: dict[str, Any], option: Option, text: str) -> None:
    try:
        if option.kind is OptionKind.REPEATED:
            values.setdefault(option.name, []).append(text)
        elif option.kind is OptionKind.COUNT:
            values[option.name] = int(text)
        elif option.kind is OptionKind.NUMBER:
            values[option.name] = float(text)
        else:
            values[option.name] = text
    except ValueError:
        raise NeedsFullParser from None
