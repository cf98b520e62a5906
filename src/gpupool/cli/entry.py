"""The program ``gpupool``.

``run`` and ``client`` go through ``fast/`` when their arguments are plain; everything else, help and mistakes included,
goes to the Typer program in ``app``.
"""

from __future__ import annotations

import os
import sys

EXIT_POOL_ERROR = 125


def main() -> int:
    """Run the command line of this process; the exit status."""
    _open_standard_descriptors()
    argv = sys.argv[1:]
    try:
        if argv and argv[0] in {"run", "client"} and "_GPUPOOL_COMPLETE" not in os.environ:
            status = _fast(argv[0], argv[1:])
            if status is not None:
                return status
        return _full(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _reader_gone()
    except Exception as error:  # noqa: BLE001 - the last resort: one sentence, never a traceback
        return _report(error)


def _fast(command: str, argv: list[str]) -> int | None:
    """The exit status, or None when the full command line has to look at it."""
    from gpupool.cli import options

    try:
        values, program = options.parse(options.RUN if command == "run" else options.CLIENT, argv)
    except options.Unusual:
        return None
    if not program:
        return None
    from gpupool.cli.fast import commands

    return commands.run(values, program) if command == "run" else commands.client(values, program)


def _full(argv: list[str]) -> int:
    from gpupool.cli.app import run_app

    return run_app(argv)


def _open_standard_descriptors() -> None:
    """A closed stdin, stdout or stderr would lend its number to the next file opened."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _reader_gone() -> int:
    """Whoever read our output (``| head``) has had enough: nothing more must be written, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _report(error: Exception) -> int:
    from gpupool.cli.errors import report

    return report(error)


if __name__ == "__main__":
    sys.exit(main())
