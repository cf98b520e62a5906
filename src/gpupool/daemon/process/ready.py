"""Waiting for a pool to respond, as long as it makes progress, and the error if it does not."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool import unix_sockets
from gpupool.client.discovery import Location
from gpupool.daemon.config import MachineRole, PoolConfig
from gpupool.daemon.local_api import WAITING, ask, health, healthy
from gpupool.daemon.machine import AGENT_SOCKET
from gpupool.daemon.process.progress import Pace, StartWatch, SupervisorKilledError, failed
from gpupool.daemon.process.record import read_record, read_state
from gpupool.daemon.process.spawn import Spawned
from gpupool.domain.errors import GpupoolError

NODE_TIMEOUT_S = 10.0
LEAD_TIMEOUT_S = 120.0  # for a control plane that creates the tables of its database
TURN_TIMEOUT_S = 3.0  # a control plane that does not lead by then is a standby
HEALTH_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 25.0
_POLL_S = 0.02
_LINE_LIMIT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StartResult:
    """A pool that was just started.

    ``gpus`` counts GPUs by model (``{"Tesla T4": 4}``); ``url`` and ``fingerprint`` (SHA-256 of the certificate, hex)
    are set when it listens on a network. ``process`` is the supervisor when it runs in the foreground.
    """

    location: Location
    pid: int
    version: str = ""
    emulated: bool = False
    gpus: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    url: str | None = None
    fingerprint: str | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def gpus_text(self) -> str:
        """Return ``4 x Tesla T4, 2 x V100 (emulated)``; ``no GPUs yet`` before the node has reported."""
        text = ", ".join(f"{count} x {model}" for model, count in self.gpus.items())
        return (text + (" (emulated)" if self.emulated else "")) if text else "no GPUs yet"


def await_supervisor(config: PoolConfig, spawned: Spawned, stall_s: float) -> int:
    """Wait until a new supervisor holds the pool's lock and has started its children; return its pid.

    Raises ``GpupoolError``: the supervisor's error, or POOL_START_FAILED if it ended or is silent.
    """
    try:
        line = _ready_line(spawned.ready_fd, stall_s)
    finally:
        os.close(spawned.ready_fd)
    if "error" in line:
        raise GpupoolError.from_dict(line["error"])
    if "pid" not in line:
        raise _killed(failed("its supervisor ended at once", config.location, "supervisor", spawned.log_from))
    return int(line["pid"])


def await_start(config: PoolConfig, spawned: Spawned, pid: int, watch: StartWatch) -> StartResult:
    """Wait until a pool that this process has started responds, with its node.

    Raises ``GpupoolError`` (POOL_START_FAILED, or the error of a process that refused to begin).
    """
    wait = _await_agent if config.role is MachineRole.NODE else await_answer
    if not wait(config.location, watch):
        error = failed("its supervisor ended", config.location, "supervisor", spawned.log_from)
        raise _killed(error) if read_state(config.location).get("pid") == pid else error  # it removes the file
    if config.role is MachineRole.NODE:
        return StartResult(config.location, pid, process=spawned.process)
    return _describe(config, spawned, pid, _await_node(config.location, watch))


def _killed(error: GpupoolError) -> SupervisorKilledError:
    return SupervisorKilledError(error.code, error.message, error.hint)


def await_answer(location: Location, watch: StartWatch) -> bool:
    """Wait until a pool's API responds; return False if its supervisor has ended. Raises like ``StartWatch.look``."""
    return _await(lambda: healthy(location, HEALTH_TIMEOUT_S), watch)


def _await_agent(location: Location, watch: StartWatch) -> bool:
    """Wait until the agent of a machine that is a node of a cluster listens."""
    return _await(lambda: _agent_listens(location), watch)


def _await(reached: Callable[[], bool], watch: StartWatch) -> bool:
    pace = Pace()
    while not reached():
        if not watch.look():
            return False
        time.sleep(pace.next_s())
    return True


def _agent_listens(location: Location) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            unix_sockets.connect(sock, f"{location.run_dir}/{AGENT_SOCKET}")
        except OSError:
            return False
    return True


def certificate_fingerprint(config: PoolConfig) -> str | None:
    """Return the SHA-256 of the pool's certificate in hex; None if it cannot be read."""
    path = Path(config.tls_cert) if config.tls_cert else Path(config.state_dir) / "tls" / "cert.pem"
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first_certificate(path.read_text("ascii")))).hexdigest()
    except (OSError, ValueError):
        return None


def _await_node(location: Location, watch: StartWatch) -> dict[str, Any]:
    """Return the pool's description once its node has reported, or after a timeout (a slow driver is no failure)."""
    started = began = time.monotonic()
    starting = False
    while True:
        state = health(location)
        # It does not respond while it changes from a control plane that starts to one that leads.
        starting = state.get("starting", False) or (starting and not state)
        waits = starting and time.monotonic() < started + LEAD_TIMEOUT_S
        if waits:
            began = time.monotonic()
        if state.get("status") == WAITING and time.monotonic() >= began + TURN_TIMEOUT_S:
            return {"version": state.get("version"), "warnings": [f"{state.get('message')} {state.get('hint')}"]}
        pool = _quietly(location, "/v1/pool")
        steady = watch.steady()
        if (steady and pool.get("nodes_up")) or (not waits and time.monotonic() >= began + NODE_TIMEOUT_S):
            return pool
        time.sleep(_POLL_S)


def _describe(config: PoolConfig, spawned: Spawned, pid: int, pool: dict[str, Any]) -> StartResult:
    gpus = _quietly(config.location, "/v1/gpus").get("gpus", [])
    return StartResult(
        config.location,
        pid,
        version=str(pool.get("version", "")),
        emulated=bool(pool.get("emulated")),
        gpus=dict(Counter(str(gpu["model"]) for gpu in gpus)),
        warnings=tuple(pool.get("warnings", ())),
        url=f"https://{config.listen}" if config.listen else None,
        fingerprint=certificate_fingerprint(config) if config.listen else None,
        process=spawned.process,
    )


def _first_certificate(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + pem.partition(begin)[2].partition(end)[0] + end


def _ready_line(fd: int, timeout_s: float) -> dict[str, Any]:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = os.read(fd, _LINE_LIMIT_BYTES) if poll.poll(timeout_s * 1000) else b""
    try:
        line = json.loads(data)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _quietly(location: Location, path: str) -> dict[str, Any]:
    try:
        return ask(location, "GET", path)
    except (OSError, GpupoolError):
        return {}


def end_supervisor(state_dir: str, pid: int) -> None:
    """End the supervisor with this pid, but no later one on the same folder."""
    record = read_record(state_dir)
    if record and record.supervisor.pid == pid and record.alive:
        record.supervisor.send(signal.SIGTERM)
        record.supervisor.wait_gone(_END_TIMEOUT_S)
