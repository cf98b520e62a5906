"""``compat``: commands with the names of other systems: Slurm, Run:ai and Bitfusion."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import PASS_THROUGH, add_group, command
from gpupool.cli.output import notify, show
from gpupool.domain.errors import ErrorCode, GpupoolError

MARK = "# made by 'gpupool compat install"
# By system: its commands. The words of Run:ai and Bitfusion are those of gpupool.
NAMES = {
    "slurm": ("sbatch", "srun", "squeue", "scancel", "sinfo", "sacct", "salloc", "scontrol"),
    "runai": ("runai",),
    "bitfusion": ("bitfusion",),
}
System = Annotated[str, typer.Argument(metavar="SYSTEM", help="slurm, runai or bitfusion.")]
Folder = Annotated[
    str | None, typer.Option("--dir", metavar="DIR", help="Use this folder; default: ~/.local/share/gpupool/SYSTEM.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "compat",
        "Install commands with the names of another system.",
        "gpupool compat install slurm",
        "gpupool compat install bitfusion",
    )
    command(group, "gpupool compat install slurm", "gpupool compat install slurm --dir ~/bin")(install)
    command(group, "gpupool compat remove slurm")(remove)
    command(group, "gpupool compat slurm squeue --me", context_settings=PASS_THROUGH)(slurm)


def install(system: System, folder: Folder = None) -> int:
    """Write the commands of a system into a folder: sbatch, srun and others of Slurm; runai; or bitfusion.

    Add the folder to PATH to use them.
    """
    names, place = _names(system), _place(system, folder)
    program = [sys.executable, "-E", "-P", "-m", "gpupool"]
    taken = [name for name in names if not _is_own(f"{place}/{name}")]
    if taken:
        raise GpupoolError(
            ErrorCode.NAME_TAKEN,
            f"{place}/{taken[0]} exists and is not gpupool's.",
            "Choose another folder with --dir.",
        )
    try:
        os.makedirs(place, mode=0o755, exist_ok=True)  # noqa: PTH103
        for name in names:
            words = [*program, "compat", "slurm", name] if system == "slurm" else program
            _write(f"{place}/{name}", f'#!/bin/sh\n{MARK} {system}\'\nexec {shlex.join(words)} "$@"\n')
    except OSError as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{place} cannot be written: {error.strerror}.", "Choose another folder with --dir."
        ) from error
    notify(f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} in {place}")
    show([f"export PATH={shlex.quote(place)}:$PATH"])
    return 0


def remove(system: System, folder: Folder = None) -> int:
    """Remove the commands from their folder."""
    names, place = _names(system), _place(system, folder)
    found = [f"{place}/{name}" for name in names if os.path.lexists(f"{place}/{name}") and _is_own(f"{place}/{name}")]
    for path in found:
        os.unlink(path)  # noqa: PTH108
    notify(f"removed {len(found)} commands from {place}")
    return 0


def slurm(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND ARGS...", help="A command and its arguments.")],
) -> int:
    """Run a command of Slurm. The installed commands call it."""
    from gpupool.cli.commands.work.slurm import COMMANDS

    if words[0] not in COMMANDS:
        raise typer.BadParameter(f"{words[0][:40]} is not one of {', '.join(COMMANDS)}")
    return COMMANDS[words[0]](words[1:])


def _names(system: str) -> tuple[str, ...]:
    if system not in NAMES:
        raise typer.BadParameter(f"{system[:40]} is not one of {', '.join(NAMES)}")
    return NAMES[system]


def _place(system: str, folder: str | None) -> str:
    chosen = folder or f"~/.local/share/gpupool/{system}"
    return os.path.abspath(os.path.expanduser(chosen))  # noqa: PTH100, PTH111 - as everywhere on light paths


def _is_own(path: str) -> bool:
    """Return whether a file may be replaced: it does not exist, or ``install`` has written it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return MARK.encode() in file.read(1024)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _write(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)  # noqa: PTH105
