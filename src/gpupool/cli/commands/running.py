"""``run`` and ``client``: the same as their fast path, for those who want help or made a mistake."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import PASS_THROUGH, command, takes
from gpupool.cli.fast import commands as fast
from gpupool.cli.options import CLIENT, RUN

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND ARGS...", help="The program and its arguments, or all in one quoted string."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool run -p 0.1 -- python3 train.py",
        "gpupool run -n 2 --model v100 --wait 30m -- python3 train.py --epochs 3",
        "gpupool run -m 2048 --project team-a -- nvidia-smi",
        'gpupool run -n 1 "python3 train.py"',
        context_settings=PASS_THROUGH,
    )(run)
    command(
        app,
        "gpupool request_gpus -n 1 -m 2048",
        "gpupool client -- python3",
        "gpupool client -f lease.json -- nvidia-smi",
        context_settings=PASS_THROUGH,
    )(client)


@takes(RUN)
def run(command: Command = None, **values: Any) -> int:
    """Run a program on GPUs, or on a slice of one, as if it had been started directly.

    It waits in the queue, runs with your terminal, folder and environment, and frees the GPUs whatever happens.
    The exit status is the program's. Ctrl-C and other signals reach it; in the queue Ctrl-C cancels.

    Ctrl-Z with pipes stops only this client, and the program goes on until nobody takes its output; on a terminal
    it is a key like any other.
    """
    if values.get("image"):  # which may say itself what to run
        return fast.run(values, command or [])
    return fast.run(values, _needed(command, "run -p 0.1 -- python3 train.py"))


@takes(CLIENT)
def client(command: Command = None, **values: Any) -> int:
    """Run a program on the GPUs of a lease that request_gpus took.

    Several may run at once or one after another. Without -f it is the last lease of this shell, else your last one.
    """
    return fast.client(values, _needed(command, "client -- python3"))


def _needed(command: list[str] | None, example: str) -> list[str]:
    if not command:
        raise typer.BadParameter(f"say what to run, for example: gpupool {example}")
    return command
