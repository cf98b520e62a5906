"""The supervisor's children: their commands, and one child with its restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpupool.daemon.config import MachineRole, PoolConfig, PoolKind
from gpupool.daemon.folders import NODE_DIR, log_path
from gpupool.daemon.machine import bridge_arguments, gateway_arguments, ray_arguments
from gpupool.daemon.process.identity import ProcessIdentity, die_with_parent
from gpupool.daemon.process.logs import bound_log, log_size, open_log
from gpupool.node.host.priority import protect_session
from gpupool.node.inventory.host import clean_node_name

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 5.0
HEALTHY_LIFE_S = 30.0
LOOPING_AFTER = 5
# Neither the caller's PYTHON* variables nor the current folder may change what the pool's own processes import;
# -I would do that too, but hides packages installed with `pip install --user`.
PYTHON_FLAGS = ("-E", "-P")
KILLED = f"killed by signal {signal.SIGKILL.value}"  # a child's last exit after a kill by a person or the kernel


@dataclass(frozen=True, slots=True)
class Backoff:
    """The number of deaths in a row without a life of ``HEALTHY_LIFE_S``; it sets the delay of the next start. Pure."""

    quick_deaths: int = 0

    def after_death(self, lived_s: float) -> Backoff:
        """Return the state after one more death; a long life before it resets the count."""
        return Backoff(1 if lived_s >= HEALTHY_LIFE_S else self.quick_deaths + 1)

    @property
    def delay_s(self) -> float:
        """Return the delay before the next start: 50 ms, doubling, at most 5 s; 0 before the first death."""
        if not self.quick_deaths:
            return 0.0
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self.quick_deaths - 1, 10))

    @property
    def looping(self) -> bool:
        """Return whether restarts have not helped so far."""
        return self.quick_deaths >= LOOPING_AFTER


class ChildName(StrEnum):
    """The processes that a supervisor keeps running, in start order."""

    AGENT = "agent"
    RAY = "ray"  # of a cluster
    BRIDGE = "bridge"  # on its head
    CONTROL_PLANE = "control-plane"
    GATEWAY = "gateway"  # of a pool with services


CHILDREN = {
    MachineRole.ALONE: (ChildName.AGENT, ChildName.CONTROL_PLANE),
    MachineRole.HEAD: (ChildName.AGENT, ChildName.RAY, ChildName.BRIDGE, ChildName.CONTROL_PLANE),
    MachineRole.NODE: (ChildName.AGENT, ChildName.RAY),
}


class ChildState(StrEnum):
    """The state of a child."""

    RUNNING = "running"
    WAITING = "waiting"  # died; starts again in a moment
    CRASH_LOOP = "crash_loop"  # died repeatedly without living for long


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of one of the pool's own programs."""
    return (sys.executable, *PYTHON_FLAGS, "-m", module, *arguments)


def child_command(config: PoolConfig, name: ChildName) -> tuple[str, ...]:
    """Return the command of a child; ``config.commands`` overrides it."""
    if name in config.commands:
        return config.commands[name]
    if name is ChildName.CONTROL_PLANE:
        return python_module("gpupool.daemon.control_plane_main", "--state-dir", config.state_dir)
    if name is ChildName.GATEWAY:
        return python_module("gpupool.gateway.main", *gateway_arguments(config))
    name_of_node = config.node_name or os.uname().nodename
    if name is ChildName.RAY:
        return python_module("gpupool.fabric.ray.node_process", *ray_arguments(config, clean_node_name(name_of_node)))
    if name is ChildName.BRIDGE:
        return python_module("gpupool.fabric.ray.bridge", *bridge_arguments(config, clean_node_name(name_of_node)))
    options = ["--state", f"{config.state_dir}/{NODE_DIR}", "--run", config.run_dir, "--name", name_of_node]
    if config.emulate is not None:
        options += ["--emulate", config.emulate]
    if config.kind is PoolKind.SYSTEM:
        options.append("--shared")
    if config.cluster_address is not None:
        options += ["--address", config.cluster_address]
    return python_module("gpupool.node.agent_main", *options)


class Child:
    """One child: started, found dead, started again later, ended. Times are monotonic unless said otherwise."""

    def __init__(self, config: PoolConfig, name: ChildName) -> None:
        self.name = name
        self.restarts = 0
        self.last_exit = ""
        self.started_at = 0.0  # seconds since the epoch
        self.identity: ProcessIdentity | None = None
        self._command = child_command(config, name)
        self._log = log_path(config.state_dir, name)
        self._process: subprocess.Popen[bytes] | None = None
        self._born = 0.0
        self._backoff = Backoff()
        self._due: float | None = None
        self._log_from: int | None = None  # where its present start attempts begin in the log

    @property
    def due(self) -> float | None:
        """Return when to start it again; None while it runs."""
        return self._due

    def start(self) -> None:
        """Start it; a command that cannot be started counts as a death."""
        self._due = None
        self._born, self.started_at = time.monotonic(), time.time()
        bound_log(self._log)
        if self._log_from is None:
            self._log_from = log_size(self._log)
        try:
            self._process = self._spawn()
        except OSError as error:
            self._died(f"could not be started: {error}")
        else:
            self.identity = ProcessIdentity.of(self._process.pid)

    def reap(self) -> bool:
        """Notice a death and plan the next start; return whether there was one."""
        status = self._process.poll() if self._process else None
        if status is None:
            return False
        self._died(f"killed by signal {-status}" if status < 0 else f"exit status {status}")
        return True

    def start_if_due(self) -> bool:
        """Start it again if it is time; return whether it was tried."""
        if self._due is None or time.monotonic() < self._due:
            return False
        self.restarts += 1
        self.start()
        return True

    def bound_log(self) -> None:
        """Keep its log within the size limit."""
        bound_log(self._log)

    def end(self, grace_s: float) -> None:
        """Ask it to end, and kill it after the grace period."""
        self._due = None
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process, self.identity = None, None

    @property
    def state(self) -> ChildState:
        """Return its present state."""
        settled = self._process is not None and time.monotonic() - self._born >= HEALTHY_LIFE_S
        if self._backoff.looping and not settled:
            return ChildState.CRASH_LOOP
        return ChildState.RUNNING if self._process else ChildState.WAITING

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in ``state.json``."""
        return {
            "name": str(self.name),
            "state": str(self.state),
            "pid": self.identity.pid if self.identity else None,
            "start_ticks": self.identity.start_ticks if self.identity else None,
            "started_at": self.started_at,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
            "log": str(self._log),
            "log_from": self._log_from or 0,
        }

    def _died(self, how: str) -> None:
        now = time.monotonic()
        self._process, self.identity, self.last_exit = None, None, how
        if now - self._born >= HEALTHY_LIFE_S:
            self._log_from = log_size(self._log)
        self._backoff = self._backoff.after_death(now - self._born)
        self._due = now + self._backoff.delay_s

    def _spawn(self) -> subprocess.Popen[bytes]:
        log, parent = open_log(self._log), os.getpid()

        def prepare() -> None:
            die_with_parent(signal.SIGTERM, parent)
            protect_session()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())

        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - the supervisor has one thread
            )
        finally:
            os.close(log)
