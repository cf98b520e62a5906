"""Entry point of the program ``gpupool``.

``run`` and ``client`` with plain arguments take the fast path in ``fast/``. Everything else, help and usage errors
included, goes to the Typer program in ``app``.
"""

from __future__ import annotations

import gc
import os
import sys

EXIT_USAGE = 2
GC_THRESHOLD = 100_000  # new objects between collections: a long list has that many, and none of them is garbage
PRIORITY_COMMANDS = frozenset({"ps", "stop", "down", "status", "nodes", "why", "describe", "cordon", "drain"})
COMPLETE_VARIABLE = "_GPUPOOL_COMPLETE"


def main() -> int:
    """Run the command line of this process and exit, or return the exit status."""
    status = run()
    if "threading" not in sys.modules or sys.modules["threading"].active_count() == 1:
        _exit_now(status)
    return status


def run() -> int:
    """Run the command line of this process and return the exit status."""
    _open_standard_descriptors()
    try:
        return _dispatch(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - users get one sentence, never a traceback
        return _report(error)


def _dispatch(argv: list[str]) -> int:
    if COMPLETE_VARIABLE in os.environ:
        return _complete()
    if argv and argv[0] in {"run", "client"}:
        status = _fast(argv[0], argv[1:])
        if status is not None:
            return status
    return _full(argv)


def _fast(command: str, argv: list[str]) -> int | None:
    """Return the exit status, or None if the full command line must read the arguments."""
    from gpupool.cli.request import options

    try:
        values, program = options.parse(options.RUN if command == "run" else options.CLIENT, argv)
    except options.NeedsFullParser:
        return None
    if not program and not values.get("image"):
        return None
    from gpupool.cli.fast import commands

    return commands.run(values, program) if command == "run" else commands.client(values, program)


def _exit_now(status: int) -> None:
    """Exit without the interpreter's cleanup, which takes as long as connecting to the pool."""
    import atexit

    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None when it was closed at the start
            try:
                stream.flush()
            except OSError:
                continue  # its reader has gone
    os._exit(status)


def _full(argv: list[str]) -> int:
    gc.set_threshold(GC_THRESHOLD)
    from gpupool.cli.index import known_name, overview, resolve_alias

    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0 if argv else EXIT_USAGE
    if argv[0] == "--version":
        argv = ["version"]
    name = known_name(argv[0])
    if name is None:
        return _unknown(argv[0])
    argv = resolve_alias([name, *argv[1:]])
    if argv[0] in PRIORITY_COMMANDS and os.geteuid() == 0:
        _raise_priority()
    from gpupool.cli.light_app import run_light

    status = run_light(argv)
    if status is not None:
        return status
    from gpupool.cli.app import run_app

    return run_app(argv)


def _raise_priority() -> None:
    """Raise this process's CPU priority above workloads, so that it can stop a workload that uses all processors."""
    from gpupool.node.host.pool_group import join_pool_group

    join_pool_group()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        return


def _unknown(word: str) -> int:
    from gpupool.cli.index import near_names

    near = " or ".join(f"'gpupool {name}'" for name in near_names(word))
    hint = f"Did you mean {near}?" if near else "See 'gpupool --help'."
    print(f"gpupool: unknown command '{word[:80]}'.\n  {hint}", file=sys.stderr)
    return EXIT_USAGE


def _complete() -> int:
    """Complete a command line for the shell. Errors print nothing."""
    from gpupool.cli.app import complete
    from gpupool.cli.index import known_name

    variable = "COMP_WORDS" if os.environ.get("COMP_WORDS") else "_TYPER_COMPLETE_ARGS"
    line = os.environ.get(variable, "")
    words = line.split()
    name = known_name(words[1]) if len(words) > 2 or (len(words) == 2 and line[-1:].isspace()) else None
    if name:
        os.environ[variable] = line.replace(words[1], name, 1)  # the shown form of the name
    return complete(name)


def _open_standard_descriptors() -> None:
    """Open closed standard descriptors on /dev/null, so that the next opened file does not get their numbers."""
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
