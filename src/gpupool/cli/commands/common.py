"""Helpers of all commands: declaration, and common arguments."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.index import ALIASES, COMMANDS, PROGRAM
from gpupool.cli.render.machines import EMULATED
from gpupool.cli.render.text import style_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpupool.cli.transport.pool import PoolClient
    from gpupool.specs.job_options import Option

F = TypeVar("F", bound="Callable[..., Any]")

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
    return app.command(name, examples=examples, **settings)


def add_group(app: typer.Typer, name: str, about: str, *examples: str) -> typer.Typer:
    """Add a command with subcommands, which shows its help without a subcommand, and return it."""
    group = typer.Typer(about, examples, no_args_is_help=True)
    app.add_typer(group, name=name)
    return group


def with_options(options: Sequence[Option]) -> Callable[[F], F]:
    """Give a function with ``**values`` the options of a table; values that were not given are left out.

    The function's own parameters come first.
    """

    def give(function: F) -> F:
        def call(**given: Any) -> Any:
            return function(**{name: value for name, value in given.items() if value not in (None, [])})

        call.own, call.options = function, options  # type: ignore[attr-defined]  # read by the parsers
        call.__doc__ = function.__doc__
        call.__name__ = function.__name__
        return call  # type: ignore[return-value]  # callers see the same signature

    return give


def add_aliases(group: typer.Typer, noun: str) -> None:
    """List the aliases of a noun in its group's help. ``index.resolve_alias`` replaces them before Typer runs."""
    for verb, target in ALIASES[noun].items():
        _, about = COMMANDS[target.split()[0]]
        text = f"{about}; see '{PROGRAM} {target} --help'."
        group.command(verb, text=text, examples=(f"{PROGRAM} {noun} {verb}",))(_do_nothing)


def _do_nothing() -> None:
    pass


def notify_if_emulated(pool: PoolClient) -> None:
    """Print on stderr that the GPUs are emulated, if they are."""
    if pool.get("pool")["emulated"]:
        print(style_of(sys.stderr).dim(EMULATED), file=sys.stderr, flush=True)
