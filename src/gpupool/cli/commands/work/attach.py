"""``attach``, ``exec``, ``shell`` and ``bash``."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import PASS_THROUGH, Index, Replica, command
from gpupool.cli.fast import commands as fast
from gpupool.cli.kubernetes.names import resolve_reference
from gpupool.cli.request import request_body
from gpupool.cli.transport.local import find_transport
from gpupool.cli.transport.pool import PoolClient, open_pool, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError

Folder = Annotated[str | None, typer.Option("-w", "--workdir", metavar="DIR", help="Start in this folder.")]
Env = Annotated[
    list[str] | None, typer.Option("-e", "--env", metavar="KEY=VALUE", help="Set an environment variable; repeatable.")
]
DEFAULT_SHELL = "/bin/sh"
Linger = Annotated[
    str | None,
    typer.Option("--linger", metavar="TIME", help="Let background processes run on for this time after it: 1h."),
]


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
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Do not send input.")] = False,
    tty: Annotated[
        bool | None, typer.Option("--tty/--no-tty", help="Use a terminal; default: if you have one.")
    ] = None,
    index: Index = None,
) -> int:
    """Connect this terminal to a running program; Ctrl-P Ctrl-Q detaches.

    If the program ends while attached, its exit status is returned.
    """
    workload, number = resolve_reference(name)
    found = require_program(open_pool(), workload)
    chosen = index if index is not None else number or 0
    return fast.attach_to_workload(found["id"], chosen, tty=tty, stdin=not no_stdin)


def require_program(pool: PoolClient, ref: str) -> dict[str, Any]:
    """Return the workload if it can have a program. Raises ``GpupoolError(WRONG_STATE)`` for a lease."""
    found: dict[str, Any] = pool.get(workload_path(ref))
    if found["kind"] == "lease":
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"{found['name']} is a lease and has no program.",
            f"Run one on it with 'gpupool client --lease {found['name']} -- COMMAND'.",
        )
    return found


TERMINAL_WORDS = {"-i", "-t", "-it", "-ti", "--stdin", "--tty"}  # kubectl and Run:ai take them after the name


def exec_(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Replica,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND ARGS...", help="The program to run.")],
    interactive: Annotated[
        bool, typer.Option("-i", "--stdin", help="No effect: standard input is always sent.")
    ] = True,
    tty: Annotated[
        bool | None, typer.Option("-t", "--tty/--no-tty", help="Give it a terminal; default: if you have one.")
    ] = None,
    workdir: Folder = None,
    env: Env = None,
    linger: Linger = None,
    index: Index = None,
) -> int:
    """Run another program on the GPUs of a workload; it ends with the workload."""
    del interactive
    given = list(itertools.takewhile(TERMINAL_WORDS.__contains__, words))
    tty = True if any("t" in word.removeprefix("--stdin") for word in given) else tty
    words = words[len(given) :]
    command_line = words[1:] if words[:1] == ["--"] else words
    if not command_line:
        raise typer.BadParameter("give a program")
    return _run_on_workload(name, command_line, {"tty": tty, "workdir": workdir, "env": env, "linger": linger}, index)


def shell(name: Replica, workdir: Folder = None, linger: Linger = None, index: Index = None) -> int:
    """Open your shell on the GPUs of a workload."""
    return _run_on_workload(
        name, [os.environ.get("SHELL") or DEFAULT_SHELL], {"workdir": workdir, "linger": linger}, index
    )


def bash(name: Replica, workdir: Folder = None, linger: Linger = None, index: Index = None) -> int:
    """Open bash on the GPUs of a workload."""
    return _run_on_workload(name, ["bash"], {"workdir": workdir, "linger": linger}, index)


def _run_on_workload(name: str, command_line: list[str], values: dict[str, Any], index: int | None) -> int:
    workload, number = resolve_reference(name)
    values = {key: value for key, value in values.items() if value not in (None, [])} | {"files": False}
    body = request_body.workload_body(values, command_line) | {"kind": "exec", "on": workload}
    body.pop("project", None)
    if "linger" in values:
        body["linger"] = values["linger"]
    if "workdir" not in values and _in_workspace(workload):
        body["workdir"] = ""  # its home
    chosen = index if index is not None else number
    if chosen is not None:
        body["on_index"] = chosen
    return fast.run_attached(find_transport(start=False), body, values)


def _in_workspace(ref: str) -> bool:
    """Return whether a workload runs in a workspace; an error is left to the submission."""
    with contextlib.suppress(GpupoolError):
        return bool(open_pool().get(workload_path(ref)).get("workspace"))
    return False
