"""The workload that an SSH host name stands for, and the programs of its sessions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from gpupool.client.client import Client
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.workload import WorkloadState
from gpupool.specs.request import WorkloadRequest, parse_request

HOST_PREFIX = "gpupool."
SESSION_LABEL = "session"
MAX_VARIABLES = 128
MAX_VARIABLE_CHARS = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED_VARIABLES = re.compile(
    r"(LD_|GPUPOOL_|CUDA_|NVIDIA_|BASH_FUNC_).*|PATH|HOME|USER|LOGNAME|SHELL|PWD|ENV|BASH_ENV"
)
# The user's shell where the program runs: SHELL of the login, else bash, else sh.
_FIND_SHELL = 's=${SHELL:-}; [ -x "$s" ] || s=$(command -v bash) || s=/bin/sh; '
_COMMAND = _FIND_SHELL + 'exec "$s" -c "$1"'
_SHELL = _FIND_SHELL + 'exec "$s" -l'


@dataclass(frozen=True, slots=True)
class SshTarget:
    """A replica of a workload, by id; ``name`` is for messages."""

    workload: str
    index: int
    name: str

    def path(self, what: str) -> str:
        """Return the path of one of its WebSockets."""
        return f"/v1/workloads/{quote(self.workload, safe='')}/{what}?index={self.index}"


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Time limits of sessions, such as 1h.

    ``linger``: how long background processes may run after the last connection; None: they end with it.
    ``idle_timeout``: the pool ends a session that was idle for this time; None: the idle limit of the project.
    """

    linger: str | None = None
    idle_timeout: str | None = None

    def options(self) -> list[str]:
        """Return the options of ``ssh-proxy`` for these limits."""
        given = {"--linger": self.linger, "--idle-timeout": self.idle_timeout}
        return [word for name, value in given.items() if value for word in (name, value)]


NO_TIMES = SessionTimes()


@dataclass(frozen=True, slots=True)
class SessionProgram:
    """Request of a session. ``command`` None: a shell. ``size`` is rows and columns of its terminal, if any."""

    command: str | None
    env: Mapping[str, str]
    size: tuple[int, int] | None = None
    times: SessionTimes = NO_TIMES

    def request(self, target: SshTarget) -> WorkloadRequest:
        """Return the submission of the program. Raises ``GpupoolError``."""
        words = ["/bin/sh", "-c", _SHELL] if self.command is None else ["/bin/sh", "-c", _COMMAND, "sh", self.command]
        rows, columns = self.size or (24, 80)
        return parse_request(
            {
                "kind": "exec",
                "name": f"ssh-{os.urandom(4).hex()}",
                "labels": {SESSION_LABEL: "ssh"},
                "on": target.workload,
                "on_index": target.index,
                "command": words,
                "literal": True,
                "env": dict(self.env),
                "client_bound": True,
                "linger": self.times.linger,
                "idle_timeout": self.times.idle_timeout,
                "tty": self.size is not None,
                "stdin": self.size is None,
                "rows": rows,
                "columns": columns,
                "log_limit": "1M",
                "ttl": "1h",
            }
        )


def find_target(client: Client, host: str) -> SshTarget:
    """Return the replica of ``gpupool.NAME`` or ``gpupool.NAME.INDEX`` (the prefix may be absent).

    A workload whose name ends in a number has precedence over a replica. Raises ``GpupoolError``: UNKNOWN_WORKLOAD,
    NOT_FOUND for a replica, FORBIDDEN for a workload of another user, WRONG_STATE for one that does not run.
    """
    name = host.removeprefix(HOST_PREFIX)
    shorter, dot, number = name.rpartition(".")
    try:
        detail, index = client.detail(name), 0
    except GpupoolError as error:
        if error.code is not ErrorCode.UNKNOWN_WORKLOAD or not dot or not number.isdecimal() or len(number) > 6:
            raise
        detail, index = client.detail(shorter), int(number)
    if detail.manages is False:
        raise GpupoolError(
            ErrorCode.FORBIDDEN, f"{detail.name} belongs to {detail.user}.", "Ask an administrator of the pool."
        )
    if detail.state is not WorkloadState.RUNNING:
        advice = "Submit it again." if detail.state.final else f"See `gpupool why {detail.name}`."
        raise GpupoolError(ErrorCode.WRONG_STATE, f"{detail.name} is {detail.state}, not running.", advice)
    if index >= detail.completions:
        raise GpupoolError(
            ErrorCode.NOT_FOUND,
            f"{detail.name} has no replica {index}; it has {detail.completions}.",
            f"Use {HOST_PREFIX}{detail.name}.0 to {HOST_PREFIX}{detail.name}.{detail.completions - 1}.",
        )
    return SshTarget(detail.id, index, detail.name)


def accepted_variables(asked: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of env requests that a session may set: none that select libraries, GPUs or the login."""
    fit = (
        (name, value)
        for name, value in asked.items()
        if _VARIABLE.fullmatch(name)
        and not _REFUSED_VARIABLES.fullmatch(name)
        and len(name) + len(value) <= MAX_VARIABLE_CHARS
        and "\0" not in value
    )
    return dict(sorted(fit)[:MAX_VARIABLES])
