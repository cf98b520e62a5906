"""Kills at any point: nothing runs twice, nothing is lost, and no running program is reported as ended."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from node_harness import PIPES, TTY, Attached, Caller, Node, RefusedError, eventually, fresh_node, new_key, spec

from gpupool.domain import ids
from gpupool.domain.work.program.supervision import ExitReason, ProcessPhase
from gpupool.node.host import locks, process_tree
from gpupool.node.host.paths import boot_id
from gpupool.node.host.records import ShepherdRecord, StartRequest, reserve_exit

MARKING = "echo x >> {mark}; sleep {seconds}; echo y >> {mark}; exit 3"


def order_on_disk(node: Node, line: str, boot: str | None = None) -> str:
    """Write the files of an agent that was killed between writing the spec and asking for a shepherd."""
    wanted = spec(line)
    folder = node.state.replica(wanted.key)
    folder.path.mkdir()
    StartRequest(wanted, {}, (), boot_id() if boot is None else boot, node.run).write(folder)
    return wanted.key


def test_programs_survive_a_killed_agent(own_node: Node, tmp_path: Path) -> None:
    node = own_node
    marks = [tmp_path / f"mark{i}" for i in range(3)]
    wanted = [spec(MARKING.format(mark=mark, seconds=s)) for mark, s in zip(marks, (0.1, 0.8, 1.5), strict=True)]
    for one in wanted:
        node.start(one)
    for one in wanted[1:]:
        node.running(one.key)
    pids = {node.running(one.key).pid for one in wanted[1:]}
    node.down(signal.SIGKILL)
    eventually(lambda: marks[0].exists() and marks[0].read_text() == "x\ny\n")
    node.up()
    adopted = {status.pid for one in wanted[1:] if (status := node.status(one.key)) is not None}
    assert adopted == pids
    for one in wanted:
        assert node.ended(one.key).exit_code == 3
    assert [mark.read_text() for mark in marks] == ["x\ny\n"] * 3


def test_programs_survive_a_clean_stop_of_the_agent(own_node: Node, tmp_path: Path) -> None:
    node = own_node
    wanted = spec(MARKING.format(mark=tmp_path / "mark", seconds=0.6))
    node.start(wanted)
    node.running(wanted.key)
    assert node.down() == 0
    node.up()
    assert node.ended(wanted.key).exit_code == 3


def test_program_starts_exactly_once_after_kill_before_spawn(own_node: Node, tmp_path: Path) -> None:
    node = own_node
    node.down(signal.SIGKILL)
    mark = tmp_path / "mark"
    key = order_on_disk(node, f"echo x >> {mark}")
    node.up()
    assert node.ended(key).exit_code == 0
    node.down(signal.SIGKILL)
    node.up()
    assert node.ended(key).exit_code == 0
    assert mark.read_text() == "x\n"


def test_partly_written_order_is_ignored(own_node: Node) -> None:
    node = own_node
    node.down(signal.SIGKILL)
    key = new_key()
    folder = node.state.replica(key)
    folder.path.mkdir()
    reserve_exit(folder)
    (folder.path / "spec.json.tmp1").write_text('{"spec":')
    node.up()
    assert node.status(key) is None
    assert not folder.path.exists()


def test_invalid_folders_are_not_touched(own_node: Node) -> None:
    node = own_node
    node.down()
    strange = node.state.replicas / "not a key"
    strange.mkdir()
    (strange / "spec.json").write_text("{}")
    node.up()
    assert node.run_to_end(spec("true")).exit_code == 0
    assert strange.exists()


def test_restarted_machine_reports_programs_as_ended(own_node: Node) -> None:
    """Programs that ran, or may have run, are not started again."""
    node = own_node
    node.down()
    ran, waited = order_on_disk(node, "echo never"), order_on_disk(node, "echo never", boot="another boot")
    ShepherdRecord(1, 1, "another boot", 2, 2, time.time()).write(node.state.replica(ran))
    node.up()
    for key in (ran, waited):
        assert node.ended(key).reason is ExitReason.NODE_RESTARTED
        assert node.log(key) == b""


def test_start_waits_for_a_held_lock(own_node: Node) -> None:
    """A shepherd may be starting: nothing is started while the lock is held."""
    node = own_node
    node.down()
    key = order_on_disk(node, "exit 4")
    lock = locks.take(node.state.replica(key).lock)
    assert lock is not None
    node.up()
    status = node.status(key)
    assert status is not None
    assert status.phase is ProcessPhase.STARTING
    assert not node.state.replica(key).shepherd.exists()
    os.close(lock)
    assert node.ended(key).exit_code == 4


@pytest.mark.parametrize("agent_down", [False, True])
def test_process_tree_ends_with_its_killed_shepherd(own_node: Node, *, agent_down: bool) -> None:
    node = own_node
    wanted = spec("(setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & wait' &) ; sleep 1000")
    node.start(wanted)
    node.running(wanted.key)
    eventually(lambda: len(node.living(wanted.key)) >= 4)
    shepherd = node.shepherd(wanted.key)
    if agent_down:
        node.down(signal.SIGKILL)
    os.kill(shepherd, signal.SIGKILL)
    if agent_down:
        node.up()
    report = node.ended(wanted.key)
    assert (report.reason, report.signal) == (ExitReason.SHEPHERD_LOST, signal.SIGKILL)


def test_lost_shepherd_during_stop_counts_as_stopped(own_node: Node) -> None:
    node = own_node
    wanted = spec("trap '' TERM; echo ready; while :; do sleep 0.1; done")
    node.start(wanted)
    eventually(lambda: node.log(wanted.key))
    node.ask("stop", key=wanted.key, grace_s=60)
    os.kill(node.shepherd(wanted.key), signal.SIGKILL)
    assert node.ended(wanted.key).reason is ExitReason.STOPPED


def test_stop_survives_restart_of_agent(own_node: Node) -> None:
    """The agent is killed right after the stop was written: the next agent executes it."""
    node = own_node
    wanted = spec("sleep 1000")
    node.start(wanted)
    node.running(wanted.key)
    node.down(signal.SIGKILL)
    node.state.replica(wanted.key).stop.write_text(json.dumps({"grace_s": 1}))
    node.up()
    assert node.ended(wanted.key).reason is ExitReason.STOPPED


def test_killed_spawner_is_replaced(own_node: Node, tmp_path: Path) -> None:
    node = own_node
    long = spec("sleep 1000")
    node.start(long)
    node.running(long.key)
    for number in range(5):
        os.kill(node.spawner_pid, signal.SIGKILL)
        wanted = spec(f"echo x >> {tmp_path}/mark{number}")
        assert node.run_to_end(wanted).exit_code == 0
        assert (tmp_path / f"mark{number}").read_text() == "x\n"
    status = node.status(long.key)
    assert status is not None
    assert status.phase is ProcessPhase.RUNNING


def test_frozen_spawner_is_replaced_and_starts_nothing_twice(own_node: Node, tmp_path: Path) -> None:
    """The spawner is killed while it has a request."""
    node = own_node
    spawner = node.spawner_pid
    os.kill(spawner, signal.SIGSTOP)
    wanted = spec(f"echo x >> {tmp_path}/mark")
    caller = Caller(node.run / "agent.sock")
    request = {"id": 1, "method": "start", "params": {"spec": wanted.to_dict()}}
    caller.file.write(json.dumps(request).encode() + b"\n")
    caller.file.flush()
    eventually(node.state.replica(wanted.key).lock.exists)
    os.kill(spawner, signal.SIGKILL)
    assert node.ended(wanted.key).exit_code == 0
    assert (tmp_path / "mark").read_text() == "x\n"
    caller.close()


def test_random_kills_lose_and_repeat_nothing(own_node: Node, tmp_path: Path) -> None:
    node, rng = own_node, random.Random(7)
    wanted = [spec(f"echo s >> {tmp_path}/{i}; sleep 0.{rng.randrange(1, 9)}; exit {i}") for i in range(24)]
    lost: set[str] = set()
    for number, one in enumerate(wanted):
        node.start(one)
        if number % 4 == 1:
            node.down(signal.SIGKILL)
            node.up()
        elif number % 4 == 2:
            os.kill(node.spawner_pid, signal.SIGKILL)
        elif number % 4 == 3:
            victim = rng.choice(wanted[: number + 1])
            status = node.status(victim.key)
            if status is not None and status.phase is ProcessPhase.RUNNING:
                lost.add(victim.key)
                os.kill(node.shepherd(victim.key), signal.SIGKILL)
    for number, one in enumerate(wanted):
        report = node.ended(one.key)
        if report.reason is ExitReason.SHEPHERD_LOST:
            assert one.key in lost
        else:
            assert report.exit_code == number
        assert (tmp_path / str(number)).read_text() == "s\n"


def test_start_is_idempotent(node: Node, tmp_path: Path) -> None:
    wanted = spec(f"echo x >> {tmp_path}/mark; sleep 0.2")
    first = node.start(wanted)
    again = node.start(wanted)
    assert (first.key, again.key) == (wanted.key, wanted.key)
    node.ended(wanted.key)
    assert node.start(wanted).phase is ProcessPhase.EXITED
    assert (tmp_path / "mark").read_text() == "x\n"


def test_stale_epochs_are_refused_across_restarts_and_forgetting(own_node: Node) -> None:
    node = own_node
    workload, index, _ = ids.split_attempt_key(new_key())
    first = spec("true", key=ids.attempt_key(workload, index, 1), epoch=10)
    second = spec("true", key=ids.attempt_key(workload, index, 2), epoch=20)
    node.run_to_end(second)

    def refused(wanted: object) -> bool:
        with pytest.raises(RefusedError) as caught:
            node.start(wanted)  # type: ignore[arg-type]
        return caught.value.code == "STALE_WRITE"

    assert refused(first)
    assert refused(spec("true", key=second.key, epoch=19))
    node.ask("forget", key=second.key)
    assert refused(first)
    assert node.start(second).exit is not None  # the identical start again returns its result
    node.down(signal.SIGKILL)
    node.up()
    assert refused(first)
    node.ask("forget", key=second.key, delete_logs=True)
    assert refused(second)
    assert node.run_to_end(spec("true", key=ids.attempt_key(workload, index, 3), epoch=30)).exit_code == 0


def test_output_is_complete_while_a_program_is_forgotten(node: Node) -> None:
    """The control plane forgets a program as soon as its end is stored, which is when clients read its output."""
    assert node.caller is not None
    keys = [node.start(spec("echo out")).key for _ in range(30)]
    for key in keys:
        node.ended(key)
        read = ("read_records", {"key": key, "cursor": "", "limit": 1 << 20})
        tail = ("tail_log", {"key": key, "lines": 1})
        answers = node.caller.ask_together(read, tail, ("forget", {"key": key}), read, read, tail, read)
        records = [answer for answer in answers if isinstance(answer, tuple)]
        assert len(records) == 4
        assert all(data.endswith(b"out\n") for _, data in records)
        assert {answer for answer in answers if isinstance(answer, str)} == {node.ask("tail_log", key=key, lines=1)}


def test_forget_keeps_the_log_unless_requested(node: Node) -> None:
    wanted = spec("echo kept")
    node.run_to_end(wanted)
    node.ask("forget", key=wanted.key)
    node.ask("forget", key=wanted.key)
    assert node.status(wanted.key) is None
    assert node.log(wanted.key) == b"kept\n"
    node.ask("forget", key=wanted.key, delete_logs=True)
    with pytest.raises(RefusedError, match="not on this node"):
        node.log(wanted.key)


def test_running_program_is_not_forgotten(node: Node) -> None:
    wanted = spec("sleep 1000")
    node.start(wanted)
    with pytest.raises(RefusedError, match="has not ended"):
        node.ask("forget", key=wanted.key)


def test_two_agents_never_share_a_folder(own_node: Node) -> None:
    node = own_node
    second = subprocess.run(node.command(), capture_output=True, timeout=30, check=False)
    assert second.returncode == 2
    assert b"POOL_ALREADY_RUNNING" in second.stderr
    assert node.run_to_end(spec("true")).exit_code == 0
    node.down(signal.SIGKILL)  # a killed agent holds nothing
    node.up()


def test_unusable_state_folder_is_reported(tmp_path: Path) -> None:
    node = Node()
    (tmp_path / "file").write_text("")
    node.state = type(node.state)(tmp_path / "file" / "state")
    refused = subprocess.run(node.command(), capture_output=True, timeout=30, check=False)
    assert refused.returncode == 2
    assert b"POOL_START_FAILED" in refused.stderr
    shutil.rmtree(node.root)


def test_changes_are_pushed_to_watchers(node: Node) -> None:
    watcher = Caller(node.run / "agent.sock")
    watcher.ask("watch")
    wanted = spec("exit 2")
    node.run_to_end(wanted)
    while not any(e.key == wanted.key and e.exit for e in watcher.events):
        watcher.next_message()
    phases = [e.phase for e in watcher.events if e.key == wanted.key]
    assert phases == sorted(phases, key=list(ProcessPhase).index)
    watcher.close()


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b"[]\n", b'{"id":1}\n', b'{"id":1,"method":"do_list"}\n', b'{"id":1,"method":"start"}\n'],
)
def test_bad_requests_get_an_error_or_a_closed_connection(node: Node, line: bytes) -> None:
    caller = Caller(node.run / "agent.sock")
    caller.sock.sendall(line)
    answer = caller.file.readline()
    assert not answer or "error" in json.loads(answer)
    caller.close()
    assert node.run_to_end(spec("true")).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"key": "../../etc"}, "INVALID_NAME"),
        ({"key": "w0123456789..1"}, "INVALID_NAME"),
        ({"key": "w0123456789.00.1"}, "INVALID_NAME"),
        ({"argv": ()}, "INVALID_REQUEST"),
        ({"argv": ("a\0b",)}, "INVALID_REQUEST"),
        ({"env": {"A=B": "c"}}, "INVALID_REQUEST"),
    ],
)
def test_bad_specs_are_refused_and_leave_no_files(node: Node, changes: dict[str, object], code: str) -> None:
    before = sorted(node.state.replicas.iterdir())
    with pytest.raises(RefusedError) as caught:
        node.ask("start", spec=spec("true", **changes).to_dict())
    assert caught.value.code == code
    assert sorted(node.state.replicas.iterdir()) == before


def test_sockets_work_in_deep_folders() -> None:
    with fresh_node() as node:
        node.down()
        node.run = node.root / ("deep" * 30) / "run"
        node.run.parent.mkdir()
        with pytest.raises(OSError, match="too long"):
            Caller(node.run / "agent.sock")
        node.process = subprocess.Popen(node.command(), stderr=subprocess.DEVNULL)
        eventually((node.run / "agent.sock").exists)
        folder = os.open(node.run, os.O_PATH)
        node.caller = Caller(Path(f"/proc/self/fd/{folder}/agent.sock"))
        wanted = spec("echo ready; read line; exit $line", stdio=PIPES)
        node.start(wanted)
        client = Attached(f"/proc/self/fd/{folder}/attach/{wanted.key}.sock")
        client.until(lambda: client.pid)
        node.ask("signal", key=wanted.key, signum=int(signal.SIGTERM))
        assert client.finish()["signal"] == signal.SIGTERM
        assert node.ended(wanted.key).signal == signal.SIGTERM
        os.close(folder)


@pytest.mark.slow
def test_many_starts_leak_nothing(own_node: Node) -> None:
    node = own_node
    assert node.process is not None
    node.run_to_end(spec("true"))
    before = _held(node)
    caller = node.caller
    assert caller is not None
    caller.ask("watch")
    total, started = 1000, 0
    ended: set[str] = set()
    while len(ended) < total:
        while started < total and started - len(ended) < 50:
            wanted = spec("true")
            node.ask("start", spec=wanted.to_dict())
            started += 1
        ended |= {e.key for e in caller.events if e.exit is not None and e.exit.exit_code == 0}
        caller.events.clear()
        if len(ended) < total and started - len(ended) >= min(50, total - len(ended)):
            caller.next_message()
    assert eventually(lambda: _held(node) <= before or None, "all is given back")
    assert list((node.run / "attach").iterdir()) == []


def _held(node: Node) -> tuple[int, int, int]:
    """Return descriptors of the agent and of the spawner, and the processes below the agent."""
    assert node.process is not None
    agent, spawner = node.process.pid, node.spawner_pid
    below = process_tree.descendants([agent], process_tree.children_of(process_tree.scan()))
    agent_fds, spawner_fds = (len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (agent, spawner))
    return agent_fds, spawner_fds, len(below)


def test_attached_viewer_survives_the_agent(own_node: Node) -> None:
    node = own_node
    wanted = spec("echo ready; read line; exit 8", stdio=TTY, client_bound=True)
    client = node.start_attached(wanted)
    client.until(lambda: b"ready" in client.out)
    node.down(signal.SIGKILL)
    client.sock.sendall(b"\x01\x00\x00\x00\x03go\n")
    assert client.finish()["exit_code"] == 8
    node.up()
    assert node.ended(wanted.key).exit_code == 8


def test_attach_works_through_the_agent(node: Node) -> None:
    wanted = spec("cat; exit 5", stdio=PIPES, client_bound=True)
    node.start(wanted)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect(str(node.run / "agent.sock"))
    sock.sendall(json.dumps({"id": 1, "method": "attach", "params": {"key": wanted.key}}).encode() + b"\n")
    assert json.loads(sock.recv(100)) == {"id": 1, "result": None}
    hello = b'{"version": 1}'
    sock.sendall(b"\x06" + len(hello).to_bytes(4, "big") + hello + b"\x01\x00\x00\x00\x02hi\x02\x00\x00\x00\x00")
    got = b""
    while data := sock.recv(1000):
        got += data
    assert b"\x00\x00\x00\x02hi" in got
    assert b'"status": 5' in got
    sock.close()
    node.ended(wanted.key)
    with pytest.raises(RefusedError, match="has ended"):
        node.ask("attach", key=wanted.key)
