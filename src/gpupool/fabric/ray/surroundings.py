"""What Ray's processes of the pool are started with: variables, ports and a folder of their own.

Nothing of it may meet a Ray that a user of the machine runs, and nothing may reach a user's program: the variables are
set for the processes of this package alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKER = "GPUPOOL_RAY"  # set for all of them, so that what a killed parent left behind is found
NAMESPACE = "gpupool"
NODE_LABEL = "gpupool-node"
FIRST_PORT = 8650
WORKER_PORTS = 20
RECONNECT_S = 600  # how long raylets and the bridge bear the loss of the GCS (Ray's own choice would be 60)
_LOG_BYTES = 4 << 20
_LOG_FILES = 2


def say(event: str, **values: Any) -> None:
    """Write one line to the log of the process; a standard error that is gone or full never hurts."""
    line = json.dumps({"at": round(time.time(), 3), "from": "ray", "event": event, **values}, default=str)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def load(module: str) -> Any:
    """A module of Ray, as something without types: its own are not of use, and it may not be installed."""
    return importlib.import_module(module)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one machine, counted from the first; those of workers are a range."""

    first: int = FIRST_PORT

    @property
    def gcs(self) -> int:
        """Of the GCS, on the head."""
        return self.first

    @property
    def node_manager(self) -> int:
        """Of the raylet."""
        return self.first + 1

    @property
    def object_manager(self) -> int:
        """Of the object store, which is not used."""
        return self.first + 2

    @property
    def runtime_env_agent(self) -> int:
        """HTTP, with the token."""
        return self.first + 3

    @property
    def agent_http(self) -> int:
        """Of Ray's agent."""
        return self.first + 4

    @property
    def agent_grpc(self) -> int:
        """Likewise."""
        return self.first + 5

    @property
    def metrics(self) -> int:
        """Likewise."""
        return self.first + 6

    @property
    def workers(self) -> tuple[int, int]:
        """First and last of the relay and of the bridge."""
        return self.first + 10, self.first + 10 + WORKER_PORTS - 1

    def fixed(self, *, head: bool) -> tuple[int, ...]:
        """All but the range."""
        own = (self.node_manager, self.object_manager, self.runtime_env_agent, self.agent_http, self.agent_grpc)
        return (*((self.gcs,) if head else ()), *own, self.metrics)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The folder of what a machine needs to take part; all files are readable by the pool's owner alone."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate of the pool's own authority."""
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        """This machine's, signed by it."""
        return self.folder / "node.pem"

    @property
    def key(self) -> Path:
        """Its key."""
        return self.folder / "node.key"

    @property
    def token(self) -> Path:
        """Ray's token: whoever has it and a certificate can run programs on all machines of the pool."""
        return self.folder / "ray.token"


def ray_variables(secrets: Secrets, temp: Path) -> dict[str, str]:
    """The variables of every process of the pool that speaks Ray's protocols."""
    return {
        MARKER: str(temp),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(secrets.token),
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(secrets.ca),
        "RAY_TLS_SERVER_CERT": str(secrets.certificate),
        "RAY_TLS_SERVER_KEY": str(secrets.key),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S),
        "RAY_ROTATION_MAX_BYTES": str(_LOG_BYTES),
        "RAY_ROTATION_BACKUP_COUNT": str(_LOG_FILES),
        "RAY_enable_worker_prestart": "0",
        "RAY_DEDUP_LOGS": "0",
        "PYTHONWARNINGS": "ignore",
    }


def put_on(variables: dict[str, str]) -> None:
    """Make this process one of them; to be called before Ray is imported. Variables of other Rays are dropped."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update(variables)


def write_secret(path: Path, data: bytes) -> None:
    """Replace a file, readable by its owner alone from the first moment. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
