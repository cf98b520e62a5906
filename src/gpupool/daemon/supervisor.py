"""The program that keeps a pool's processes running: ``python -m gpupool.daemon.supervisor --state-dir …``.

Small on purpose (standard library, one thread, a few megabytes): the less it does, the less can fail. If it is killed,
the agent and the control plane end with it (the kernel sends them SIGTERM). The shepherds and their jobs continue; the
next command that needs the pool starts it again, and it adopts them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpupool.client.discovery import API_SOCKET, STATE_FILE
from gpupool.daemon.config import MachineRole, PoolConfig, PoolKind, load_config, write_atomically
from gpupool.daemon.folders import CHILD_LOCKS, POOL_LOCK, folder_error, log_path, prepare_folders
from gpupool.daemon.machine import AGENT_SOCKET, lead_path
from gpupool.daemon.process.children import CHILDREN, Child, ChildName
from gpupool.daemon.process.gateway_switch import gateway_wanted
from gpupool.daemon.process.identity import ProcessIdentity, die_with_parent, is_locked
from gpupool.daemon.process.logs import bound_log
from gpupool.daemon.process.phases import PHASE_FILE
from gpupool.daemon.process.record import PoolRecord, already_running, read_record, this_process, write_record
from gpupool.domain.errors import GpupoolError
from gpupool.domain.protocol.gateway_table import GATEWAY_SOCKET
from gpupool.node.host.cgroups import enter_pool_group
from gpupool.node.host.locks import take as take_lock
from gpupool.node.host.priority import protect

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
IGNORED_SIGNALS = {signal.SIGPIPE, signal.SIGXFSZ}  # Python's default
ENDING = (signal.SIGTERM, signal.SIGINT)
TICK_S = 5.0
STARTING_TICK_S = 0.5  # until every child has its socket: one deleted before it was seen would never be missed
END_GRACE_S = 10.0
LEFTOVER_GRACE_S = 5.0
LOCK_TEST_S = 0.3
LOCK_TIMEOUT_S = 10.0
STATE_FILE_MODE = {PoolKind.USER: 0o600, PoolKind.SYSTEM: 0o644}
MISSING_S = 3.0  # a control plane that begins to lead binds its socket again
_SOCKETS = {
    ChildName.AGENT: AGENT_SOCKET,
    ChildName.CONTROL_PLANE: API_SOCKET,
    ChildName.GATEWAY: GATEWAY_SOCKET,
}


class PoolSupervisor:
    """Starts the children, restarts them when they die, and ends them on a signal."""

    def __init__(self, config: PoolConfig, lock_fd: int) -> None:
        self._config = config
        self._lock_fd = lock_fd
        self._started_at = time.time()
        self._children = [Child(config, name) for name in CHILDREN[config.role]]
        self._gateway: Child | None = None  # also among the children
        self._shown: list[Any] = []
        self._sockets = Sockets(Path(config.run_dir))

    def start(self) -> None:
        """Start all children and write the state file."""
        with suppress(OSError):
            lead_path(self._config).unlink(missing_ok=True)  # written by an earlier control plane
        for child in self._children:
            child.start()
            _log(f"started {child.name}")
        self._switch_gateway()
        self._show()

    def run(self) -> None:
        """Keep the children running until SIGTERM or SIGINT, which must be blocked; then end them."""
        while True:
            received = signal.sigtimedwait(HANDLED, self._wait_s())
            if received is not None and received.si_signo in ENDING:
                break
            self._check_children()
        _log("stopping; jobs continue")
        self._end()

    def _check_children(self) -> None:
        for child in self._children:
            if child.reap():
                _log(f"{child.name} ended ({child.last_exit}); state {child.state}")
            if child.start_if_due():
                _log(f"started {child.name} again")
            child.bound_log()
        self._switch_gateway()
        bound_log(log_path(self._config.state_dir, "supervisor"))
        self._restore_run_folder()
        self._show()

    def _switch_gateway(self) -> None:
        """Start or end the gateway as the control plane wants it."""
        wanted = self._config.role is not MachineRole.NODE and gateway_wanted(self._config.state_dir)
        if wanted and self._gateway is None:
            self._gateway = Child(self._config, ChildName.GATEWAY)
            self._gateway.start()
            self._children.append(self._gateway)
            _log("started gateway")
        elif not wanted and self._gateway is not None:
            self._gateway.end(END_GRACE_S)
            self._children.remove(self._gateway)
            self._gateway = None
            _log("ended gateway: the pool has no services")

    def _restore_run_folder(self) -> None:
        """Create a deleted run folder again, and restart the children without sockets: they cannot be reached."""
        lost = self._sockets.lost(self._children, time.monotonic())
        if not lost:
            return
        _log(f"the sockets of {', '.join(child.name for child in lost)} were deleted; starting them again")
        for child in reversed(lost):
            child.end(END_GRACE_S)
        try:
            prepare_folders(self._config)
        except GpupoolError as error:
            _log(str(error))
        for child in lost:
            child.start()

    def _wait_s(self) -> float:
        due = [child.due for child in self._children if child.due is not None]
        tick_s = TICK_S if self._sockets.settled(self._children) else STARTING_TICK_S
        return max(0.0, min([tick_s, *(at - time.monotonic() for at in due)]))

    def _end(self) -> None:
        for child in reversed(self._children):  # the control plane first: it still talks to the agent
            child.end(END_GRACE_S)
        for name in (API_SOCKET, STATE_FILE, PHASE_FILE):
            with suppress(OSError):
                (Path(self._config.run_dir) / name).unlink(missing_ok=True)
        _log("stopped")

    def _show(self) -> None:
        children = [child.to_dict() for child in self._children]
        path = Path(self._config.run_dir) / STATE_FILE
        if children == self._shown and path.exists():
            return
        me = this_process()
        state = {
            "pid": me.pid,
            "start_ticks": me.start_ticks,
            "started_at": self._started_at,
            "state_dir": self._config.state_dir,
            "kind": str(self._config.kind),
            "role": str(self._config.role),
            "head_url": self._config.head_url,
            "children": children,
        }
        identities = tuple(child.identity for child in self._children if child.identity)
        try:
            write_atomically(path, json.dumps(state), STATE_FILE_MODE[self._config.kind])
            write_record(self._lock_fd, PoolRecord(me, os.uname().nodename, identities))
        except OSError as error:
            _log(f"cannot write {path}: {error}")
        else:
            self._shown = children


def take_pool(config: PoolConfig) -> int:
    """Become the one supervisor of a state folder; return the descriptor that holds the lock.

    Waits for the children of a killed supervisor, then kills them. Raises ``GpupoolError`` (POOL_ALREADY_RUNNING,
    POOL_START_FAILED).
    """
    prepare_folders(config)
    path = Path(config.state_dir) / POOL_LOCK
    try:
        lock_fd = _take_pool_lock(path)
        if lock_fd is None:
            raise already_running(config.state_dir)
        clear_leftovers(config.state_dir, lock_fd)
    except OSError as error:
        raise folder_error(path.parent, error) from error
    return lock_fd


def _take_pool_lock(path: Path) -> int | None:
    """Return the lock's descriptor, or None if a supervisor has it.

    A process that merely tests the lock also holds it for a moment, which is long on a busy machine. So a lock without
    a living supervisor's record is waited for longer.
    """
    begun = time.monotonic()
    fd = take_lock(path)
    while fd is None:
        waited_s = time.monotonic() - begun
        if waited_s >= (LOCK_TEST_S if _has_owner(path) else LOCK_TIMEOUT_S):
            return None
        time.sleep(LOCK_TEST_S / 20)
        fd = take_lock(path)
    return fd


def _has_owner(path: Path) -> bool:
    record = read_record(str(path.parent))
    return record is not None and (record.alive or not record.here)


def clear_leftovers(state_dir: str, lock_fd: int, grace_s: float = LEFTOVER_GRACE_S) -> None:
    """Wait until no child of an earlier supervisor is left; kill those that do not end in time."""
    record = PoolRecord.read(lock_fd)
    leftovers = [child for child in record.children if child.alive] if record and record.here else []
    deadline = time.monotonic() + grace_s
    for child in leftovers:
        if not child.wait_gone(max(0.0, deadline - time.monotonic())):
            _log(f"killing process {child.pid}, left by an earlier supervisor")
            child.send(signal.SIGKILL)
            child.wait_gone(grace_s)
    locks = [Path(state_dir) / name for name in CHILD_LOCKS]
    while any(is_locked(lock) for lock in locks) and time.monotonic() < deadline:
        time.sleep(0.02)


def hold_signals() -> None:
    """Block the handled signals for ``sigwait``; reset those that the starting shell ignored (jobs inherit that)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    for number in signal.valid_signals() - IGNORED_SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> int:
    """Run a supervisor; ``--ready-fd`` gets one JSON line: the pid, or the error."""
    arguments = _parse(argv)
    if arguments.detach and os.fork():
        os._exit(0)  # the remaining process is no session leader, so it gets no terminal
    if arguments.parent:
        die_with_parent(signal.SIGTERM, arguments.parent)
    os.umask(0o077)
    os.chdir("/")
    protect()
    enter_pool_group()
    hold_signals()
    try:
        config = load_config(arguments.state_dir)
        supervisor = PoolSupervisor(config, take_pool(config))
    except GpupoolError as error:
        _log(str(error))
        _report(arguments.ready_fd, {"error": error.to_dict()})
        return 1
    supervisor.start()
    _report(arguments.ready_fd, {"pid": os.getpid()})
    supervisor.run()
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpupool-supervisor", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--ready-fd", type=int, default=None)
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--parent", type=int, default=None, metavar="PID")
    return parser.parse_args(argv)


def _report(fd: int | None, message: dict[str, Any]) -> None:
    if fd is None:
        return
    with suppress(OSError):
        os.write(fd, json.dumps(message).encode() + b"\n")
    os.close(fd)


def _log(text: str) -> None:
    with suppress(OSError):
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), text, file=sys.stderr, flush=True)  # noqa: T201 - its log


class Sockets:
    """Records which process has had its socket, and since when it is missing. Times are monotonic."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._bound_by: dict[ChildName, ProcessIdentity] = {}
        self._missing_since: dict[ChildName, float] = {}

    def lost(self, children: Sequence[Child], now: float) -> list[Child]:
        """Return the children to start again: those without their sockets, or all when the run folder is gone."""
        there = self._folder.is_dir()
        lost = [child for child in children if self._lost(child, now, folder=there)]
        for child in lost:
            self._missing_since.pop(child.name, None)  # its successor gets the same time
        return list(children) if lost and not there else lost

    def settled(self, children: Sequence[Child]) -> bool:
        """Return whether every process has been seen with its socket: only then a missing socket is a lost one."""
        return all(self._bound_by.get(child.name) == child.identity for child in children if child.name in _SOCKETS)

    def _lost(self, child: Child, now: float, *, folder: bool) -> bool:
        name = _SOCKETS.get(child.name)
        if name is None or child.identity is None:
            return False
        if (self._folder / name).exists():
            self._bound_by[child.name] = child.identity
            self._missing_since.pop(child.name, None)
            return False
        if folder and self._bound_by.get(child.name) != child.identity:
            return False  # it is still starting; but without the run folder, created before its start, it cannot
        return now - self._missing_since.setdefault(child.name, now) >= MISSING_S


if __name__ == "__main__":
    raise SystemExit(main())
