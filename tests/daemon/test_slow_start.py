"""A start is judged by its progress: a slow pool is never ended, a pool without progress is an error."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from standin_pool import STANDINS, StandInPool, alive, eventually, start

from gpupool.cli.fast.signals import SignalInbox
from gpupool.cli.fast.waiting import RetryingClient
from gpupool.cli.render.screens import status_lines
from gpupool.cli.render.text import Style
from gpupool.cli.transport.local import LocalTransport, await_answer
from gpupool.daemon.config import PoolConfig, save_config
from gpupool.daemon.folders import log_path, prepare_folders
from gpupool.daemon.process import launch, progress
from gpupool.daemon.process.phases import StartPhase, enter_phase, read_phase
from gpupool.daemon.process.progress import Activity, Notices, StalledError, StartProgress, StartWatch
from gpupool.domain.errors import ErrorCode, GpupoolError

STALL_S = 2.0  # in place of a minute; the slow starts below take several times as long
SLOW_S = 6.0
OLD_WORDS = "no password supplied (of an earlier run)"


def slow(pool: StandInPool, work: str, seconds: float = SLOW_S) -> PoolConfig:
    """Return the options of a pool whose control plane starts slowly."""
    own = (sys.executable, str(STANDINS / "slow_control_plane.py"), str(seconds), work)
    return pool.with_command("control-plane", *own, *pool.config.commands["control-plane"][2:])


def earlier_words(pool: StandInPool) -> None:
    """Leave lines of an earlier run in the logs."""
    prepare_folders(pool.config)
    for name in ("supervisor", "agent", "control-plane"):
        log = log_path(pool.config.state_dir, name)
        log.write_text(f"{OLD_WORDS}\n" * 3)


# -- what counts as progress -----------------------------------------------------------------------------------------


def test_process_stalls_only_without_any_activity() -> None:
    looks = [  # time, what is seen, whether it waits for a processor, and for how long nothing has moved then
        (0, "reads, 10 ticks", False, 0),
        (50, "reads, 10 ticks", False, 50),
        (59, "reads, 11 ticks", False, 0),
        (100, "reads, 11 ticks", True, 0),
        (140, "reads, 11 ticks", False, 40),
        (159, "opens, 11 ticks", False, 0),
        (400, "opens, 11 ticks", False, 241),
    ]
    progress = StartProgress(0.0)
    for now, seen, runnable, stalled_s in looks:
        assert progress.stalled_s(now, seen, runnable=runnable) == stalled_s, now


def test_activity_of_process_grows_with_its_work() -> None:
    before = Activity.of(os.getpid())
    assert before is not None

    def grown() -> bool:
        sum(range(1_000_000))
        after = Activity.of(os.getpid())
        return after is not None and after.cpu_ticks > before.cpu_ticks and after.runnable

    assert eventually(grown)
    assert Activity.of(2**22 + 1) is None


def test_phase_belongs_to_the_process_that_entered_it(tmp_path: Path) -> None:
    assert read_phase(str(tmp_path), os.getpid()) is StartPhase.LOADING
    enter_phase(str(tmp_path), StartPhase.READING)
    assert read_phase(str(tmp_path), os.getpid()) is StartPhase.READING
    assert read_phase(str(tmp_path), os.getpid() + 1) is StartPhase.LOADING
    (tmp_path / "control-plane.phase").write_text('{"pid": ')
    assert read_phase(str(tmp_path), os.getpid()) is StartPhase.LOADING


def test_progress_is_reported_after_delay_at_changes_and_periodically() -> None:
    said: list[str] = []
    notices = Notices(said.append, 100.0)
    for second in range(101, 132):
        notices.tick(second, "it loads" if second < 110 else "it reads")
    assert said == [
        "still starting (3 s): it loads",
        "still starting (10 s): it reads",
        "still starting (25 s): it reads",
    ]


# -- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["cpu", "phases"])
def test_slow_start_with_progress_is_awaited(pool: StandInPool, work: str) -> None:
    said: list[str] = []
    result = launch.start(slow(pool, work), said.append, stall_s=STALL_S)
    assert result.pid == pool.supervisor_pid
    assert len(pool.started("control-plane")) == 1
    assert said
    assert said[0].startswith("still starting (")
    assert "the control plane reads the database" in said[0] or "opens its sockets" in said[0]


def test_start_without_progress_fails_with_log_and_kills_nothing(pool: StandInPool) -> None:
    earlier_words(pool)
    with pytest.raises(StalledError, match=r"no progress for \d+ s: the control plane reads the database") as caught:
        start(slow(pool, "idle", 8), stall_s=STALL_S)
    assert caught.value.code is ErrorCode.POOL_START_FAILED
    assert "slow start begins" in caught.value.hint
    assert OLD_WORDS not in caught.value.hint
    assert "gpupool down" in caught.value.hint
    assert pool.supervisor_pid is not None
    assert launch.ensure_pool(print, print) == pool.config.location  # what held it up has passed
    assert len(pool.started("control-plane")) == 1


def test_pool_frozen_during_start_comes_up(pool: StandInPool) -> None:
    failures: list[GpupoolError] = []

    def waits() -> None:
        try:
            start(slow(pool, "cpu", 3), stall_s=STALL_S)
        except GpupoolError as error:
            failures.append(error)

    waiting = threading.Thread(target=waits)
    waiting.start()
    assert eventually(lambda: "slow start begins" in log_of(pool))
    child = launch.pool_status(pool.config.location)["children"][-1]["pid"]
    os.kill(child, signal.SIGSTOP)
    waiting.join()
    os.kill(child, signal.SIGCONT)
    assert isinstance(failures[0], StalledError)
    assert await_answer(pool.config.location) == pool.config.location
    assert len(pool.started("control-plane")) == 1


def log_of(pool: StandInPool) -> str:
    log = log_path(pool.config.state_dir, "control-plane")
    return log.read_text() if log.exists() else ""


def test_log_lines_of_earlier_runs_are_not_quoted(pool: StandInPool) -> None:
    earlier_words(pool)
    config = pool.with_command("control-plane", sys.executable, "-S", "-c", "raise SystemExit('no such engine')")
    with pytest.raises(GpupoolError, match="control-plane keeps ending") as caught:
        start(config)
    assert "no such engine" in caught.value.hint
    assert OLD_WORDS not in caught.value.hint
    assert pool.supervisor_pid is None


def test_refusal_of_earlier_run_is_ignored(pool: StandInPool) -> None:
    prepare_folders(pool.config)
    log = log_path(pool.config.state_dir, "control-plane")
    log.write_text("control plane not running: Port 8443 is taken. [PORT_TAKEN]\n  Choose another.\n")
    config = pool.with_command("control-plane", sys.executable, "-S", "-c", "raise SystemExit(2)")
    with pytest.raises(GpupoolError) as caught:
        start(config)
    assert caught.value.code is ErrorCode.POOL_START_FAILED
    assert "Port 8443" not in str(caught.value)


def test_truncated_log_is_quoted_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("old\n" * 100)
    mark = log.stat().st_size
    assert progress.tail(log, since=mark) == ""
    with log.open("a") as file:
        file.write("new\n")
    assert progress.tail(log, since=mark) == "new"
    log.write_text("after it was emptied\n")
    assert progress.tail(log, since=mark) == "after it was emptied"


def test_repeated_slow_failures_are_no_progress(pool: StandInPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine each life may outlast the time after which a death counts as quick."""
    monkeypatch.setattr("gpupool.daemon.process.progress.LOOPING_AFTER", 2)
    dies = "import time; time.sleep(0.3); raise SystemExit('broken')"
    with pytest.raises(GpupoolError, match=r"keeps ending \(exit status 1\)"):
        start(pool.with_command("control-plane", sys.executable, "-S", "-c", dies))


# -- in the foreground, as systemd does it ---------------------------------------------------------------------------


def _in_foreground(config: PoolConfig) -> None:
    result = launch.start(config, print, background=False, stall_s=STALL_S)
    Path(config.state_dir, "told").touch()
    raise SystemExit(launch.wait_foreground(result))


def test_slow_foreground_start_is_awaited(pool: StandInPool) -> None:
    starter = multiprocessing.get_context("fork").Process(target=_in_foreground, args=(slow(pool, "cpu"),))
    starter.start()
    assert eventually(lambda: Path(pool.config.state_dir, "told").exists(), 60)
    os.kill(starter.pid or 0, signal.SIGTERM)
    starter.join()
    assert starter.exitcode == 0


def test_starting_foreground_pool_can_be_ended(pool: StandInPool) -> None:
    starter = multiprocessing.get_context("fork").Process(target=_in_foreground, args=(slow(pool, "cpu", 600),))
    starter.start()
    assert eventually(lambda: "slow start begins" in log_of(pool))
    os.kill(starter.pid or 0, signal.SIGTERM)
    starter.join(60)
    assert starter.exitcode == 1  # KeyboardInterrupt, of which the command makes 130
    assert pool.supervisor_pid is None


def test_stalled_foreground_pool_ends_with_its_starter(pool: StandInPool) -> None:
    starter = multiprocessing.get_context("fork").Process(target=_in_foreground, args=(slow(pool, "idle", 600),))
    starter.start()
    starter.join(60)
    assert starter.exitcode == 1
    assert pool.supervisor_pid is None
    assert not any(map(alive, pool.started("agent")))


# -- commands that wait for a pool that another process started ------------------------------------------------------


def test_caller_waits_for_pool_started_by_another_process(pool: StandInPool) -> None:
    config = slow(pool, "cpu")
    context = multiprocessing.get_context("fork")
    starter = context.Process(target=start, args=(config,))
    starter.start()
    assert eventually(lambda: pool.supervisor_pid)
    said: list[str] = []
    assert launch.ensure_pool(said.append, said.append) == pool.config.location
    starter.join()
    assert starter.exitcode == 0
    assert len(pool.started("control-plane")) == 1


def test_start_is_retried_if_supervisor_is_killed(pool: StandInPool) -> None:
    prepare_folders(pool.config)
    save_config(slow(pool, "cpu", 2.0))

    def kill() -> None:
        assert eventually(lambda: pool.supervisor_pid)
        os.kill(pool.supervisor_pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    said: list[str] = []
    assert launch.ensure_pool(said.append, said.append) == pool.config.location
    killer.join()
    assert any("starting it again" in line for line in said)
    assert "Started a pool" in said[-1]


def test_up_reports_starting_pool_at_once(pool: StandInPool) -> None:
    config = slow(pool, "cpu", 600)
    context = multiprocessing.get_context("fork")
    starter = context.Process(target=start, args=(config,))
    starter.start()
    assert eventually(lambda: "slow start begins" in log_of(pool))
    with pytest.raises(GpupoolError) as caught:
        start(config)
    assert caught.value.code is ErrorCode.POOL_ALREADY_RUNNING
    status = launch.pool_status(pool.config.location)
    assert status["running"]
    assert not status["answering"]
    assert "control-plane: running" in (line := status_lines(None, status, 0.0, Style())[-1])
    assert "(reads the database, pid" in line
    os.kill(starter.pid or 0, signal.SIGINT)  # Ctrl-C: the pool continues to start
    starter.join()
    assert pool.supervisor_pid is not None


def test_run_waits_for_restarting_control_plane(
    pool: StandInPool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The pool is away for longer than ``run`` waits for one that it cannot watch."""
    monkeypatch.setattr("gpupool.cli.fast.waiting.RECONNECT_TIMEOUT_S", 0.5)
    start(slow(pool, "cpu"), stall_s=STALL_S)
    os.kill(pool.started("control-plane")[0], signal.SIGKILL)
    with SignalInbox() as inbox:
        answer = RetryingClient(LocalTransport(pool.config.location), inbox).request("GET", "/v1/pool")
    assert answer.ok
    assert len(pool.started("control-plane")) == 2
    assert "still starting" in capfd.readouterr().err


def test_run_fails_if_pool_was_stopped(pool: StandInPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.cli.fast.waiting.RECONNECT_TIMEOUT_S", 0.5)
    start(pool.config)
    launch.stop(pool.config.location)
    with SignalInbox() as inbox, pytest.raises(GpupoolError) as caught:
        RetryingClient(LocalTransport(pool.config.location), inbox).request("GET", "/v1/pool")
    assert caught.value.code is ErrorCode.POOL_UNREACHABLE


def test_busy_pool_that_never_answers_is_no_progress(pool: StandInPool) -> None:
    """It uses CPU time without end after its start work is done."""
    work = f"""
from gpupool.daemon.process.phases import StartPhase, enter_phase
enter_phase({pool.config.run_dir!r}, StartPhase.READY)
while True: sum(range(10000))
"""
    with pytest.raises(StalledError, match="is ready, but does not answer"):
        start(pool.with_command("control-plane", sys.executable, "-c", work), stall_s=STALL_S)


def test_start_progress_is_visible_without_access_to_state_folder(
    pool: StandInPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(pool.config)

    def refused(_state_dir: str) -> None:
        raise PermissionError

    monkeypatch.setattr("gpupool.daemon.process.progress.read_record", refused)
    assert StartWatch(pool.config.location, print, STALL_S).look()
    launch.stop(pool.config.location)
    assert not StartWatch(pool.config.location, print, STALL_S).look()


# -- what a start costs ------------------------------------------------------------------------------------------------


def test_control_plane_of_single_machine_imports_no_cluster_modules(tmp_path: Path) -> None:
    """Imports are nearly all of its start; a busy machine needs a minute for a second of them."""
    seldom = ["alembic", "authlib", "cryptography", "httpx2", "psycopg", "pygments", "ray", "rich", "sqlalchemy.orm"]
    code = f"""
import sys, gc
from gpupool.daemon import control_plane_main
sys.argv = ["control-plane", "--state-dir", {str(tmp_path)!r}]
status = control_plane_main.main()  # there is no pool in this folder: it loads, and refuses
print(status, gc.isenabled(), [name for name in {seldom!r} if sys.modules.get(name)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 False []", done.stdout + done.stderr
