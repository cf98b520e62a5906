"""``attach``, ``exec``, ``shell`` and ``bash``: getting into what runs."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from gpupool.cli import asking
from gpupool.cli.commands.common import PASS_THROUGH, Index, Replica, command
from gpupool.cli.fast import commands as fast
from gpupool.cli.pool import meant

Folder = Annotated[str | None, typer.Option("-w", "--workdir", metavar="DIR", help="The folder to start in.")]
Env = Annotated[list[str] | None, typer.Option("-e", "--env", metavar="KEY=VALUE", help="A variable; repeatable.")]
DEFAULT_SHELL = "/bin/sh"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool attach train-1", "gpupool attach sweep/3 --no-stdin")(attach)
    command(
        app,
        "gpupool exec train-1 -- nvidia-smi",
        "gpupool exec -it sweep/3 -- bash",
        name="exec",
        context_settings=PASS_THROUGH,
    )(exec_)
    command(app, "gpupool shell train-1")(shell)
    command(app, "gpupool bash train-1")(bash)


def attach(
    name: Replica,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Only look.")] = False,
    tty: Annotated[bool | None, typer.Option("--tty/--no-tty", help="Use the terminal's raw mode.")] = None,
    index: Index = None,
) -> int:
    """Connect this terminal to a running program; Ctrl-P Ctrl-Q leaves it running.

    The exit status is the program's when it ends meanwhile.
    """
    from gpupool.cli.attaching import attach_to, require_program
    from gpupool.cli.pool import open_pool

    workload, number = meant(name)
    found = require_program(open_pool(), workload)
    chosen = index if index is not None else number or 0
    return attach_to(found["id"], chosen, tty=tty, stdin=not no_stdin)


def exec_(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Replica,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND ARGS...", help="The program to run.")],
    interactive: Annotated[
        bool, typer.Option("-i", "--stdin", help="Accepted: standard input always goes along.")
    ] = True,
    tty: Annotated[bool | None, typer.Option("-t", "--tty/--no-tty", help="Give it a terminal.")] = None,
    workdir: Folder = None,
    env: Env = None,
    index: Index = None,
) -> int:
    """Run another program on the GPUs that a workload holds; it ends with the workload."""
    del interactive
    command_line = words[1:] if words[0] == "--" else words
    return _beside(name, command_line, {"tty": tty, "workdir": workdir, "env": env}, index)


def shell(name: Replica, workdir: Folder = None, index: Index = None) -> int:
    """Open your shell on the GPUs that a workload holds."""
    return _beside(name, [os.environ.get("SHELL") or DEFAULT_SHELL], {"workdir": workdir}, index)


def bash(name: Replica, workdir: Folder = None, index: Index = None) -> int:
    """Open bash on the GPUs that a workload holds."""
    return _beside(name, ["bash"], {"workdir": workdir}, index)


def _beside(name: str, command_line: list[str], values: dict[str, Any], index: int | None) -> int:
    workload, number = meant(name)
    values = {key: value for key, value in values.items() if value not in (None, [])} | {"files": False}
    body = asking.workload(values, command_line) | {"kind": "exec", "on": workload}
    body.pop("project", None)
    chosen = index if index is not None else number
    if chosen is not None:
        body["on_index"] = chosen
    return fast.stay(body, values, start=False)
