"""Restarts of children: back-off, crash loops, restarts, bounded logs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from standin_pool import StandInPool, eventually, start

from gpupool.cli.render.screens import status_lines
from gpupool.cli.render.text import Style
from gpupool.daemon.config import PoolKind
from gpupool.daemon.folders import CHILD_LOCKS, log_path
from gpupool.daemon.process import launch
from gpupool.daemon.process.children import (
    FIRST_DELAY_S,
    HEALTHY_LIFE_S,
    MAX_DELAY_S,
    Backoff,
    ChildName,
    child_command,
)
from gpupool.daemon.process.identity import ProcessIdentity, is_locked
from gpupool.daemon.process.logs import bound_log, open_log, tail
from gpupool.node.host.locks import take as take_lock


@given(st.lists(st.floats(0, 2 * HEALTHY_LIFE_S), min_size=1, max_size=60))
def test_restart_delay_has_minimum_and_maximum(lives: list[float]) -> None:
    backoff = Backoff()
    for lived_s in lives:
        backoff = backoff.after_death(lived_s)
        assert FIRST_DELAY_S <= backoff.delay_s <= MAX_DELAY_S
        if lived_s >= HEALTHY_LIFE_S:
            assert backoff.delay_s == FIRST_DELAY_S
            assert not backoff.looping


def test_restart_delay_doubles_up_to_maximum() -> None:
    backoff, delays = Backoff(), []
    for _ in range(9):
        backoff = backoff.after_death(0.1)
        delays.append(backoff.delay_s)
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.looping


def test_killed_child_is_restarted_alone(pool: StandInPool) -> None:
    start(pool.config)
    os.kill(pool.started("agent")[0], signal.SIGKILL)
    assert eventually(lambda: len(pool.started("agent")) == 2)
    os.kill(pool.started("control-plane")[0], signal.SIGKILL)
    assert eventually(lambda: len(pool.started("control-plane")) == 2)
    assert eventually(lambda: launch.pool_status(pool.config.location)["answering"])
    children = launch.pool_status(pool.config.location)["children"]
    assert [(child["restarts"], child["last_exit"]) for child in children] == [(1, "killed by signal 9")] * 2
    assert len(pool.started("agent")) == 2


def test_crash_loop_is_reported_while_other_children_run(pool: StandInPool) -> None:
    flag = pool.marks.with_name("break")
    lives = f"import time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.02)\nraise SystemExit(3)"
    start(pool.with_agent(lives))
    flag.touch()

    def agent() -> dict[str, object]:
        status = launch.pool_status(pool.config.location)
        return next(child for child in status["children"] if child["name"] == "agent")

    assert eventually(lambda: agent()["state"] == "crash_loop" and agent()["pid"] is None)
    (line,) = [line for line in status_lines(None, {"children": [agent()]}, 0.0, Style()) if "agent" in line]
    assert f"last exit exit status 3, see {agent()['log']})" in line
    assert "None" not in line
    assert agent()["last_exit"] == "exit status 3"
    assert launch.pool_status(pool.config.location)["answering"]


def test_children_get_folders_and_options(pool: StandInPool) -> None:
    config = replace(pool.config, commands={}, emulate="4xT4", node_name="gpu1", kind=PoolKind.SYSTEM)
    folders = ("--state", f"{config.state_dir}/node", "--run", config.run_dir)
    agent = child_command(config, ChildName.AGENT)
    assert agent[-9:] == (*folders, "--name", "gpu1", "--emulate", "4xT4", "--shared")
    own = child_command(replace(config, emulate=None, node_name=None, kind=PoolKind.USER), ChildName.AGENT)
    assert own[-6:] == (*folders, "--name", os.uname().nodename)
    assert child_command(config, ChildName.CONTROL_PLANE)[-2:] == ("--state-dir", config.state_dir)


def test_agent_is_restarted_and_ends_with_the_pool(pool: StandInPool) -> None:
    commands = {"control-plane": pool.config.commands["control-plane"]}
    location = start(replace(pool.config, commands=commands, emulate="2xT4")).location
    lock, socket = Path(location.state_dir, CHILD_LOCKS[0]), Path(location.run_dir, "agent.sock")
    assert eventually(lambda: is_locked(lock) and socket.is_socket())
    first = launch.pool_status(location)["children"][0]
    os.kill(first["pid"], signal.SIGKILL)
    assert eventually(lambda: launch.pool_status(location)["children"][0]["restarts"] == 1)
    assert eventually(lambda: is_locked(lock) and socket.is_socket())
    assert launch.stop(location)
    assert not is_locked(lock)


def test_output_of_children_is_logged(pool: StandInPool) -> None:
    start(pool.config)
    assert eventually(lambda: "the agent is up" in tail(log_path(pool.config.state_dir, "agent")))


def test_log_size_is_limited_with_open_writer(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    fd = open_log(log)
    for number in range(40):
        os.write(fd, b"%03d%s\n" % (number, b"x" * 96))
        bound_log(log, limit_bytes=1000)
        assert log.stat().st_size <= 1000
    os.close(fd)
    assert log.with_name("agent.log.1").stat().st_size <= 1100
    both = log.with_name("agent.log.1").read_text() + log.read_text()
    assert [line[:3] for line in both.splitlines()] == [f"{n:03d}" for n in range(40)][-len(both.splitlines()) :]


def test_quoted_log_is_its_shortened_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"first\n" + b"\xff" * 5000 + b"\nlast\n")
    quoted = tail(log, lines=2).splitlines()
    assert len(quoted[0]) == 300
    assert quoted[1] == "last"
    assert tail(tmp_path / "none") == ""


def test_process_with_reused_pid_is_not_mistaken() -> None:
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    other = ProcessIdentity(me.pid, me.start_ticks + 1)
    assert me.alive
    assert not other.alive
    assert not other.send(signal.SIGKILL)
    assert other.wait_gone(0)


def test_lock_is_visible_until_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    fd = take_lock(path)
    assert fd is not None
    assert is_locked(path)
    assert take_lock(path) is None
    os.close(fd)
    assert not is_locked(path)
