"""Variables, ports and folder of the pool's Ray processes.

They must not affect a Ray that a user of the machine runs, nor a user's program: the variables are set for the
processes of this package only.
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
START_TIMEOUT_S = 600  # how long Ray's processes may take to find each other on a busy machine; Ray: 5 to 120 s
OVERRIDES = "GPUPOOL_RAY_"  # an administrator's GPUPOOL_RAY_x sets RAY_x
_LOG_BYTES = 4 << 20
_LOG_FILES = 2


def log_event(event: str, **values: Any) -> None:
    """Write one line to the log of the process; errors of standard error are ignored."""
    line = json.dumps({"at": round(time.time(), 3), "from": "ray", "event": event, **values}, default=str)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def hide_slow_modules() -> None:
    """Prevent the import of a package that takes longer than all of Ray and that Ray does not need.

    Ray imports ``jsonschema``, which imports ``rfc3987_syntax`` where Jupyter is installed too. Its import compiles a
    grammar for a second, to check addresses with letters of all languages. ``jsonschema`` works without it.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None makes an import fail


def load(module: str) -> Any:
    """Import a module of Ray as ``Any``: its types are of no use, and it may not be installed."""
    hide_slow_modules()
    return importlib.import_module(module)


@dataclass(frozen=True, slots=True)
class RayPorts:
    """The ports of one machine, counted from the first; those of workers are a range."""

    first: int = FIRST_PORT

    @property
    def gcs(self) -> int:
        """Return the port of the GCS, on the head."""
        return self.first

    @property
    def node_manager(self) -> int:
        """Return the port of the raylet."""
        return self.first + 1

    @property
    def object_manager(self) -> int:
        """Return the port of the object store, which is not used."""
        return self.first + 2

    @property
    def workers(self) -> tuple[int, int]:
        """Return the first and last port of the relay and the bridge."""
        return self.first + 10, self.first + 10 + WORKER_PORTS - 1

    def fixed(self, *, head: bool) -> tuple[int, ...]:
        """Return all ports without the range."""
        return (*((self.gcs,) if head else ()), self.node_manager, self.object_manager)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The folder of the secrets of a machine in the cluster; only the pool's owner can read the files."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Return the file with the certificate of the pool's authority."""
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        """Return the file with this machine's certificate."""
        return self.folder / "node.pem"

    @property
    def key(self) -> Path:
        """Return the file with this machine's key."""
        return self.folder / "node.key"

    @property
    def token(self) -> Path:
        """Return the file with Ray's token; with it and a certificate, programs can run on all machines."""
        return self.folder / "ray.token"


def ray_variables(secrets: Secrets, temp: Path) -> dict[str, str]:
    """Return the variables of every process of the pool that uses Ray's protocols."""
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


def timeout_variables() -> dict[str, str]:
    """Return longer start timeouts for Ray, for slow machines, and its priority.

    An administrator may set others. Names and defaults are in Ray's ``ray_config_def.h`` and ``_private/node.py``.
    """
    return {
        "RAY_agent_register_timeout_ms": str(START_TIMEOUT_S * 1000),
        "RAY_gcs_rpc_server_connect_timeout_s": str(START_TIMEOUT_S),
        "RAY_gcs_server_port_wait_time_s": str(START_TIMEOUT_S),
        "RAY_py_gcs_connect_timeout_s": str(START_TIMEOUT_S),
        "RAY_worker_niceness": "0",  # of the relay, added to ours; Ray: 15
        "RAY_worker_oom_score_adjustment": "0",  # likewise; Ray: 1000
        "RAY_raylet_start_wait_time_s": "5",  # of one question; it is asked again while the raylet lives
    }


def set_variables(variables: dict[str, str]) -> None:
    """Set these variables in this process, before Ray is imported; variables of other Rays are removed.

    An administrator's ``GPUPOOL_RAY_…`` replaces Ray's defaults and our limits, but not ``variables``.
    """
    overrides = {f"RAY_{k.removeprefix(OVERRIDES)}": v for k, v in os.environ.items() if k.startswith(OVERRIDES)}
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update(timeout_variables() | overrides | variables)


def write_secret(path: Path, data: bytes) -> None:
    """Replace a file, readable by its owner only from the start. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
