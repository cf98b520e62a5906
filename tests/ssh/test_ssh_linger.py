"""Processes that outlive their SSH session for the linger time: tmux, servers and nohup."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, Terminal, alive, eventually
from ssh_pool import ECHO, SshPool, connects, pid_in, random_bytes, written

from free_ports import free_port

pytestmark = pytest.mark.needs("ssh", "asyncssh")

LONG, SHORT, SHORT_S = "1h", "4s", 4


@pytest.fixture
def lingering(ssh_pool: SshPool, tmp_path: Path) -> Iterator[Callable[[str], list[str]]]:
    """Return the words of ssh with a linger time; end all sessions afterwards."""

    def words(linger: str) -> list[str]:
        text = ssh_pool.config.with_name("gpupool.config").read_text()
        changed = tmp_path / f"config-{linger}"
        changed.write_text(text.replace("ssh-proxy %n", f"ssh-proxy --linger {linger} %n"))
        return ["ssh", "-F", str(changed), "-o", "LogLevel=ERROR"]

    yield words
    for session in ssh_pool.sessions():
        ssh_pool.pool("stop", session, "--force", ok=False)
    assert eventually(lambda: not ssh_pool.sessions())


def run(pool: SshPool, words: list[str]) -> subprocess.CompletedProcess[bytes]:
    options = {"cwd": pool.pool.work, "env": pool.pool.env, "timeout": PATIENCE_S}
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, **options)


@pytest.mark.needs("tmux")
def test_tmux_is_found_again_after_a_killed_client(
    ssh_pool: SshPool, lingering: Callable[[str], list[str]], tmp_path: Path
) -> None:
    socket, pid_file = tmp_path / "tmux", tmp_path / "pid"
    tmux = f"TERM=xterm tmux -S {socket} -f /dev/null new-session -A -s main"
    listing = f"tmux -S {socket} list-sessions"
    terminal = Terminal(ssh_pool.pool, "ssh", "--linger", LONG, "dev", "-t", "--", tmux)
    try:
        assert eventually(lambda: b"main:" in run(ssh_pool, [*lingering(LONG), "gpupool.dev", listing]).stdout)
        terminal.send(f"echo $$ > {pid_file}\n".encode())
        shell = pid_in(pid_file)
    finally:
        os.kill(terminal.process.pid, signal.SIGKILL)
        terminal.close()
    found = run(ssh_pool, [*lingering(LONG), "gpupool.dev", listing])
    assert found.stdout.startswith(b"main:"), found.stderr
    assert alive(shell)
    again = Terminal(ssh_pool.pool, "ssh", "--linger", LONG, "dev", "-t", "--", tmux)
    try:
        again.send(b"echo sa''me $$\n")
        again.expect(f"same {shell}".encode())
        again.send(b"exit\n")
        assert again.wait() == 0
    finally:
        again.close()
    assert eventually(lambda: not alive(shell))
    assert eventually(lambda: not ssh_pool.sessions())


def test_server_outlives_its_session_and_ends_after_the_linger_time(
    ssh_pool: SshPool, lingering: Callable[[str], list[str]], tmp_path: Path
) -> None:
    port_file, pid_file, local = tmp_path / "port", tmp_path / "pid", free_port()
    server = f"setsid -f sh -c 'echo $$ > {pid_file}; exec python3 -c \"$0\" {port_file}' '{ECHO}'"
    start = [*lingering(SHORT), "gpupool.dev", f"{server} > /dev/null 2>&1; read line; exit 3"]
    options = {"cwd": ssh_pool.pool.work, "env": ssh_pool.pool.env}
    with subprocess.Popen(start, stdin=subprocess.PIPE, **options) as session:
        words = [*lingering(SHORT), "-N", "-L", f"{local}:localhost:{written(port_file)}", "gpupool.dev"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, **options) as tunnel:
            try:
                with connects(local) as near:
                    assert echoed(near)
                    session.communicate(b"end\n", timeout=PATIENCE_S)
                    assert session.returncode == 3
                    time.sleep(SHORT_S)  # without a client, the server would be gone
                    assert echoed(near)
            finally:
                tunnel.kill()
    pid = pid_in(pid_file)
    assert eventually(lambda: not alive(pid))
    assert eventually(lambda: not ssh_pool.sessions())


def echoed(near: socket.socket) -> bool:
    """Return True if the server at the other end returns what is sent; False if it is gone."""
    data, got = random_bytes(1000), b""
    near.sendall(data)
    while len(got) < len(data):
        part = near.recv(65536)
        if not part:
            return False
        got += part
    return got == data


@pytest.mark.parametrize("linger", [None, LONG])
def test_background_processes_end_with_the_workload_or_with_the_session(
    ssh_pool: SshPool, lingering: Callable[[str], list[str]], tmp_path: Path, linger: str | None
) -> None:
    name = "bound" if linger is None else "lingers"
    ssh_pool.begin_workload(name)
    pids = [tmp_path / "nohup", tmp_path / "setsid"]
    command = (
        f"nohup sh -c 'echo $$ > {pids[0]}; exec sleep 1000' > /dev/null 2>&1 & "
        f"setsid -f sh -c 'echo $$ > {pids[1]}; exec sleep 1000' > /dev/null 2>&1; "
        f"while ! [ -s {pids[0]} -a -s {pids[1]} ]; do sleep 0.05; done"
    )
    words = ssh_pool.words("ssh") if linger is None else lingering(linger)
    assert run(ssh_pool, [*words, f"gpupool.{name}", command]).returncode == 0
    programs = [pid_in(path) for path in pids]
    if linger is None:
        assert eventually(lambda: not any(map(alive, programs)))
    else:
        assert all(map(alive, programs))
        assert ssh_pool.sessions()
    ssh_pool.pool("stop", name)
    assert eventually(lambda: not any(map(alive, programs)))
    assert eventually(lambda: not ssh_pool.sessions())


def test_programs_of_the_session_are_hung_up(
    ssh_pool: SshPool, lingering: Callable[[str], list[str]], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    words = [*lingering(LONG), "gpupool.dev", f"echo $$ > {pid_file}; exec sleep 1000"]
    options = {"cwd": ssh_pool.pool.work, "env": ssh_pool.pool.env}
    with subprocess.Popen(words, stdin=subprocess.PIPE, **options) as ssh:
        try:
            program = pid_in(pid_file)
        finally:
            ssh.kill()
    assert eventually(lambda: not alive(program))
    assert eventually(lambda: not ssh_pool.sessions())


def test_times_are_configured_and_checked(ssh_pool: SshPool, tmp_path: Path) -> None:
    env = {**ssh_pool.pool.env, "HOME": str(tmp_path)}
    ssh_pool.pool("ssh", "--configure", "--linger", "2h", "--idle-timeout", "30m", env=env)
    text = (tmp_path / ".ssh" / "gpupool.config").read_text()
    assert re.search(r"ProxyCommand \S+ ssh-proxy --linger 2h --idle-timeout 30m %n", text)
    for option in ("--linger", "--idle-timeout"):
        refused = ssh_pool.pool("ssh", option, "soon", "dev", ok=False)
        assert refused.returncode == 125
        assert b"soon" in refused.stderr
