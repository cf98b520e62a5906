"""The program ``gpupool``.

``run`` and ``client`` go through ``fast/`` when their arguments are plain; everything else, help and mistakes included,
goes to the Typer program in ``app``.
"""

from __future__ import annotations

import os
import sys

EXIT_USAGE = 2
COMPLETE_VARIABLE = "_GPUPOOL_COMPLETE"


def main() -> int:
    """Run the command line of this process; the exit status."""
    _open_standard_descriptors()
    try:
        return _dispatch(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last resort: one sentence, never a traceback
        return _report(error)


def _dispatch(argv: list[str]) -> int:
    if COMPLETE_VARIABLE in os.environ:
        return _complete()
    if argv and argv[0] in {"run", "client"}:
        status = _fast(argv[0], argv[1:])
        if status is not None:
            _leave(status)
    return _full(argv)


def _fast(command: str, argv: list[str]) -> int | None:
    """The exit status, or None when the full command line has to look at it."""
    from gpupool.cli import options

    try:
        values, program = options.parse(options.RUN if command == "run" else options.CLIENT, argv)
    except options.Unusual:
        return None
    if not program and not values.get("image"):
        return None
    from gpupool.cli.fast import commands

    return commands.run(values, program) if command == "run" else commands.client(values, program)


def _leave(status: int) -> None:
    """End at once: taking the interpreter down in order costs as much as the way to the pool."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as it is when it was closed from the start
            stream.flush()
    os._exit(status)


def _full(argv: list[str]) -> int:
    from gpupool.cli.index import known_name, overview

    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0 if argv else EXIT_USAGE
    if argv[0] == "--version":
        argv = ["version"]
    name = known_name(argv[0])
    if name is None:
        return _unknown(argv[0])
    from gpupool.cli.app import run_app

    return run_app([name, *argv[1:]])


def _unknown(word: str) -> int:
    from gpupool.cli.index import near_names

    near = " or ".join(f"'gpupool {name}'" for name in near_names(word))
    hint = f"Did you mean {near}?" if near else "See 'gpupool --help'."
    print(f"gpupool: there is no command '{word[:80]}'.\n  {hint}", file=sys.stderr)
    return EXIT_USAGE


def _complete() -> int:
    """The shell asks what could be typed here; nothing may go wrong aloud."""
    from gpupool.cli.app import complete
    from gpupool.cli.index import known_name

    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split()
    return complete(known_name(words[1]) if len(words) > 2 or (len(words) == 2 and line[-1:].isspace()) else None)


def _open_standard_descriptors() -> None:
    """A closed stdin, stdout or stderr would lend its number to the next file opened."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _report(error: Exception) -> int:
    from gpupool.cli.errors import report

    return report(error)


if __name__ == "__main__":
    sys.exit(main())
