"""What the commands share: how they are declared, and the arguments that many of them take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from gpupool.cli import completing
from gpupool.cli.options import Kind, Option

F = TypeVar("F", bound=Callable[..., Any])

PASS_THROUGH = {"allow_interspersed_args": False}

Ref = Annotated[
    str, typer.Argument(metavar="NAME", help="A workload's name or id.", autocompletion=completing.workloads)
]
Replica = Annotated[
    str,
    typer.Argument(
        metavar="NAME[/N]", help="A workload's name or id, and a replica's number.", autocompletion=completing.workloads
    ),
]
Refs = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME...", help="Workloads by name or id.", autocompletion=completing.workloads),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the API gives it.")]
Index = Annotated[int | None, typer.Option("--index", "--pod", help="One replica, by its number.", metavar="N")]


def command(app: typer.Typer, *examples: str, name: str | None = None, **settings: Any) -> Callable[[F], F]:
    """Declare a command with its help (the docstring's first line) and examples."""

    def declare(function: F) -> F:
        text = help_text(function.__doc__ or "", examples)
        app.command(name, help=text, **settings)(function)
        return function

    return declare


def help_text(doc: str, examples: Sequence[str]) -> str:
    """A docstring followed by its examples, each on a line of its own."""
    paragraphs = [inspect.cleandoc(doc)]
    if examples:
        paragraphs.append("\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(paragraphs).replace("[", r"\[")


def takes(options: Sequence[Option]) -> Callable[[F], F]:
    """Give a function with ``**values`` the options of a table; values that were not given stay out.

    The function's own parameters come first.
    """

    def give(function: F) -> F:
        own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]

        def call(**given: Any) -> Any:
            return function(**{name: value for name, value in given.items() if value not in (None, [])})

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += [_parameter(option) for option in options]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        call.__doc__ = function.__doc__
        call.__name__ = function.__name__
        return call  # type: ignore[return-value]  # the same function to its callers

    return give


TYPES: dict[int, Any] = {
    Kind.FLAG: bool | None,
    Kind.TEXT: str | None,
    Kind.COUNT: int | None,
    Kind.NUMBER: float | None,
    Kind.MANY: list[str] | None,
}


def _parameter(option: Option) -> inspect.Parameter:
    flags = list(option.flags)
    if option.kind is Kind.FLAG:
        on_long = next(flag for flag in flags if flag.startswith("--"))
        flags[flags.index(on_long)] = f"{on_long}/{option.off[0]}" if option.off else on_long
    information = typer.Option(
        *flags,
        help=option.help,
        metavar=option.metavar or None,
        rich_help_panel=option.panel,
        show_default=False,
        autocompletion=completing.BY_OPTION.get(option.name),
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[TYPES[option.kind], information],
    )
