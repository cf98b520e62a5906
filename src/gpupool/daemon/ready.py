"""Waiting for a pool to answer, and saying why when it does not."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool.client.locate import Location, connect_unix
from gpupool.daemon.ask import WAITING, ask, health, healthy
from gpupool.daemon.children import KILLED, ChildState
from gpupool.daemon.cluster import AGENT_SOCKET
from gpupool.daemon.config import PoolConfig
from gpupool.daemon.folders import log_path
from gpupool.daemon.logs import tail
from gpupool.daemon.record import PoolRecord, read_record, read_state
from gpupool.daemon.spawn import Spawned
from gpupool.domain.errors import ErrorCode, GpupoolError

NODE_TIMEOUT_S = 10.0
TURN_TIMEOUT_S = 3.0  # whoever does not lead by then waits for its turn
_END_TIMEOUT_S = 25.0
_POLL_S = 0.02
_LINE_LIMIT_BYTES = 1 << 16
_REFUSED = "exit status 2"  # the control plane could not begin and has said why
_REFUSAL = re.compile(
    r"^control plane not running: (?P<message>.+) \[(?P<code>[A-Z_]+)\](?:\n  (?P<hint>.*))?", re.MULTILINE
)
_HOPELESS = frozenset(  # trying again does not help
    {
        ErrorCode.PORT_TAKEN,
        ErrorCode.DATABASE_CORRUPT,
        ErrorCode.DATABASE_NEWER,
        ErrorCode.DATABASE_FOREIGN,
        ErrorCode.UNSUPPORTED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_FILE,
    }
)


@dataclass(frozen=True, slots=True)
class StartResult:
    """A pool that has just been started.

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
        """``4 x Tesla T4, 2 x V100 (emulated)``; ``no GPUs yet`` before the node has reported."""
        text = ", ".join(f"{count} x {model}" for model, count in self.gpus.items())
        return (text + (" (emulated)" if self.emulated else "")) if text else "no GPUs yet"

    @property
    def emulated_text(self) -> str:
        """One sentence for people when the GPUs are emulated, else empty."""
        return f"No real GPU is used: {self.gpus_text}, programs run on the CPU." if self.emulated else ""


def await_start(config: PoolConfig, spawned: Spawned, timeout_s: float) -> StartResult:
    """Wait until a supervisor just spawned has its pool answering, with its node; ends it when that fails.

    Raises ``GpupoolError``: what the supervisor said, or POOL_START_FAILED with the last lines of the failing log.
    """
    deadline = time.monotonic() + timeout_s
    line = _first_word(spawned, timeout_s)
    try:
        if "pid" not in line or not await_running(config.location, deadline - time.monotonic()):
            raise _failed("its supervisor ended at once", config.location, "supervisor")
        pool = _await_node(config.location)
    except GpupoolError:
        _end_supervisor(config.state_dir)
        raise
    return _describe(config, spawned, int(line["pid"]), pool)


def await_node_start(config: PoolConfig, spawned: Spawned, timeout_s: float) -> StartResult:
    """The same for a machine that is a node of a cluster: until its agent listens, whoever asks it then."""
    deadline = time.monotonic() + timeout_s
    line = _first_word(spawned, timeout_s)
    try:
        while not _agent_listens(config.location):
            record = read_record(config.state_dir)
            if record is None or not record.alive or time.monotonic() >= deadline:
                raise _failed("its agent does not answer", config.location, "agent")
            _refuse_crash_loop(config.location, record)
            time.sleep(_POLL_S)
    except GpupoolError:
        _end_supervisor(config.state_dir)
        raise
    return StartResult(config.location, int(line.get("pid", 0)), process=spawned.process)


def _agent_listens(location: Location) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            connect_unix(sock, f"{location.run_dir}/{AGENT_SOCKET}")
        except OSError:
            return False
    return True


def await_running(location: Location, timeout_s: float) -> bool:
    """Wait until a pool's API answers; False when its supervisor has gone.

    Raises ``GpupoolError`` (POOL_START_FAILED) when a process of it keeps dying or the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while not healthy(location):
        record = read_record(location.state_dir)
        if record is None or not record.alive:
            return False
        _refuse_crash_loop(location, record)
        if time.monotonic() >= deadline:
            raise unanswered(location, timeout_s)
        time.sleep(_POLL_S)
    return True


def unanswered(location: Location, waited_s: float) -> GpupoolError:
    """The error of a pool that runs but does not answer."""
    return _failed(f"it does not answer after {waited_s:.0f} s", location, "control-plane")


def _refuse_crash_loop(location: Location, record: PoolRecord) -> bool:
    """Whether all processes run; raises for one that keeps dying, unless somebody else kills it: that may stop."""
    state = read_state(location)
    if state.get("pid") != record.supervisor.pid:
        return False
    for child in state["children"]:
        if child["last_exit"] == _REFUSED:
            _refuse_what_is_hopeless(location, child["name"])
        if child["state"] == ChildState.CRASH_LOOP and child["last_exit"] != KILLED:
            raise _failed(f"its {child['name']} keeps ending ({child['last_exit']})", location, child["name"])
    return all(child["state"] == ChildState.RUNNING for child in state["children"])


def _refuse_what_is_hopeless(location: Location, process: str) -> None:
    """Raise what a process said when it refused to begin, where saying it again would only take time."""
    said = list(_REFUSAL.finditer(tail(log_path(location.state_dir, process))))
    if said and said[-1]["code"] in _HOPELESS:
        raise GpupoolError(
            ErrorCode(said[-1]["code"]), said[-1]["message"], said[-1]["hint"] or "See 'gpupool doctor'."
        )


def certificate_fingerprint(config: PoolConfig) -> str | None:
    """SHA-256 of the pool's certificate in hex; None when it cannot be read."""
    path = Path(config.tls_cert) if config.tls_cert else Path(config.state_dir) / "tls" / "cert.pem"
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first_certificate(path.read_text("ascii")))).hexdigest()
    except (OSError, ValueError):
        return None


def _await_node(location: Location) -> dict[str, Any]:
    """What the pool says of itself once its node has reported, or after a while (a slow driver is no failure)."""
    began = time.monotonic()
    deadline = began + NODE_TIMEOUT_S
    while True:
        state = health(location)
        if state.get("status") == WAITING and time.monotonic() >= began + TURN_TIMEOUT_S:
            return {"version": state.get("version"), "warnings": [f"{state.get('message')} {state.get('hint')}"]}
        pool = _quietly(location, "/v1/pool")
        record = read_record(location.state_dir)
        steady = record is not None and _refuse_crash_loop(location, record)
        if (steady and pool.get("nodes_up")) or time.monotonic() >= deadline:
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


def _first_word(spawned: Spawned, timeout_s: float) -> dict[str, Any]:
    """What a supervisor says once it runs; raises the error that it says instead."""
    try:
        line = _ready_line(spawned.ready_fd, timeout_s)
    finally:
        os.close(spawned.ready_fd)
    if "error" in line:
        raise GpupoolError.from_dict(line["error"])
    return line


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
    except (OSError, http.client.HTTPException, GpupoolError):
        return {}


def _end_supervisor(state_dir: str) -> None:
    record = read_record(state_dir)
    if record and record.alive:
        record.supervisor.send(signal.SIGTERM)
        record.supervisor.wait_gone(_END_TIMEOUT_S)


def _failed(why: str, location: Location, process: str) -> GpupoolError:
    log = log_path(location.state_dir, process)
    lines = tail(log)
    quoted = f"The last lines of {log}:\n{lines}\n" if lines else f"Its log is {log}.\n"
    return GpupoolError(
        ErrorCode.POOL_START_FAILED, f"The pool did not start: {why}.", f"{quoted}'gpupool doctor' looks for the cause."
    )
