"""Starting, stopping and inspecting a pool; this module is cheap to import, a start imports the rest."""

from __future__ import annotations

import os
import signal
import time

from gpupool import unix_sockets
from gpupool.client.discovery import SYSTEM, Location, Remote, find_pool, place_for_new_pool
from gpupool.domain.errors import ErrorCode, GpupoolError

TYPE_CHECKING = False  # typing costs milliseconds that ``gpupool run`` must save
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

    from gpupool.daemon.config import PoolConfig, StoredOptions
    from gpupool.daemon.pool_identity import Decision
    from gpupool.daemon.process.ready import StartResult
    from gpupool.daemon.process.spawn import Spawned

STALL_S = 60.0  # a start fails without any progress for this long
STOP_TIMEOUT_S = 30.0
LOCK_TIMEOUT_S = 60.0
START_TRIES = 5


def ensure_pool(announce: Callable[[str], None], tell: Callable[[str], None]) -> Location:
    """Return the responding pool of this user on this machine; start it in the background if there is none.

    Safe for concurrent calls: one starts the pool, the others wait. ``announce`` gets one line if this call started it,
    ``tell`` gets lines during the wait. Raises ``GpupoolError`` (POOL_UNREACHABLE, POOL_START_FAILED).
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
    _start_or_join(location, announce, tell)
    return location


def start(
    config: PoolConfig,
    tell: Callable[[str], None],
    *,
    background: bool = True,
    stall_s: float = STALL_S,
    decision: Decision | None = None,
) -> StartResult:
    """Start a pool with these options and wait until its API responds.

    The options are stored for later starts. After a start that failed and was ended, the earlier ones apply again.

    The wait has no limit as long as the pool makes progress; ``tell`` gets lines meanwhile. SIGINT, SIGTERM and SIGHUP
    end a foreground pool from now on. ``decision``: the fate of running jobs that its database does not know. Raises
    ``GpupoolError``: POOL_ALREADY_RUNNING, POOL_START_FAILED; ``KeyboardInterrupt`` if it was ended before it
    responded.
    """
    from gpupool.daemon.process.progress import StartWatch
    from gpupool.daemon.process.ready import await_start

    ended = None if background else _EndedBySignal()
    try:
        spawned, pid, earlier = _begin(config, decision, stall_s, ended)
        try:
            return await_start(config, spawned, pid, StartWatch(config.location, tell, stall_s))
        except (GpupoolError, KeyboardInterrupt) as error:
            _end_failed_start(config, pid, earlier, error, foreground=ended is not None)
            raise
    except GpupoolError:
        if ended is not None and ended.asked:
            raise KeyboardInterrupt from None
        raise


def _begin(
    config: PoolConfig, decision: Decision | None, stall_s: float, ended: _EndedBySignal | None
) -> tuple[Spawned, int, StoredOptions]:
    """Start the supervisor of a state folder; return it, its pid and the options stored before.

    With ``ended`` it runs in the foreground.
    """
    from pathlib import Path

    from gpupool.daemon.config import StoredOptions
    from gpupool.daemon.folders import START_LOCK, folder_error, prepare_folders
    from gpupool.daemon.pool_identity import decide
    from gpupool.daemon.process.identity import waiting_for_lock
    from gpupool.daemon.process.ready import await_supervisor
    from gpupool.daemon.process.record import already_running, read_record

    prepare_folders(config)
    state = Path(config.state_dir)
    try:
        with waiting_for_lock(state / START_LOCK, LOCK_TIMEOUT_S) as ours:
            record = read_record(config.state_dir)
            if not ours or (record and record.alive):
                raise already_running(config.state_dir)
            decide(config.state_dir, decision)
            earlier = StoredOptions(config.state_dir)
            try:
                spawned = _spawn_locked(config, background=ended is None)
                if ended is not None and spawned.process is not None:
                    ended.follow(spawned.process)
                return spawned, await_supervisor(config, spawned, stall_s), earlier
            except GpupoolError as error:
                if _is_final(error):
                    earlier.restore(replaced=config)
                raise
    except OSError as error:
        raise folder_error(state, error) from error


def _end_failed_start(
    config: PoolConfig, pid: int, earlier: StoredOptions, error: BaseException, *, foreground: bool
) -> None:
    """End the pool of a start that failed and restore the earlier options before another start may begin.

    A pool in the background that merely makes no progress continues: the cause may be temporary, and others may wait
    for it. In the foreground it ends with its starter.
    """
    import contextlib
    from pathlib import Path

    from gpupool.daemon.folders import START_LOCK
    from gpupool.daemon.process.identity import waiting_for_lock
    from gpupool.daemon.process.progress import StalledError
    from gpupool.daemon.process.ready import end_supervisor
    from gpupool.daemon.process.record import read_record

    if not foreground and isinstance(error, (StalledError, KeyboardInterrupt)):
        return
    with contextlib.suppress(OSError), waiting_for_lock(Path(config.state_dir) / START_LOCK, LOCK_TIMEOUT_S) as ours:
        end_supervisor(config.state_dir, pid)
        record = read_record(config.state_dir)
        if ours and _is_final(error) and not (record and record.alive):
            earlier.restore(replaced=config)


def _is_final(error: BaseException) -> bool:
    """Return whether a start failed because of its options: another start with them would fail, too."""
    from gpupool.daemon.process.progress import StalledError, SupervisorKilledError

    return isinstance(error, GpupoolError) and not isinstance(error, (StalledError, SupervisorKilledError))


def stop(
    location: Location, *, stop_jobs: Callable[[str], None] | None = None, timeout_s: float = STOP_TIMEOUT_S
) -> bool:
    """Stop the pool at a place; return whether one was running. Jobs continue unless ``stop_jobs`` is given.

    ``stop_jobs``: stop all jobs first; it gets progress lines. Raises ``GpupoolError``: FORBIDDEN (another user's
    pool), WRONG_STATE (jobs or the pool did not stop in time).
    """
    from gpupool.daemon.process.record import read_record

    try:
        record = read_record(location.state_dir)
        if record is None or not record.alive:
            return False
        if stop_jobs is not None:
            refuse_node(location)
            from gpupool.daemon.local_api import stop_all_jobs

            stop_all_jobs(location, timeout_s, stop_jobs)
        record.supervisor.send(signal.SIGTERM)
    except PermissionError as error:
        raise GpupoolError(
            ErrorCode.FORBIDDEN, "Only its owner may stop this pool.", "Ask the administrator of this machine."
        ) from error
    if not record.supervisor.wait_gone(timeout_s):
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"The pool did not stop within {timeout_s:.0f} s (pid {record.supervisor.pid}).",
            "Try again, or check its logs with 'gpupool doctor'.",
        )
    return True


def pool_status(location: Location) -> dict[str, Any]:
    """Return the state of a pool's processes: ``{"running", "answering", "pid", "uptime_s", "children": […], …}``.

    ``children`` have ``name``, ``state`` (running, waiting, crash_loop), ``pid``, ``restarts``, ``started_at``,
    ``last_exit`` and ``log``; the control plane has its ``phase``. All users of the pool may ask.
    """
    from gpupool.daemon.local_api import healthy
    from gpupool.daemon.process.identity import ProcessIdentity
    from gpupool.daemon.process.record import read_state

    state = read_state(location)
    supervisor = ProcessIdentity.from_dict(state)
    running = supervisor is not None and supervisor.alive
    uptime_s = max(0.0, time.time() - state.get("started_at", 0.0)) if running else None
    return {
        **state,
        "pid": state.get("pid") if running else None,
        "children": [_with_phase(child, location) for child in state.get("children", [])] if running else [],
        "running": running,
        "answering": healthy(location),
        "uptime_s": uptime_s,
        "state_dir": location.state_dir,
        "run_dir": location.run_dir,
        "kind": location.kind,
    }


def _with_phase(child: dict[str, Any], location: Location) -> dict[str, Any]:
    from gpupool.daemon.process.phases import CONTROL_PLANE, read_phase

    if child["name"] != CONTROL_PLANE or child["pid"] is None:
        return child
    return {**child, "phase": str(read_phase(location.run_dir, child["pid"]))}


def wait_foreground(result: StartResult) -> int:
    """Wait until a foreground pool ends (by SIGINT, SIGTERM or SIGHUP); return its exit status."""
    return 0 if result.process is None else result.process.wait()


class _EndedBySignal:
    """Forwards SIGINT, SIGTERM and SIGHUP to a foreground supervisor as SIGTERM; ``asked`` if one came."""

    def __init__(self) -> None:
        self.asked = False
        self._process: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        """Forward signals to this supervisor; end it now if one came before."""
        self._process = process
        if self.asked:
            process.terminate()

    def _end(self, _signum: int, _frame: object) -> None:
        self.asked = True
        if self._process is not None:
            self._process.terminate()


def refuse_node(location: Location) -> None:
    """Raise POOL_UNREACHABLE if this machine is a node of a cluster: the pool is on its head."""
    import contextlib

    from gpupool.daemon.config import MachineRole, read_config
    from gpupool.daemon.process.record import read_state

    known = read_state(location)  # readable by everybody while the machine is up
    if not known:
        with contextlib.suppress(GpupoolError):
            known = read_config(location.state_dir) or {}
    if known.get("role") == MachineRole.NODE:
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
            unix_sockets.connect(sock, location.api_socket)
        except OSError:
            return False
    return True


def _start_or_join(location: Location, announce: Callable[[str], None], tell: Callable[[str], None]) -> None:
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.local_api import healthy
    from gpupool.daemon.process.progress import StartWatch, SupervisorKilledError
    from gpupool.daemon.process.ready import await_answer

    tries = 0
    while not healthy(location):
        tries += 1
        try:
            result = start(PoolConfig.for_location(location), tell)
        except SupervisorKilledError:
            if tries >= START_TRIES:
                raise
            tell("the pool's supervisor was killed while it started; starting it again")
        except GpupoolError as error:
            if error.code is not ErrorCode.POOL_ALREADY_RUNNING or tries >= START_TRIES:
                raise
            await_answer(
                location, StartWatch(location, tell, STALL_S)
            )  # another process starts it, or its control plane
        else:
            announce(f"Started a pool: {result.gpus_text}. 'gpupool status' shows it, 'gpupool down' stops it.")
            return


def _spawn_locked(config: PoolConfig, *, background: bool) -> Spawned:
    from gpupool.daemon.config import MachineRole, save_config
    from gpupool.daemon.machine import refuse_removed
    from gpupool.daemon.process.spawn import spawn_supervisor

    if config.role is not MachineRole.ALONE:
        refuse_removed(config)
    if config.role is MachineRole.HEAD:
        from gpupool.daemon.machine import establish
        from gpupool.node.inventory.host import clean_node_name

        establish(config, clean_node_name(config.node_name or os.uname().nodename))
    save_config(config)
    return spawn_supervisor(config, background=background)
