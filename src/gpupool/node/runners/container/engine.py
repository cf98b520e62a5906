"""A container engine of this machine, its options, and short commands to it."""

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
LABEL = "gpupool.pool"  # the owner of a container: the run folder of its agent
WORKSPACE_LABEL = "gpupool.workspace"  # the workspace that keeps the files of a container
_PASSED_ON = ("HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_ALSO = ("http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "REGISTRY_AUTH_FILE", "DOCKER_HOST")
_COMMAND_TIMEOUT_S = 60.0


_running: set[subprocess.Popen[bytes]] = set()


def kill_commands() -> None:
    """Kill running commands, because waiting for one could take as long as a download."""
    for process in list(_running):
        process.kill()


class CgroupUse(StrEnum):
    """The control group of a container's processes."""

    DISABLED = "disabled"  # the engine's group, which is the program's own
    BELOW = "below"  # in a group below the program's own
    SIBLING = "beside"  # in a sibling group, with separate limits
    ENGINE = "engine"  # in a group of the engine, with limits set by it


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """The result of the probe. ``options`` go before the engine's command, ``run_options`` after ``run``."""

    kind: str  # podman or docker
    program: str
    version: str
    options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()
    cgroups: CgroupUse = CgroupUse.ENGINE
    passthrough: bool = False
    containers: str = ""  # the folder with one subfolder per container; empty if unknown
    rootless: bool = False

    @property
    def podman(self) -> bool:
        """Return True if the container is a descendant of the engine's command."""
        return self.kind == "podman"

    def command(self, *arguments: str) -> list[str]:
        """Return the complete command line."""
        return [self.program, *self.options, *arguments]

    def call(
        self, *arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S, input_file: int | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a short command. Raises ``GpupoolError(INTERNAL)`` if the engine does not answer."""
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
        _running.add(process)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise GpupoolError(ErrorCode.INTERNAL, f"{self.kind} did not answer in {timeout_s:.0f} s.") from error
        finally:
            _running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def clean_environment() -> dict[str, str]:
    """Return the part of the agent's environment that an engine gets."""
    kept = {name: os.environ[name] for name in (*_PASSED_ON, *_ALSO) if name in os.environ}
    return {"HOME": "/root" if os.geteuid() == 0 else str(Path.home()), **kept, "PATH": PATH}


def last_line(output: bytes) -> str:
    """Return the last line of an engine's output as a message for users."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ")[:300] if lines else "no output"
