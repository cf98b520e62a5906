"""Starting a pool, and finding out about one; importing this is cheap, starting imports the rest."""

from __future__ import annotations

import os
import signal
import time

from gpupool.client.locate import SYSTEM, Location, Remote, connect_unix, find_pool, place_for_new_pool
from gpupool.domain.errors import ErrorCode, GpupoolError

TYPE_CHECKING = False  # typing costs milliseconds that ``gpupool run`` has not got
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.ready import StartResult

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
LOCK_TIMEOUT_S = 60.0


def ensure_pool(announce: Callable[[str], None] | None = None) -> Location:
    """The pool of this user on this machine, answering; started in the background when there is none.

    Safe when many call it at once: one starts, the others wait. ``announce`` gets one line when this call started it.
    Raises ``GpupoolError`` (POOL_UNREACHABLE, POOL_START_FAILED).
    """
    location = find_pool() or place_for_new_pool()
    if isinstance(location, Remote):
        raise GpupoolError(ErrorCode.POOL_UNREACHABLE, f"The pool at {location.url} does not answer.", "Ask its admin.")
    if _connects(location):
        return location
    refuse_node(location)
    if location.kind == SYSTEM and os.geteuid() != 0:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            "This machine's pool does not answer.",
            "Ask its administrator to start it ('systemctl start gpupool' or 'gpupool up' as root).",
        )
    _start_or_join(location, announce)
    return location


def start(config: PoolConfig, *, background: bool = True, timeout_s: float = START_TIMEOUT_S) -> StartResult:
    """Start a pool with these options (they are kept for later starts) and wait until its API answers.

    Raises ``GpupoolError``: POOL_ALREADY_RUNNING, POOL_START_FAILED (nothing of it is left running then).
    """
    from pathlib import Path

    from gpupool.daemon.folders import START_LOCK, folder_error, prepare_folders
    from gpupool.daemon.processes import waiting_for_lock
    from gpupool.daemon.record import already_running, read_record

    prepare_folders(config)
    state = Path(config.state_dir)
    try:
        with waiting_for_lock(state / START_LOCK, LOCK_TIMEOUT_S) as ours:
            record = read_record(config.state_dir)
            if not ours or (record and record.alive):
                raise already_running(config.state_dir)
            return _start_locked(config, background=background, timeout_s=timeout_s)
    except OSError as error:
        raise folder_error(state, error) from error


def stop(location: Location, *, stop_jobs: bool = False, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """Stop the pool at a place; whether one was running. Jobs run on unless they are to be stopped first.

    Raises ``GpupoolError``: FORBIDDEN (somebody else's pool), WRONG_STATE (jobs or the pool did not stop in time).
    """
    from gpupool.daemon.record import read_record

    try:
        record = read_record(location.state_dir)
        if record is None or not record.alive:
            return False
        if stop_jobs:
            refuse_node(location)
            from gpupool.daemon.drain import stop_all_jobs

            stop_all_jobs(location, timeout_s)
        record.supervisor.send(signal.SIGTERM)
    except PermissionError as error:
        raise GpupoolError(
            ErrorCode.FORBIDDEN, "Only its owner may stop this pool.", "Ask the administrator of this machine."
        ) from error
    if not record.supervisor.wait_gone(timeout_s):
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"The pool did not stop within {timeout_s:.0f} s (pid {record.supervisor.pid}).",
            "Try again, or look into its logs with 'gpupool doctor'.",
        )
    return True


def pool_status(location: Location) -> dict[str, Any]:
    """How the processes of a pool are: ``{"running", "answering", "pid", "uptime_s", "children": […], …}``.

    ``children`` have ``name``, ``state`` (running, waiting, crash_loop), ``pid``, ``restarts``, ``started_at``,
    ``last_exit`` and ``log``. Anybody who may use the pool may ask.
    """
    from gpupool.daemon.ask import healthy
    from gpupool.daemon.processes import ProcessIdentity
    from gpupool.daemon.record import read_state

    state = read_state(location)
    supervisor = ProcessIdentity.from_dict(state)
    running = supervisor is not None and supervisor.alive
    uptime_s = max(0.0, time.time() - state.get("started_at", 0.0)) if running else None
    return {
        **state,
        "pid": state.get("pid") if running else None,
        "children": state.get("children", []) if running else [],
        "running": running,
        "answering": healthy(location),
        "uptime_s": uptime_s,
        "state_dir": location.state_dir,
        "run_dir": location.run_dir,
        "kind": location.kind,
    }


def wait_foreground(result: StartResult) -> int:
    """Stay until a foreground pool ends, passing SIGINT, SIGTERM and SIGHUP on as SIGTERM; its exit status."""
    process = result.process
    if process is None:
        return 0

    def end(_signum: int, _frame: object) -> None:
        process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    return process.wait()


def refuse_node(location: Location) -> None:
    """Raise POOL_UNREACHABLE where this machine is a node of a cluster: the pool is on its head."""
    import contextlib

    from gpupool.daemon.config import Role, read_config
    from gpupool.daemon.record import read_state

    known = read_state(location)  # for everybody to read, while the machine is up
    if not known:
        with contextlib.suppress(GpupoolError):
            known = read_config(location.state_dir) or {}
    if known.get("role") == Role.NODE:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"This machine is a node of the pool at {known.get('head_url')}.",
            "Run this on the head, or use the pool from here over the network: see 'gpupool login --help'.",
        )


def _connects(location: Location) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(2.0)
        try:
            connect_unix(sock, location.api_socket)
        except OSError:
            return False
    return True


def _start_or_join(location: Location, announce: Callable[[str], None] | None) -> None:
    from gpupool.daemon.ask import healthy
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.ready import await_running, unanswered

    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while not healthy(location):
        if time.monotonic() >= deadline:
            raise unanswered(location, LOCK_TIMEOUT_S)
        try:
            result = start(PoolConfig.for_location(location))
        except GpupoolError as error:
            if error.code is not ErrorCode.POOL_ALREADY_RUNNING:
                raise
            await_running(location, START_TIMEOUT_S)  # its control plane is being restarted
        else:
            if announce:
                announce(f"Started a pool: {result.gpus_text}. 'gpupool status' shows it, 'gpupool down' stops it.")
            return


def _start_locked(config: PoolConfig, *, background: bool, timeout_s: float) -> StartResult:
    from gpupool.daemon.config import Role, save_config
    from gpupool.daemon.ready import await_node_start, await_start
    from gpupool.daemon.spawn import spawn_supervisor

    if config.role is Role.HEAD:
        from gpupool.daemon.cluster import establish
        from gpupool.node.inventory.host import clean_node_name

        establish(config, clean_node_name(config.node_name or os.uname().nodename))
    save_config(config)
    started = spawn_supervisor(config, background=background)
    wait = await_node_start if config.role is Role.NODE else await_start
    return wait(config, started, timeout_s)
