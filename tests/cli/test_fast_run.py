"""`gpupool run` without a terminal: bytes, signals, exit statuses, and what happens when something goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cli_fake_pool import COMMAND, FakePool

from gpupool.client.transport import http


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def start(pool: FakePool, *args: str, **more: Any) -> subprocess.Popen[bytes]:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen([*COMMAND, *args], bufsize=0, env=pool.env, **streams)


def shepherd_of(pool: FakePool) -> Any:
    wait_until(lambda: pool.shepherds and next(iter(pool.shepherds.values())).process)
    return next(iter(pool.shepherds.values()))


def test_output_input_and_status_are_passed_unchanged(pool: FakePool, gpupool: Any) -> None:
    data = bytes(range(256)) * 4000
    script = (
        "import sys; d=sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stderr.buffer.write(d[:9]); sys.exit(7)"
    )
    done = gpupool("run", "-p", "0.1", "--", sys.executable, "-c", script, input=data)
    assert done.stdout == data
    assert done.stderr == data[:9]
    assert done.returncode == 7
    body = pool.submitted()
    assert body["gpus"] == {"fraction": "0.1"}
    assert body["kind"] == "run"
    assert body["client_bound"] is True
    assert body["tty"] is False


def test_killing_signal_gives_status_128_plus_number(gpupool: Any) -> None:
    assert gpupool("run", "--", "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize(("command", "status"), [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_failed_start_has_status_and_message(gpupool: Any, command: str, status: int) -> None:
    done = gpupool("run", "--", command)
    assert done.returncode == status
    assert command.encode() in done.stderr


def test_environment_and_folder_are_sent_without_secrets(pool: FakePool, gpupool: Any, tmp_path: Any) -> None:
    done = gpupool(
        "run",
        "-e",
        "B=2",
        "--",
        "sh",
        "-c",
        "echo $A $B; pwd",
        env={"A": "1", "GPUPOOL_TOKEN": "gpt_x_y"},
        cwd=tmp_path,
    )
    assert done.stdout.decode().split() == ["1", "2", str(tmp_path)]
    assert "GPUPOOL_TOKEN" not in pool.submitted()["env"]


def test_signals_reach_the_program(pool: FakePool) -> None:
    script = "trap 'echo got; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    client = start(pool, "run", "--", "sh", "-c", script)
    assert client.stdout
    assert client.stdout.readline() == b"ready\n"
    client.send_signal(signal.SIGINT)
    assert client.stdout.read() == b"got\n"
    assert client.wait(20) == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_are_passed_on(pool: FakePool, number: signal.Signals) -> None:
    client = start(pool, "run", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert client.stdout
    client.stdout.readline()
    client.send_signal(number)
    assert client.wait(20) == 128 + number
    assert shepherd_of(pool).signals == [number]
    client.communicate()


def test_full_disk_ends_client_with_the_reason(pool: FakePool) -> None:
    with Path("/dev/full").open("wb") as full:
        client = start(pool, "run", "--", "yes", stdout=full)
        _, said = client.communicate(timeout=20)
    assert client.returncode == 141
    assert b"the output cannot be written (No space left on device)" in said


def test_closed_output_ends_client_like_sigpipe(pool: FakePool) -> None:
    client = start(pool, "run", "--", "yes")
    assert client.stdout
    client.stdout.read(10)
    client.stdout.close()
    assert client.wait(20) == 141
    wait_until(lambda: shepherd_of(pool).process.poll() is not None)


def test_slow_reader_blocks_the_program(pool: FakePool) -> None:
    client = start(pool, "run", "--", "sh", "-c", "head -c 20000000 /dev/zero")
    assert client.stdout
    first = client.stdout.read(1)
    rest = client.stdout.read()
    assert len(first + rest) == 20_000_000
    assert client.wait(20) == 0


def test_closed_descriptors_are_harmless(pool: FakePool) -> None:
    command = " ".join([*COMMAND, "run", "--", "sh", "-c", "'cat; exit 3'"])
    done = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], env=pool.env, timeout=60, check=False)
    assert done.returncode == 3


def test_queued_program_shows_reason_and_starts_later(pool: FakePool) -> None:
    pool.queue_all = True
    client = start(pool, "run", "--", "echo", "hello")
    assert client.stderr
    line = client.stderr.readline()
    assert b"position 3" in line
    assert b"0.30 is free" in line
    assert b"4m00s" in line
    pool.start("w0000000000")
    out, err = client.communicate(timeout=20)
    assert (out, client.returncode) == (b"hello\n", 0)
    assert err == b""


def test_ctrl_c_while_queued_cancels(pool: FakePool) -> None:
    pool.queue_all = True
    client = start(pool, "run", "--", "true")
    assert client.stderr
    client.stderr.readline()
    client.send_signal(signal.SIGINT)
    assert client.wait(20) == 130
    assert ("POST", "/v1/workloads/w0000000000/stop", {}) in pool.requests
    client.communicate()


def test_control_plane_restart_while_queued_is_transparent(pool: FakePool) -> None:
    pool.queue_all = True
    client = start(pool, "run", "--", "echo", "still")
    assert client.stderr
    client.stderr.readline()
    pool.down()
    threading.Timer(0.5, pool.up).start()
    wait_until(lambda: sum(path.endswith("/wait") for _, path, _ in pool.requests) >= 1)
    pool.start("w0000000000")
    out, _ = client.communicate(timeout=30)
    assert out == b"still\n"
    assert len(pool.workloads) == 1


@pytest.mark.parametrize("code", ["DATABASE_UNREACHABLE", "NOT_LEADING", "POOL_STARTING"])
def test_temporarily_unavailable_pool_is_retried(pool: FakePool, code: str) -> None:
    pool.refuse = {"status": 503, "code": code, "message": "The database does not answer.", "hint": ""}
    client = start(pool, "run", "--", "echo", "still")
    wait_until(lambda: len(pool.requests) >= 2)
    pool.refuse = None
    out, _ = client.communicate(timeout=30)
    assert (out, client.returncode) == (b"still\n", 0)
    assert len(pool.workloads) == 1


def test_lost_shepherd_is_reported(pool: FakePool) -> None:
    client = start(pool, "run", "--", "sleep", "60")
    shepherd = shepherd_of(pool)
    pool.finish("w0000000000", 137, "SHEPHERD_LOST", "The process that supervised it was killed.")
    shepherd.vanish.set()
    _, err = client.communicate(timeout=20)
    assert client.returncode == 137
    assert b"SHEPHERD_LOST" in err


def test_refusal_shows_message_code_and_hint(pool: FakePool, gpupool: Any) -> None:
    pool.refuse = {
        "code": "IMPOSSIBLE_REQUEST",
        "message": "No node has 9 GPUs.",
        "hint": "Ask for 4 or fewer.",
        "status": 422,
    }
    done = gpupool("run", "-n", "9", "--", "true")
    assert done.returncode == 125
    assert done.stderr.decode() == "gpupool: No node has 9 GPUs. [IMPOSSIBLE_REQUEST]\n  Ask for 4 or fewer.\n"


def test_expired_queue_time_limit_returns_its_status(pool: FakePool) -> None:
    pool.queue_all = True
    client = start(pool, "run", "--wait", "1s", "--", "true")
    wait_until(lambda: pool.workloads)
    pool.finish("w0000000000", None, "WAIT_EXPIRED", "It waited longer than 1s.")
    _, err = client.communicate(timeout=20)
    assert client.returncode == 125
    assert b"It waited longer than 1s [WAIT_EXPIRED]" in err


def test_quiet_detached_run_prints_only_the_id(pool: FakePool, gpupool: Any) -> None:
    done = gpupool("run", "-d", "-q", "--", "sleep", "60")
    assert done.stdout
    assert done.stderr == b""


def test_detach_prints_the_id_and_exits(pool: FakePool, gpupool: Any) -> None:
    done = gpupool("run", "-d", "--name", "night", "--", "sleep", "60")
    assert done.stdout == b"w0000000000\n"
    assert done.returncode == 0
    assert "client_bound" not in pool.submitted()


def test_fast_path_imports_no_heavy_modules(pool: FakePool) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gpupool", "run", "-p", "0.5", "--", "true"]
    done = subprocess.run(command, env=pool.env, capture_output=True, timeout=60, check=True, input=b"")
    imported = {
        line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines() if b"import time:" in line
    }
    heavy = {
        "typing",
        "dataclasses",
        "socket",
        "asyncio",
        "subprocess",
        "typer",
        "rich",
        "pydantic",
        "httpx2",
        "argparse",
    }
    heavy |= {"http", "email", "selectors", "logging", "inspect", "gpupool.domain.errors", "pathlib", "shlex"}
    assert not (imported - BY_GPUPOOL_ITSELF) & heavy
    assert "gpupool.cli.fast.attach_io" in imported


BY_GPUPOOL_ITSELF = {"typing", "runpy", "pkgutil"}  # `python -m` and the package's own __init__


def test_truncated_or_invalid_answer_is_an_error() -> None:
    assert http.parse_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[1]", ended=False) is None
    with pytest.raises(ConnectionAbortedError):
        http.parse_answer(b"SSH-2.0-OpenSSH\r\n\r\n", ended=True)


def test_chunked_answers_are_read() -> None:
    answer = http.parse_answer(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n", ended=False
    )
    assert answer
    assert answer.body == [1, 2]
    assert answer.ok


def test_empty_answer_has_no_body() -> None:
    answer = http.parse_answer(b"HTTP/1.1 204 No Content\r\n\r\n", ended=True)
    assert answer
    assert answer.body is None


def test_quoted_command_line_is_one_string(pool: FakePool, gpupool: Any) -> None:
    assert gpupool("run", "-n", "1", "echo 'a b' c").stdout == b"a b c\n"
    assert os.environ.get("PATH")
