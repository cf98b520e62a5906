"""``ssh`` and ``ssh-proxy``: SSH sessions in workloads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import PASS_THROUGH, command
from gpupool.cli.kubernetes.names import resolve_reference
from gpupool.cli.output import notify
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s

if TYPE_CHECKING:
    from gpupool.client.ssh.target import SessionTimes

Linger = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Background processes run on for this time after the last connection; default: 0."
    ),
]

IdleTimeout = Annotated[
    str | None,
    typer.Option(
        "--idle-timeout",
        metavar="TIME",
        help="The pool ends a session that was idle for this time; default: the idle limit of the project.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool ssh dev",
        "gpupool ssh dev -L 8888:localhost:8888",
        "gpupool ssh dev -- nvidia-smi",
        "gpupool ssh --linger 1h dev -- tmux new -A",
        "gpupool ssh --configure",
        context_settings=PASS_THROUGH,
    )(ssh)
    command(app, "ssh -o 'ProxyCommand gpupool ssh-proxy %n' gpupool.dev", name="ssh-proxy")(ssh_proxy)


def ssh(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME[/N]",
            help="A workload's name or id, and a replica's index.",
            autocompletion=completion.workloads,
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SSH OPTIONS] [-- COMMAND]", help="Options of ssh, and a command to run."),
    ] = None,
    *,
    configure: Annotated[
        bool, typer.Option("--configure", help="Add the hosts gpupool.NAME to ~/.ssh/config for all SSH programs.")
    ] = False,
    linger: Linger = None,
    idle_timeout: IdleTimeout = None,
) -> int:
    """Open an SSH session on the GPUs of a workload, with the ssh of this machine.

    The session runs where the workload runs, with its limits. It needs no key and no SSH server in the workload, but
    the extra gpupool[ssh] on this machine. After --configure, ssh, scp, sftp and rsync reach a workload as
    gpupool.NAME, and its replica 2 as gpupool.NAME.2. With --linger 1h, tmux and servers that a session starts survive
    its end until there was no connection for an hour, or the workload ends. With --configure, the times apply to all
    sessions.
    """
    from gpupool.client.ssh.configuration import configure as write_configuration
    from gpupool.client.ssh.configuration import ssh_command
    from gpupool.client.ssh.target import HOST_PREFIX

    if configure:
        block = write_configuration(Path.home() / ".ssh", _times(linger, idle_timeout))
        notify(f"{block} is written; 'ssh {HOST_PREFIX}NAME' connects to a workload")
        return 0
    if name is None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "The name of a workload is missing.", "For example: gpupool ssh dev."
        )
    workload, index = resolve_reference(name)
    options, remote = _split(words or [])
    host = HOST_PREFIX + workload + ("" if index is None else f".{index}")
    argv = ssh_command(host, options, remote, _times(linger, idle_timeout))
    # ssh takes our place, with its terminal and exit status.
    return os.execv(argv[0], argv)  # noqa: S606


def _times(linger: str | None, idle_timeout: str | None) -> SessionTimes:
    """Return times that the pool accepts; 0 means none. Raises ``GpupoolError``."""
    from gpupool.client.ssh.target import SessionTimes

    return SessionTimes(*(time if time and parse_duration_s(time) else None for time in (linger, idle_timeout)))


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of ssh and the command; a command without options before it needs no ``--``."""
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return (words, []) if words and words[0].startswith("-") else ([], words)


def ssh_proxy(
    host: Annotated[str, typer.Argument(metavar="HOST", help="gpupool.NAME, or gpupool.NAME.2 for replica 2.")],
    *,
    linger: Linger = None,
    idle_timeout: IdleTimeout = None,
) -> int:
    """Serve one SSH connection to a workload on standard input and output, as the ProxyCommand of ssh."""
    from gpupool.client.ssh.configuration import host_key, require_asyncssh

    require_asyncssh()
    from gpupool.client.ssh.server import serve

    serve(host, str(host_key().private), _times(linger, idle_timeout))
    return 0
