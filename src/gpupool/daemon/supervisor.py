"""The program that keeps a pool's processes running: ``python -m gpupool.daemon.supervisor --state-dir …``.

Small on purpose (standard library, one thread, a few megabytes): the less it does, the less can go wrong with it.
Killed outright it takes the agent and the control plane with it (they get SIGTERM from the kernel); the shepherds and
their jobs live on, and whoever needs the pool next starts it again and it adopts them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpupool.client.locate import API_SOCKET, STATE_FILE
from gpupool.daemon.children import CHILDREN, Child
from gpupool.daemon.cluster import lead_path
from gpupool.daemon.config import PoolConfig, PoolKind, load_config, write_atomically
from gpupool.daemon.folders import CHILD_LOCKS, POOL_LOCK, folder_error, log_path, prepare_folders
from gpupool.daemon.logs import bound_log
from gpupool.daemon.processes import die_with_parent, is_locked
from gpupool.daemon.record import PoolRecord, already_running, this_process, write_record
from gpupool.domain.errors import GpupoolError
from gpupool.node.locks import take as take_lock

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
KEPT_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}  # Python's own choice
ENDING = (signal.SIGTERM, signal.SIGINT)
TICK_S = 5.0
END_GRACE_S = 10.0
LEFTOVER_GRACE_S = 5.0
LOCK_TEST_S = 0.3
STATE_FILE_MODE = {PoolKind.USER: 0o600, PoolKind.SYSTEM: 0o644}


class Supervisor:
    """Starts the children, starts them again when they die, and ends them when told to."""

    def __init__(self, config: PoolConfig, lock_fd: int) -> None:
        self._config = config
        self._lock_fd = lock_fd
        self._started_at = time.time()
        self._children = [Child(config, name) for name in CHILDREN[config.role]]
        self._shown: list[Any] = []

    def start(self) -> None:
        """Start all children and tell the world."""
        with suppress(OSError):
            lead_path(self._config).unlink(missing_ok=True)  # what an earlier control plane said
        for child in self._children:
            child.start()
            _say(f"started {child.name}")
        self._show()

    def run(self) -> None:
        """Keep the children running until SIGTERM or SIGINT, which must be blocked; then end them."""
        while True:
            received = signal.sigtimedwait(HANDLED, self._patience())
            if received is not None and received.si_signo in ENDING:
                break
            self._look_after()
        _say("stopping; jobs run on")
        self._end()

    def _look_after(self) -> None:
        for child in self._children:
            if child.reap():
                _say(f"{child.name} ended ({child.last_exit}); state {child.state}")
            if child.start_if_due():
                _say(f"started {child.name} again")
            child.bound_log()
        bound_log(log_path(self._config.state_dir, "supervisor"))
        self._show()

    def _patience(self) -> float:
        due = [child.due for child in self._children if child.due is not None]
        return max(0.0, min([TICK_S, *(at - time.monotonic() for at in due)]))

    def _end(self) -> None:
        for child in reversed(self._children):  # the control plane first: it still talks to the agent
            child.end(END_GRACE_S)
        for name in (API_SOCKET, STATE_FILE):
            with suppress(OSError):
                (Path(self._config.run_dir) / name).unlink(missing_ok=True)
        _say("stopped")

    def _show(self) -> None:
        children = [child.to_dict() for child in self._children]
        if children == self._shown:
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
        path = Path(self._config.run_dir) / STATE_FILE
        identities = tuple(child.identity for child in self._children if child.identity)
        try:
            write_atomically(path, json.dumps(state), STATE_FILE_MODE[self._config.kind])
            write_record(self._lock_fd, PoolRecord(me, os.uname().nodename, identities))
        except OSError as error:
            _say(f"cannot write {path}: {error}")
        else:
            self._shown = children


def take_pool(config: PoolConfig) -> int:
    """Become the one supervisor of a state folder; returns the descriptor that holds the lock.

    Children that a killed supervisor left are waited for, then killed. Raises ``GpupoolError`` (POOL_ALREADY_RUNNING,
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
    """The lock, or None when a supervisor has it: whoever merely tests it holds it for an instant too."""
    deadline = time.monotonic() + LOCK_TEST_S
    fd = take_lock(path)
    while fd is None and time.monotonic() < deadline:
        time.sleep(LOCK_TEST_S / 20)
        fd = take_lock(path)
    return fd


def clear_leftovers(state_dir: str, lock_fd: int, grace_s: float = LEFTOVER_GRACE_S) -> None:
    """Wait until no child of an earlier supervisor is left; kill those that do not go in time."""
    record = PoolRecord.read(lock_fd)
    leftovers = [child for child in record.children if child.alive] if record and record.here else []
    deadline = time.monotonic() + grace_s
    for child in leftovers:
        if not child.wait_gone(max(0.0, deadline - time.monotonic())):
            _say(f"killing process {child.pid}, left by an earlier supervisor")
            child.send(signal.SIGKILL)
            child.wait_gone(grace_s)
    locks = [Path(state_dir) / name for name in CHILD_LOCKS]
    while any(is_locked(lock) for lock in locks) and time.monotonic() < deadline:
        time.sleep(0.02)


def hold_signals() -> None:
    """Hold the handled signals for waiting, and undo what the starting shell had ignored (jobs would inherit it)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    for number in signal.valid_signals() - KEPT_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> int:
    """Run a supervisor; ``--ready-fd`` gets one JSON line: the pid, or the error."""
    arguments = _parse(argv)
    if arguments.detach and os.fork():
        os._exit(0)  # what goes on is no session leader, so no terminal can become its own
    if arguments.parent:
        die_with_parent(signal.SIGTERM, arguments.parent)
    os.umask(0o077)
    os.chdir("/")
    hold_signals()
    try:
        config = load_config(arguments.state_dir)
        supervisor = Supervisor(config, take_pool(config))
    except GpupoolError as error:
        _say(str(error))
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


def _say(text: str) -> None:
    with suppress(OSError):
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), text, file=sys.stderr, flush=True)  # noqa: T201 - its log


if __name__ == "__main__":
    raise SystemExit(main())
