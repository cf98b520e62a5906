"""Run a command without Typer, if its arguments need none of Typer's messages."""

from __future__ import annotations

from gpupool.cli import lazy_typer
from gpupool.cli.index import MODULES, PROGRAM
from gpupool.cli.light_parser import parse_command
from gpupool.cli.request.options import NeedsFullParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpupool.cli.lazy_typer import Command

EXIT_USAGE = 2
KUBECTL = frozenset({"apply", "get", "delete"})


def declare(name: str) -> lazy_typer.Typer:
    """Return a program with the commands of the module that contains a command."""
    program = lazy_typer.Typer()
    module: object = __import__(f"gpupool.cli.commands.{MODULES[name]}", fromlist=["register"])
    module.register(program)  # type: ignore[attr-defined]  # every module of commands has it
    return program


def run_light(argv: list[str]) -> int | None:
    """Run a command and return its exit status, or None if the Typer program must read the arguments.

    ``argv[0]`` is a known name. Raises ``GpupoolError``.
    """
    own, after = split_program(normalize_kubectl_flags(argv))
    try:
        command, rest = _find(declare(own[0]), own)
        values = parse_command(command, rest, {"program": after})
    except NeedsFullParser:
        return None
    try:
        status = command.function(**values)
    except lazy_typer.BadParameter as error:
        return report_usage_error(f"Invalid value: {error}", " ".join([PROGRAM, *own[: len(own) - len(rest)]]), own[0])
    return status if isinstance(status, int) else 0


def _find(program: lazy_typer.Typer, argv: list[str]) -> tuple[Command, list[str]]:
    """Return the command and its arguments. Raises ``NeedsFullParser``."""
    for place, word in enumerate(argv):
        if program.own is not None:
            break
        if word in program.commands:
            return program.commands[word], argv[place + 1 :]
        if word not in program.groups:
            break
        program = program.groups[word]
    raise NeedsFullParser


def split_program(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after ``--``, for commands whose optional NAME comes before the command."""
    nouns = argv[0] in {"workspace", "training", "inference"} and "submit" in argv[1:3]
    if not (nouns or argv[0] in {"submit", "plan"}) or "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def normalize_kubectl_flags(argv: list[str]) -> list[str]:
    """Rewrite options in kubectl's notation, for the commands that accept it."""
    if argv[0] not in KUBECTL:
        return argv
    from gpupool.cli.kubernetes.names import normalize_flags

    return normalize_flags(argv)


def report_usage_error(message: str, path: str, command: str) -> int:
    """Print a usage error and the help command to call, and return the exit status."""
    import sys

    from gpupool.cli.index import PROGRAM_STATUS_COMMANDS
    from gpupool.domain.errors import EXIT_POOL_ERROR

    print(f"gpupool: {message}\n  See '{path} --help'.", file=sys.stderr)
    return EXIT_POOL_ERROR if command in PROGRAM_STATUS_COMMANDS else EXIT_USAGE
