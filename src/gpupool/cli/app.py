"""The Typer program. Only the module of the command that is asked for is imported."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import typer

from gpupool.cli.index import MODULES, PANELS, PROGRAM
from gpupool.domain.errors import EXIT_POOL_ERROR

COMPLETE_VARIABLE = "_GPUPOOL_COMPLETE"
EXIT_USAGE = 2
KUBECTL = frozenset({"apply", "get", "delete"})
OWN_STATUS = frozenset({"run", "client", "exec", "shell", "bash"})  # their exit status is the program's


def build(names: Iterable[str]) -> typer.Typer:
    """The program with the commands of the modules that have these names."""
    app = typer.Typer(
        name=PROGRAM,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_program)
    for module in dict.fromkeys(MODULES[name] for name in names):
        import_module(f"gpupool.cli.commands.{module}").register(app)
    return app


def _program() -> None:
    """Share the GPUs a team owns."""


def run_app(argv: list[str]) -> int:
    """Run a command (``argv[0]`` is a known name); the exit status. Raises ``GpupoolError``."""
    own, after = _split(_as_written(argv))
    try:
        program = typer.main.get_command(build([argv[0]]))
        status = program.main(own, prog_name=PROGRAM, obj={"program": after}, standalone_mode=False)
    except typer.Abort:
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage_mistake(error, argv[0])
    return status if isinstance(status, int) else 0


def complete(command: str | None) -> int:
    """Answer the shell's question about completion; ``command`` is the word after ``gpupool`` if it is known."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # what Typer's own option calls

    completion_init()
    app = build([command]) if command else _stubs()
    typer.main.get_command(app).main([], prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    return 0


def _stubs() -> typer.Typer:
    """The names of all commands and what they are for, with nothing behind them."""
    app = build([])
    for commands in PANELS.values():
        for name, (_, about) in commands.items():
            app.command(name, help=about)(_program)
    return app


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """What is before and after ``--`` where the name may be left out: what is the command may not be guessed."""
    if argv[0] not in {"submit", "plan"} or "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _as_written(argv: list[str]) -> list[str]:
    """Commands of kubectl take its ways of writing options, too."""
    if argv[0] not in KUBECTL:
        return argv
    from gpupool.cli.kubernetes import plain_flags

    return plain_flags(argv)


def _usage_mistake(error: Any, command: str) -> int:
    """A command line that cannot be understood: the sentence, and where the help is."""
    import sys

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"{PROGRAM} {command}"
    message = error.format_message()
    if not message:  # a group without its command: its help has been asked for, in effect
        print(context.get_help() if context is not None else "", file=sys.stderr)
    else:
        print(f"gpupool: {message}\n  See '{path} --help'.", file=sys.stderr)
    return EXIT_POOL_ERROR if command in OWN_STATUS else EXIT_USAGE
