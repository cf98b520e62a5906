"""A container engine of this machine, the options it needs here, and short commands to it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

# The engine runs with the pool's rights: nothing of a user's environment may reach it.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PREFIX = "gpupool-"
LABEL = "gpupool.pool"  # whose a container is: the run folder of its agent
_PASSED_ON = ("HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_ALSO = ("http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "REGISTRY_AUTH_FILE", "DOCKER_HOST")
_PATIENCE_S = 60.0


_under_way: set[subprocess.Popen[bytes]] = set()


def call_off() -> None:
    """End the commands that are under way: whoever waits for one would wait as long as a download takes."""
    for process in list(_under_way):
        process.kill()


class CgroupUse(StrEnum):
    """Where a container's processes stand among the control groups."""

    DISABLED = "disabled"  # where the engine stands: in the program's own group
    BELOW = "below"  # in a group below the program's own
    BESIDE = "beside"  # in one beside it, with limits of its own
    ENGINE = "engine"  # wherever the engine puts them, with limits that it sets


@dataclass(frozen=True, slots=True)
class Engine:
    """What was found out once. ``options`` go before the engine's command, ``run_options`` behind ``run``."""

    kind: str  # podman or docker
    program: str
    version: str
    options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()
    cgroups: CgroupUse = CgroupUse.ENGINE
    passthrough: bool = False
    containers: str = ""  # the folder with one for each container; empty: not known
    rootless: bool = False

    @property
    def podman(self) -> bool:
        """Whether the container is a descendant of its engine's command."""
        return self.kind == "podman"

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        return [self.program, *self.options, *arguments]

    def call(
        self, *arguments: str, timeout_s: float = _PATIENCE_S, input_file: int | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a short command. Raises ``GpupoolError(INTERNAL)`` when the engine does not answer."""
        command = self.command(*arguments)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if input_file is None else input_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean_environment(),
                cwd="/",
            )
        except OSError as error:
            raise GpupoolError(ErrorCode.INTERNAL, f"{self.kind} cannot be started: {error.strerror}.") from error
        _under_way.add(process)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise GpupoolError(ErrorCode.INTERNAL, f"{self.kind} did not answer in {timeout_s:.0f} s.") from error
        finally:
            _under_way.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Engine:
        """The inverse of ``to_dict``."""
        lists = {name: tuple(data[name]) for name in ("options", "run_options")}
        return cls(**{**data, **lists, "cgroups": CgroupUse(data["cgroups"])})


def clean_environment() -> dict[str, str]:
    """What an engine is given of the agent's environment."""
    kept = {name: os.environ[name] for name in (*_PASSED_ON, *_ALSO) if name in os.environ}
    return {"HOME": "/root" if os.geteuid() == 0 else str(Path.home()), **kept, "PATH": PATH}


def last_line(output: bytes) -> str:
    """What an engine says last, as a sentence for people."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ")[:300] if lines else "it said nothing"
