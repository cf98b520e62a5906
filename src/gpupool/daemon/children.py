"""The supervisor's children: what they are, and one of them through its lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from enum import StrEnum
from typing import Any

from gpupool.daemon.backoff import HEALTHY_LIFE_S, Backoff
from gpupool.daemon.cluster import bridge_arguments, ray_arguments
from gpupool.daemon.config import PoolConfig, PoolKind, Role
from gpupool.daemon.folders import NODE_DIR, log_path
from gpupool.daemon.logs import bound_log, open_log
from gpupool.daemon.processes import ProcessIdentity, die_with_parent
from gpupool.node.inventory.host import clean_node_name

# Neither the caller's PYTHON* variables nor the current folder may change what the pool's own processes import;
# -I would do that too, but hides packages installed with `pip install --user`.
PYTHON_FLAGS = ("-E", "-P")
KILLED = f"killed by signal {signal.SIGKILL.value}"  # a child's last exit when somebody, or the kernel, ended it


class ChildName(StrEnum):
    """The processes a supervisor keeps running, in the order in which they are started."""

    AGENT = "agent"
    RAY = "ray"  # of a cluster
    BRIDGE = "bridge"  # on its head
    CONTROL_PLANE = "control-plane"


CHILDREN = {
    Role.ALONE: (ChildName.AGENT, ChildName.CONTROL_PLANE),
    Role.HEAD: (ChildName.AGENT, ChildName.RAY, ChildName.BRIDGE, ChildName.CONTROL_PLANE),
    Role.NODE: (ChildName.AGENT, ChildName.RAY),
}


class ChildState(StrEnum):
    """Where a child stands."""

    RUNNING = "running"
    WAITING = "waiting"  # died; starts again in a moment
    CRASH_LOOP = "crash_loop"  # has died again and again and not yet lived for long


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs one of the pool's own programs."""
    return (sys.executable, *PYTHON_FLAGS, "-m", module, *arguments)


def child_command(config: PoolConfig, name: ChildName) -> tuple[str, ...]:
    """The command of a child; ``config.commands`` wins."""
    if name in config.commands:
        return config.commands[name]
    if name is ChildName.CONTROL_PLANE:
        return python_module("gpupool.daemon.control_plane", "--state-dir", config.state_dir)
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

    @property
    def due(self) -> float | None:
        """When to start it again; None while it runs."""
        return self._due

    def start(self) -> None:
        """Start it; a command that cannot be started counts as a death."""
        self._due = None
        self._born, self.started_at = time.monotonic(), time.time()
        bound_log(self._log)
        try:
            self._process = self._spawn()
        except OSError as error:
            self._died(f"could not be started: {error}")
        else:
            self.identity = ProcessIdentity.of(self._process.pid)

    def reap(self) -> bool:
        """Notice a death and plan the next start; whether there was one."""
        status = self._process.poll() if self._process else None
        if status is None:
            return False
        self._died(f"killed by signal {-status}" if status < 0 else f"exit status {status}")
        return True

    def start_if_due(self) -> bool:
        """Start it again when its time has come; whether it was tried."""
        if self._due is None or time.monotonic() < self._due:
            return False
        self.restarts += 1
        self.start()
        return True

    def bound_log(self) -> None:
        """Keep its log within the limit."""
        bound_log(self._log)

    def end(self, grace_s: float) -> None:
        """Ask it to end, and kill it after a while."""
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
        """Where it stands now."""
        settled = self._process is not None and time.monotonic() - self._born >= HEALTHY_LIFE_S
        if self._backoff.looping and not settled:
            return ChildState.CRASH_LOOP
        return ChildState.RUNNING if self._process else ChildState.WAITING

    def to_dict(self) -> dict[str, Any]:
        """What ``state.json`` says of it."""
        return {
            "name": str(self.name),
            "state": str(self.state),
            "pid": self.identity.pid if self.identity else None,
            "start_ticks": self.identity.start_ticks if self.identity else None,
            "started_at": self.started_at,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
            "log": str(self._log),
        }

    def _died(self, how: str) -> None:
        now = time.monotonic()
        self._process, self.identity, self.last_exit = None, None, how
        self._backoff = self._backoff.after_death(now - self._born)
        self._due = now + self._backoff.delay_s

    def _spawn(self) -> subprocess.Popen[bytes]:
        log, parent = open_log(self._log), os.getpid()

        def prepare() -> None:
            die_with_parent(signal.SIGTERM, parent)
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
