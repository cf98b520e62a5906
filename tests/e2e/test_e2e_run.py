"""S1: a program on a slice, as if it had been started directly."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, RealPool, Terminal, alive, eventually


@pytest.mark.parametrize("code", [0, 1, 3, 77, 255])
def test_exit_status_is_that_of_the_program(pool: RealPool, code: int) -> None:
    assert pool("run", "-p", "0.1", "--", "sh", "-c", f"exit {code}", ok=False).returncode == code


def test_program_killed_by_signal_has_status_128_plus_signal(pool: RealPool) -> None:
    assert pool("run", "-p", "0.1", "--", "sh", "-c", "kill -9 $$", ok=False).returncode == 137


@pytest.mark.parametrize(("command", "status"), [(["/no/such/program"], 127), (["/etc/passwd"], 126)])
def test_failed_start_is_reported(pool: RealPool, command: list[str], status: int) -> None:
    done = pool("run", "-p", "0.1", "--", *command, ok=False)
    assert done.returncode == status
    assert command[0].encode() in done.stderr
    assert pool.all_free()


def test_missing_working_directory_is_reported(pool: RealPool) -> None:
    done = pool("run", "-p", "0.1", "-w", "/no/such/folder", "--", "true", ok=False)
    assert done.returncode not in {0, 2}
    assert b"/no/such/folder" in done.stderr


def test_input_and_output_are_transferred_unchanged(pool: RealPool) -> None:
    data = os.urandom(700_000) + bytes(range(256))
    done = pool("run", "-p", "0.1", "--", "cat", stdin=data)
    assert done.stdout == data


def test_output_and_errors_are_separate(pool: RealPool) -> None:
    done = pool("run", "-q", "-p", "0.1", "--", "sh", "-c", "printf '\\000out\\377'; printf 'err\\r\\n' >&2")
    assert (done.stdout, done.stderr) == (b"\0out\xff", b"err\r\n")


def test_program_has_its_slice_folder_and_environment(pool: RealPool) -> None:
    script = "import os, json; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    env = {**pool.env, "MINE": "1"}
    done = pool("run", "-q", "-p", "0.25", "-e", "MORE=a b", "--", sys.executable, "-c", script, env=env)
    import json

    cwd, seen = json.loads(done.stdout)
    assert cwd == str(pool.work)
    assert (seen["MORE"], seen["MINE"]) == ("a b", "1")
    assert not [name for name in seen if "TOKEN" in name or name.startswith("RAY_")]


def test_program_on_a_terminal_has_a_terminal(pool: RealPool) -> None:
    terminal = Terminal(
        pool, "run", "-p", "0.1", "--", "sh", "-c", "test -t 0 && test -t 1 && stty size; read x; echo got $x; exit 4"
    )
    try:
        terminal.expect(b"30 100")
        terminal.send(b"words\r")
        terminal.expect(b"got words")
        assert terminal.wait() == 4
    finally:
        terminal.close()


def test_ctrl_c_on_a_terminal_reaches_the_program(pool: RealPool) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    terminal = Terminal(pool, "run", "-p", "0.1", "--", "sh", "-c", script)
    try:
        terminal.expect(b"ready")
        terminal.send(b"\x03")
        terminal.expect(b"caught")
        assert terminal.wait() == 9
    finally:
        terminal.close()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_client_reach_the_program(pool: RealPool, signum: signal.Signals) -> None:
    script = f"trap 'echo caught; exit 9' {signum.value}; echo ready; while :; do sleep 0.05; done"
    client = pool.begin("run", "-q", "-p", "0.1", "--", "sh", "-c", script)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    client.send_signal(signum)
    assert client.stdout.read() == b"caught\n"
    assert client.wait(PATIENCE_S) == 9


def test_killed_client_ends_program_and_frees_slice(pool: RealPool) -> None:
    client = pool.begin("run", "-q", "--grace", "1s", "-p", "0.1", "--", "sh", "-c", "echo $$; exec sleep 1000")
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    assert 900 in pool.free_permille()
    client.kill()
    client.wait()
    assert pool.all_free()
    assert eventually(lambda: not alive(pid))


def test_process_tree_ends_with_its_program(pool: RealPool) -> None:
    marks = pool.work / "tree"
    script = (
        f"(setsid sh -c 'echo $$ > {marks}; exec sleep 1000' &) ; while ! test -s {marks}; do sleep 0.05; done; exit 0"
    )
    pool("run", "-p", "0.1", "--", "sh", "-c", script)
    pid = int(marks.read_text())
    assert eventually(lambda: not alive(pid))
    assert pool.all_free()


def test_detached_program_continues_without_client(pool: RealPool) -> None:
    name = pool.text("run", "-d", "-p", "0.1", "--", "sh", "-c", "sleep 0.3; echo later").strip().splitlines()[-1]
    pool("wait", name)
    assert "later" in pool.text("logs", name)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-p", "0"], "INVALID_FRACTION"),
        (["-p", "1.5"], "INVALID_FRACTION"),
        (["-n", "-1"], "INVALID_COUNT"),
        (["-n", "9"], "IMPOSSIBLE_REQUEST"),
        (["--model", "h100"], "UNKNOWN_MODEL"),
        (["--project", "nobody"], "UNKNOWN_PROJECT"),
        (["--max-time", "soon"], "INVALID_DURATION"),
    ],
)
def test_impossible_requests_are_reported_in_one_sentence(pool: RealPool, words: list[str], code: str) -> None:
    done = pool("run", *words, "--", "true", ok=False)
    assert done.returncode in {2, 125}
    assert code.encode() in done.stderr
    assert done.stdout == b""


def test_twenty_slices_share_one_gpu(new_pool: RealPool) -> None:
    pool = new_pool  # placement learns from earlier requests, which other tests made in the shared pool
    gate = pool.work / "gate"
    script = f"echo ready; while ! test -e {gate}; do sleep 0.1; done"
    clients = [
        pool.begin("run", "-q", "--filter", "device.name=T4", "-p", "0.05", "--", "sh", "-c", script) for _ in range(20)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
    assert sorted(pool.free_permille()) == [0, 1000], "packed on one GPU"
    gate.touch()
    assert [client.wait(60) for client in clients] == [0] * 20
    assert pool.all_free()


def test_memory_request_is_a_slice_of_the_gpu(pool: RealPool) -> None:
    with pool.client as client:
        job = client.submit(["sleep", "100"], memory_mib=4096)
        job.wait_started(PATIENCE_S)
        assert sorted(pool.free_permille()) == [750, 1000]


def test_time_limit_ends_the_program(pool: RealPool) -> None:
    done = pool("run", "-p", "0.1", "--max-time", "1s", "--grace", "1s", "--", "sleep", "1000", ok=False)
    assert done.returncode != 0
    assert pool.all_free()


def test_unread_client_output_does_not_block_the_pool(pool: RealPool) -> None:
    client = pool.begin("run", "-q", "-p", "0.1", "--", "sh", "-c", "yes | head -c 20000000")
    assert pool.text("run", "-q", "-p", "0.1", "--", "echo", "fine") == "fine\n"
    assert client.stdout is not None
    assert len(client.stdout.read()) == 20_000_000
    assert client.wait(PATIENCE_S) == 0


def test_files_work_as_input_and_output(pool: RealPool) -> None:
    source, sink = pool.work / "source", pool.work / "sink"
    source.write_bytes(os.urandom(100_000))
    with source.open("rb") as reading, sink.open("wb") as writing:
        client = pool.begin("run", "-q", "-p", "0.1", "--", "cat", stdin=reading, stdout=writing)
        assert client.wait(PATIENCE_S) == 0
    assert Path(sink).read_bytes() == source.read_bytes()
