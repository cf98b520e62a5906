"""``run`` and ``client`` without the fast path: for help and usage errors."""

from __future__ import annotations

from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import PASS_THROUGH, command, with_options
from gpupool.cli.fast import commands as fast
from gpupool.cli.request.options import CLIENT, RUN

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND ARGS...", help="The program and its arguments, or all in one quoted string."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool run -p 0.1 -- python3 train.py",
        "gpupool run -n 2 --gpu-model v100 --wait 30m -- python3 train.py --epochs 3",
        "gpupool run -m 2048 --project team-a -- nvidia-smi",
        'gpupool run -n 1 "python3 train.py"',
        context_settings=PASS_THROUGH,
    )(run)
    command(
        app,
        "gpupool request-gpus -n 1 -m 2048",
        "gpupool client -- python3",
        "gpupool client -f lease.json -- nvidia-smi",
        context_settings=PASS_THROUGH,
    )(client)


@with_options(RUN)
def run(command: Command = None, **values: Any) -> int:
    """Run a program on GPUs, or on a slice of one, as if you had started it directly.

    It waits in the queue, runs with your terminal, folder and environment, and releases the GPUs in all cases. The exit
    status is the program's. Ctrl-C and other signals are forwarded to it; in the queue Ctrl-C cancels.

    With pipes, Ctrl-Z stops only this client; the program continues until its output buffer is full. On a terminal
    Ctrl-Z is sent to the program.
    """
    if values.get("image"):  # an image can have a default command
        return fast.run(values, command or [])
    return fast.run(values, _require_command(command, "run -p 0.1 -- python3 train.py"))


@with_options(CLIENT)
def client(command: Command = None, **values: Any) -> int:
    """Run a program on the GPUs of a lease.

    Several programs may run at once. Without -f it uses the last lease of this shell, else your newest lease.
    """
    return fast.client(values, _require_command(command, "client -- python3"))


def _require_command(command: list[str] | None, example: str) -> list[str]:
    if not command:
        raise typer.BadParameter(f"give a command, for example: gpupool {example}")
    return command
