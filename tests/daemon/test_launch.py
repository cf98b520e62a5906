"""Starting, joining and stopping a pool, by one caller or by many."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from standin_pool import StandInPool, alive, eventually, no_root, start

from gpupool.client.discovery import Location
from gpupool.daemon import folders
from gpupool.daemon.config import PoolConfig, PoolKind, StoredOptions, load_config, save_config
from gpupool.daemon.process import launch
from gpupool.daemon.process.identity import waiting_for_lock
from gpupool.daemon.process.record import PoolRecord, read_record, this_process, write_record
from gpupool.daemon.supervisor import clear_leftovers
from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.host.locks import take as take_lock


def test_background_start_returns_with_running_pool(pool: StandInPool) -> None:
    result = start(pool.config)
    assert result.gpus == {"Tesla T4": 2, "V100": 1}
    assert "2 x Tesla T4, 1 x V100 (emulated)" in result.gpus_text
    assert result.pid == pool.supervisor_pid
    status = launch.pool_status(pool.config.location)
    assert status["running"]
    assert status["answering"]
    assert [child["state"] for child in status["children"]] == ["running", "running"]


def test_daemon_has_own_session_without_terminal_or_open_files(pool: StandInPool) -> None:
    with Path(pool.config.state_dir).parent.joinpath("held").open("w") as held:
        os.set_inheritable(held.fileno(), True)  # noqa: FBT003 - positional only
        start(pool.config)
    pid = pool.supervisor_pid
    assert pid is not None
    assert os.getsid(pid) not in (pid, os.getsid(0))
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    opened = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    assert not any(name.endswith("held") for name in opened)


def test_pool_does_not_inherit_environment_of_its_starter(pool: StandInPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do not tell")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    start(pool.config)
    for pid in (pool.supervisor_pid, *pool.started("agent")):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"do not tell" not in environment
        assert b"CUDA_VISIBLE_DEVICES" not in environment
        assert b"PATH=" in environment


def test_pool_resets_signals_ignored_by_the_shell(pool: StandInPool) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        start(pool.config)
    finally:
        signal.signal(signal.SIGINT, before)
    for line in Path(f"/proc/{pool.started('agent')[0]}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            assert not int(line.split()[1], 16) & 1 << signal.SIGINT - 1


def test_second_pool_on_a_folder_is_refused_with_owner(pool: StandInPool) -> None:
    start(pool.config)
    with pytest.raises(GpupoolError) as caught:
        start(replace(pool.config, emulate="8xT4"))
    assert caught.value.code is ErrorCode.POOL_ALREADY_RUNNING
    assert f"pid {pool.supervisor_pid}" in caught.value.message
    assert load_config(pool.config.state_dir).emulate is None
    assert len(pool.started("control-plane")) == 1


def test_pool_on_other_machine_with_shared_folder_is_named(pool: StandInPool) -> None:
    folders.prepare_folders(pool.config)
    fd = take_lock(Path(pool.config.state_dir) / folders.POOL_LOCK)
    assert fd is not None
    write_record(fd, PoolRecord(this_process(), "gpu7"))
    with pytest.raises(GpupoolError, match="another machine, gpu7") as caught:
        start(pool.config)
    os.close(fd)
    assert caught.value.code is ErrorCode.POOL_ALREADY_RUNNING


def test_tested_lock_is_not_mistaken_for_a_pool(pool: StandInPool) -> None:
    """On a busy machine a test of the lock can take seconds: the process that tests it is preempted meanwhile."""
    folders.prepare_folders(pool.config)
    lock = Path(pool.config.state_dir) / folders.POOL_LOCK
    tested = take_lock(lock)
    assert tested is not None
    release = threading.Timer(1.0, os.close, (tested,))
    release.start()
    assert start(pool.config).pid == pool.supervisor_pid


def test_twenty_simultaneous_starts_create_one_pool(pool: StandInPool) -> None:
    pool.save()
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    callers = [context.Process(target=launch.ensure_pool, args=(said.put, print)) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [caller.exitcode for caller in callers] == [0] * 20
    assert len(pool.started("agent")) == len(pool.started("control-plane")) == 1
    assert "Started a pool: 2 x Tesla T4" in said.get()
    assert said.empty()


def test_running_pool_is_used(pool: StandInPool) -> None:
    start(pool.config)
    said: list[str] = []
    assert launch.ensure_pool(said.append, said.append) == pool.config.location
    assert not said


def test_caller_waits_for_restarting_control_plane(pool: StandInPool) -> None:
    start(pool.config)
    os.kill(pool.started("control-plane")[0], signal.SIGKILL)
    assert launch.ensure_pool(print, print) == pool.config.location
    assert eventually(lambda: len(pool.started("control-plane")) == 2)
    assert len(pool.started("agent")) == 1


def test_down_ends_all_processes_and_up_works_again(pool: StandInPool) -> None:
    start(pool.config)
    pids = [pool.supervisor_pid, *pool.started("agent"), *pool.started("control-plane")]
    assert launch.stop(pool.config.location)
    assert not any(alive(pid) for pid in pids if pid)
    assert not pool.config.location.present
    assert not launch.stop(pool.config.location)
    assert not launch.pool_status(pool.config.location)["running"]
    start(pool.config)
    assert len(pool.started("agent")) == 2


def test_foreground_pool_ends_with_its_killed_starter(pool: StandInPool) -> None:
    context = multiprocessing.get_context("fork")
    starter = context.Process(target=_stay_in_foreground, args=(pool.config,))
    starter.start()
    assert eventually(lambda: pool.started("control-plane") and pool.supervisor_pid)
    starter.kill()
    starter.join()
    assert eventually(lambda: pool.supervisor_pid is None)
    assert eventually(lambda: not alive(pool.started("agent")[0]))


def test_ctrl_c_in_the_foreground_stops_the_pool(pool: StandInPool) -> None:
    context = multiprocessing.get_context("fork")
    starter = context.Process(target=_stay_in_foreground, args=(pool.config,))
    starter.start()
    assert eventually(lambda: Path(pool.config.state_dir, "told").exists())
    os.kill(starter.pid or 0, signal.SIGINT)
    starter.join()
    assert starter.exitcode == 0
    assert not any(alive(pid) for pid in (*pool.started("agent"), *pool.started("control-plane")))


def _stay_in_foreground(config: PoolConfig) -> None:
    result = start(config, background=False)
    Path(config.state_dir, "told").touch()
    raise SystemExit(launch.wait_foreground(result))


def test_killed_pool_restarts_with_same_options(pool: StandInPool) -> None:
    start(replace(pool.config, emulate="2xV100"))
    os.kill(pool.supervisor_pid or 0, signal.SIGKILL)
    assert eventually(lambda: not alive(pool.started("agent")[0]) and not alive(pool.started("control-plane")[0]))
    assert launch.ensure_pool(print, print) == pool.config.location
    assert len(pool.started("agent")) == len(pool.started("control-plane")) == 2
    assert load_config(pool.config.state_dir).emulate == "2xV100"


def test_child_of_dead_supervisor_is_killed_before_next_start(pool: StandInPool) -> None:
    deaf = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    )
    start(pool.with_agent(deaf))
    log = folders.log_path(pool.config.state_dir, "agent")
    assert eventually(lambda: "deaf" in log.read_text())
    record = read_record(pool.config.state_dir)
    assert record is not None
    os.kill(record.supervisor.pid, signal.SIGKILL)
    assert record.supervisor.wait_gone(10)
    fd = take_lock(Path(pool.config.state_dir) / folders.POOL_LOCK)
    assert fd is not None
    clear_leftovers(pool.config.state_dir, fd, grace_s=0.2)
    os.close(fd)
    assert not any(child.alive for child in record.children)


def test_stale_files_do_not_prevent_a_start(pool: StandInPool) -> None:
    start(pool.config)
    os.kill(pool.supervisor_pid or 0, signal.SIGKILL)
    assert eventually(lambda: not any(map(alive, (*pool.started("agent"), *pool.started("control-plane")))))
    assert Path(pool.config.run_dir, "api.sock").is_socket()
    assert Path(pool.config.run_dir, "state.json").exists()
    assert not launch.pool_status(pool.config.location)["running"]
    assert start(pool.config).pid == pool.supervisor_pid


def test_path_longer_than_a_socket_address_works(pool: StandInPool, tmp_path: Path) -> None:
    deep = StandInPool(tmp_path / ("d" * 120))
    deep.marks.parent.mkdir()
    result = start(deep.config)
    try:
        assert launch.pool_status(result.location)["answering"]
    finally:
        assert launch.stop(result.location)


def test_repeatedly_failing_control_plane_fails_start_with_its_log(pool: StandInPool) -> None:
    config = pool.with_command("control-plane", sys.executable, "-c", "raise SystemExit('no such database engine')")
    with pytest.raises(GpupoolError) as caught:
        start(config)
    assert caught.value.code is ErrorCode.POOL_START_FAILED
    assert "control-plane keeps ending (exit status 1)" in caught.value.message
    assert "no such database engine" in caught.value.hint
    assert "gpupool doctor" in caught.value.hint
    assert pool.supervisor_pid is None
    assert not any(map(alive, pool.started("agent")))


def test_missing_program_fails_the_start(pool: StandInPool) -> None:
    with pytest.raises(GpupoolError, match="could not be started"):
        start(pool.with_command("agent", "/no/such/program"))


def test_unwritable_folder_is_named(pool: StandInPool) -> None:
    nobody_may = replace(pool.config, state_dir="/sys/gpupool")  # not even root
    with pytest.raises(
        GpupoolError, match=r"cannot use the folder /sys/gpupool: (Permission|Operation|Read-only)"
    ) as caught:
        start(nobody_may)
    assert caught.value.code is ErrorCode.POOL_START_FAILED


def test_error_names_state_folder_that_is_a_file(pool: StandInPool) -> None:
    Path(pool.config.state_dir).write_text("")
    with pytest.raises(GpupoolError, match="cannot use the folder") as caught:
        start(pool.config)
    assert "GPUPOOL_STATE_DIR" in caught.value.hint


def test_full_disk_is_reported_and_nothing_is_started(pool: StandInPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(GpupoolError, match="No space left on device") as caught:
        start(pool.config)
    assert caught.value.code is ErrorCode.POOL_START_FAILED
    assert "Free space" in caught.value.hint
    assert not pool.started("agent")


@pytest.mark.root
@pytest.mark.skipif(no_root(), reason="needs to be root to give folders away")
def test_folder_of_another_user_is_refused(pool: StandInPool) -> None:
    Path(pool.config.state_dir).mkdir()
    os.chown(pool.config.state_dir, 12345, 12345)
    with pytest.raises(GpupoolError, match=r"another user \(uid 12345\)"):
        start(pool.config)


def test_folder_with_other_use_keeps_its_mode(pool: StandInPool, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    (home / "thesis.tex").touch()
    with pytest.raises(GpupoolError, match="in use for something else"):
        folders.prepare_folders(replace(pool.config, state_dir=str(home)))
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


def test_others_can_list_only_run_folder_of_system_pool(pool: StandInPool) -> None:
    config = replace(pool.config, kind=PoolKind.SYSTEM, run_dir=str(Path(pool.config.state_dir).parent / "run"))
    folders.prepare_folders(config)
    assert stat.S_IMODE(Path(config.state_dir).stat().st_mode) == 0o711  # to pass to the folders of one's own work
    assert all(stat.S_IMODE(inside.stat().st_mode) & 0o077 == 0 for inside in Path(config.state_dir).iterdir())
    assert stat.S_IMODE(Path(config.run_dir).stat().st_mode) == 0o755


def test_broken_options_file_is_named(pool: StandInPool) -> None:
    pool.save()
    Path(pool.config.state_dir, "config.json").write_text("{")
    with pytest.raises(GpupoolError, match=r"config\.json cannot be read") as caught:
        launch.ensure_pool(print, print)
    assert caught.value.code is ErrorCode.INVALID_FILE


def test_silent_system_pool_is_not_replaced_by_private_pool(pool: StandInPool, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Location(pool.config.state_dir, pool.config.run_dir, "system")
    monkeypatch.setattr(launch, "find_pool", lambda: there)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(GpupoolError) as caught:
        launch.ensure_pool(print, print)
    assert caught.value.code is ErrorCode.POOL_UNREACHABLE
    assert not pool.started("agent")


def test_refusal_of_agent_is_the_error_of_the_start(pool: StandInPool) -> None:
    commands = {**pool.config.commands, "control-plane": ("sleep", "60")}
    del commands["agent"]  # the real one
    config = replace(pool.config, commands=commands, emulate="2xNoSuchCard")
    with pytest.raises(GpupoolError, match="'NoSuchCard' is not a known model") as caught:
        start(config)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.hint.endswith("RTX 5090.")  # it is long, and not cut
    assert pool.supervisor_pid is None


@pytest.mark.parametrize("earlier", [None, "2xT4"])
def test_failed_start_leaves_the_earlier_options(pool: StandInPool, earlier: str | None) -> None:
    good = replace(pool.config, emulate=earlier)
    folders.prepare_folders(good)
    if earlier is not None:
        save_config(good)
    commands = {**pool.config.commands, "control-plane": ("sleep", "60")}
    del commands["agent"]  # the real one
    with pytest.raises(GpupoolError, match="'NoSuchCard' is not a known model"):
        start(replace(pool.config, commands=commands, emulate="2xNoSuchCard"))
    assert PoolConfig.for_location(pool.config.location).emulate == earlier
    assert Path(pool.config.state_dir, "config.json").exists() == (earlier is not None)


def test_starts_at_the_same_time_leave_the_options_of_the_one_that_succeeds(pool: StandInPool) -> None:
    folders.prepare_folders(pool.config)
    lock = Path(pool.config.state_dir, folders.START_LOCK)
    with ThreadPoolExecutor(4) as threads:
        with waiting_for_lock(lock, 1.0):
            starts = [threads.submit(start, pool.config) for _ in range(4)]
            time.sleep(0.3)  # all of them wait for the lock
        errors = [done.exception() for done in starts]
    refused = [error for error in errors if error is not None]
    assert len(refused) == 3
    assert {getattr(error, "code", None) for error in refused} == {ErrorCode.POOL_ALREADY_RUNNING}, refused
    assert load_config(pool.config.state_dir) == pool.config


def test_failed_start_leaves_the_options_of_another_process(pool: StandInPool) -> None:
    folders.prepare_folders(pool.config)
    before = StoredOptions(pool.config.state_dir)
    save_config(replace(pool.config, emulate="3xT4"))
    before.restore(replaced=pool.config)
    assert load_config(pool.config.state_dir).emulate == "3xT4"


def test_stored_options_are_read_back_unchanged(pool: StandInPool) -> None:
    config = replace(pool.config, emulate="4xT4", listen="0.0.0.0:8443", tls_self_signed=True, retention_days=7)
    folders.prepare_folders(config)
    save_config(config)
    assert load_config(config.state_dir) == config
    assert stat.S_IMODE(Path(config.state_dir, "config.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "wrong",
    [{"listen": "0.0.0.0:8443"}, {"tls_cert": "/c.pem"}, {"retention_days": 0}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_invalid_options_are_refused(pool: StandInPool, wrong: dict[str, object]) -> None:
    with pytest.raises(GpupoolError) as caught:
        decode(PoolConfig, {**pool.config.to_dict(), **wrong})
    assert caught.value.code is ErrorCode.INVALID_REQUEST
