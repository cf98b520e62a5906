"""Helpers of all commands: declaration, and common arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from gpupool.cli import completion
from gpupool.cli.index import ALIASES, COMMANDS, PROGRAM
from gpupool.cli.render.machines import EMULATED
from gpupool.cli.render.text import style_of
from gpupool.cli.transport.pool import PoolClient
from gpupool.specs.job_options import Option, OptionKind

F = TypeVar("F", bound=Callable[..., Any])

PASS_THROUGH = {"allow_interspersed_args": False}

Ref = Annotated[
    str, typer.Argument(metavar="NAME", help="A workload's name or id.", autocompletion=completion.workloads)
]
Replica = Annotated[
    str,
    typer.Argument(
        metavar="NAME[/N]", help="A workload's name or id, and a replica's index.", autocompletion=completion.workloads
    ),
]
Refs = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME...", help="Workloads by name or id.", autocompletion=completion.workloads),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON of the API.")]
Index = Annotated[int | None, typer.Option("--index", "--pod", help="Select one replica, by its index.", metavar="N")]


def command(app: typer.Typer, *examples: str, name: str | None = None, **settings: Any) -> Callable[[F], F]:
    """Declare a command with its help (from the docstring) and examples."""

    def declare(function: F) -> F:
        text = help_text(function.__doc__ or "", examples)
        app.command(name, help=text, **settings)(function)
        return function

    return declare


def add_group(app: typer.Typer, name: str, about: str, *examples: str) -> typer.Typer:
    """Add a command with subcommands, which shows its help without a subcommand, and return it."""
    group = typer.Typer(no_args_is_help=True, help=help_text(about, examples))
    app.add_typer(group, name=name)
    return group


def help_text(doc: str, examples: Sequence[str]) -> str:
    """Return a docstring followed by its examples, one on each line."""
    paragraphs = [inspect.cleandoc(doc)]
    if examples:
        paragraphs.append("\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(paragraphs).replace("[", r"\[")


def with_options(options: Sequence[Option]) -> Callable[[F], F]:
    """Give a function with ``**values`` the options of a table; values that were not given are left out.

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
        return call  # type: ignore[return-value]  # callers see the same signature

    return give


def add_aliases(group: typer.Typer, noun: str) -> None:
    """List the aliases of a noun in its group's help. ``index.resolve_alias`` replaces them before Typer runs."""
    for verb, target in ALIASES[noun].items():
        _, about = COMMANDS[target.split()[0]]
        text = f"{about}; see '{PROGRAM} {target} --help'."
        group.command(verb, help=help_text(text, [f"{PROGRAM} {noun} {verb}"]))(_do_nothing)


def _do_nothing() -> None:
    pass


def notify_if_emulated(pool: PoolClient) -> None:
    """Print on stderr that the GPUs are emulated, if they are."""
    if pool.get("pool")["emulated"]:
        print(style_of(sys.stderr).dim(EMULATED), file=sys.stderr, flush=True)


TYPES: dict[int, Any] = {
    OptionKind.FLAG: bool | None,
    OptionKind.TEXT: str | None,
    OptionKind.COUNT: int | None,
    OptionKind.NUMBER: float | None,
    OptionKind.REPEATED: list[str] | None,
}


def _parameter(option: Option) -> inspect.Parameter:
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
