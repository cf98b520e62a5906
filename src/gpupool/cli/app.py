"""The Typer program. It imports only the module of the command that is called."""

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
PROGRAM_STATUS_COMMANDS = frozenset({"run", "client", "exec", "shell", "bash"})  # they exit with the program's status


def build(names: Iterable[str]) -> typer.Typer:
    """Build the program with the commands of the modules that contain these names."""
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
    """Share the GPUs of a team."""


def run_app(argv: list[str]) -> int:
    """Run a command and return its exit status. ``argv[0]`` is a known name. Raises ``GpupoolError``."""
    own, after = _split_program(_normalize_kubectl_flags(argv))
    try:
        program = typer.main.get_command(build([argv[0]]))
        status = program.main(own, prog_name=PROGRAM, obj={"program": after}, standalone_mode=False)
    except typer.Abort:
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _report_usage_error(error, argv[0])
    return status if isinstance(status, int) else 0


def complete(command: str | None) -> int:
    """Answer the shell's completion request. ``command`` is the word after ``gpupool`` if it is a known command."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # Typer's own option calls it

    completion_init()
    app = build([command]) if command else _stubs()
    typer.main.get_command(app).main([], prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    return 0


def _stubs() -> typer.Typer:
    """Build a program with the names and descriptions of all commands, for completion of the first word."""
    app = build([])
    for commands in PANELS.values():
        for name, (_, about) in commands.items():
            app.command(name, help=about)(_program)
    return app


def _split_program(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after ``--``, for commands whose optional NAME comes before the command."""
    if argv[0] not in {"submit", "plan"} or "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _normalize_kubectl_flags(argv: list[str]) -> list[str]:
    """Rewrite options in kubectl's notation, for the commands that accept it."""
    if argv[0] not in KUBECTL:
        return argv
    from gpupool.cli.kubernetes.names import normalize_flags

    return normalize_flags(argv)


def _report_usage_error(error: Any, command: str) -> int:
    """Print the usage error and the help command to call, and return the exit status."""
    import sys

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"{PROGRAM} {command}"
    message = error.format_message()
    if not message:  # a group without a command shows its help
        print(context.get_help() if context is not None else "", file=sys.stderr)
    else:
        print(f"gpupool: {message}\n  See '{path} --help'.", file=sys.stderr)
    return EXIT_POOL_ERROR if command in PROGRAM_STATUS_COMMANDS else EXIT_USAGE
