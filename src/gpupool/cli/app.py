"""The Typer program. It imports only the module of the command that is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from gpupool.cli import lazy_typer
from gpupool.cli.index import MODULES, PANELS, PROGRAM, PROGRAM_STATUS_COMMANDS
from gpupool.cli.light_app import EXIT_USAGE, declare, normalize_kubectl_flags, report_usage_error, split_program
from gpupool.domain.errors import EXIT_POOL_ERROR
from gpupool.specs.job_options import Option, OptionKind

COMPLETE_VARIABLE = "_GPUPOOL_COMPLETE"
TYPES: dict[int, Any] = {
    OptionKind.FLAG: bool | None,
    OptionKind.TEXT: str | None,
    OptionKind.COUNT: int | None,
    OptionKind.NUMBER: float | None,
    OptionKind.REPEATED: list[str] | None,
}


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
    for name in {MODULES[name]: name for name in names}.values():
        _add(declare(name), app)
    return app


def _program() -> None:
    """Share the GPUs of a team."""


def _add(declared: lazy_typer.Typer, app: typer.Typer) -> None:
    """Add declared commands and groups to a program or group of Typer."""
    for command in declared.commands.values():
        text = help_text(command.text, command.examples)
        app.command(command.name, help=text, **command.settings)(_typer_function(command.function))
    for name, group in declared.groups.items():
        settings: dict[str, Any] = {"help": help_text(group.text, group.examples)} if group.text else {}
        made = typer.Typer(**settings, **group.settings)
        if group.own is not None:
            text = help_text(group.own.text, group.own.examples)
            made.callback(help=text, **group.own.settings)(_typer_function(group.own.function))
        _add(group, made)
        app.add_typer(made, name=name)


def help_text(doc: str, examples: Sequence[str]) -> str:
    """Return a docstring followed by its examples, one on each line."""
    paragraphs = [inspect.cleandoc(doc)]
    if examples:
        paragraphs.append("\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(paragraphs).replace("[", r"\[")


def _typer_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the declarations that Typer reads."""
    own: Any = getattr(function, "own", function)
    options: Sequence[Option] = getattr(function, "options", ())
    signature = inspect.signature(own, eval_str=True)
    parameters = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_typer_annotation(p.annotation))
        for p in signature.parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    parameters += [_option_parameter(option) for option in options]

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        try:
            return function(**given)
        except lazy_typer.BadParameter as error:
            raise typer.BadParameter(str(error)) from error

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _typer_annotation(annotation: Any) -> Any:
    if annotation is lazy_typer.CommandContext:
        return typer.Context
    metadata = getattr(annotation, "__metadata__", ())
    if not metadata or not isinstance(metadata[0], lazy_typer.Declared):
        return annotation
    declared: lazy_typer.Declared = metadata[0]
    information = (
        typer.Option(*declared.flags, **declared.settings)
        if declared.is_option
        else typer.Argument(**declared.settings)
    )
    return Annotated[annotation.__origin__, information]


def _option_parameter(option: Option) -> inspect.Parameter:
    """Return the parameter of a row of a table of options."""
    from gpupool.cli import completion

    flags = list(option.flags)
    if option.kind is OptionKind.FLAG:
        flags[flags.index(option.long)] = f"{option.long}/{option.off[0]}" if option.off else option.long
    information = typer.Option(
        *flags,
        help=option.help,
        metavar=option.metavar or None,
        rich_help_panel=option.panel,
        show_default=False,
        autocompletion=completion.BY_OPTION.get(option.name),
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[TYPES[option.kind], information],
    )


def run_app(argv: list[str]) -> int:
    """Run a command and return its exit status. ``argv[0]`` is a known name. Raises ``GpupoolError``."""
    own, after = split_program(normalize_kubectl_flags(argv))
    try:
        program = typer.main.get_command(build([argv[0]]))
        status = program.main(own, prog_name=PROGRAM, obj={"program": after}, standalone_mode=False)
    except typer.Abort:
        return 130
    except SystemExit:  # from Rich or Click: the reader of the output has gone
        return 0
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


def _report_usage_error(error: Any, command: str) -> int:
    """Print the usage error and the help command to call, and return the exit status."""
    import sys

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"{PROGRAM} {command}"
    message = error.format_message().replace("Value error, ", "")  # Typer checks choices with pydantic
    if message:
        return report_usage_error(message, path, command)
    # a group without a command shows its help
    print(context.get_help() if context is not None else "", file=sys.stderr)
    return EXIT_POOL_ERROR if command in PROGRAM_STATUS_COMMANDS else EXIT_USAGE
