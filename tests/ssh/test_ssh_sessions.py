"""The SSH programs of the system in workloads of a real pool."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from e2e_pool import COMMAND, PATIENCE_S, Terminal, alive, eventually
from ssh_pool import ECHO, HALF_CLOSER, SshPool, connects, pid_in, random_bytes, written

from free_ports import free_port

pytestmark = pytest.mark.needs("ssh", "asyncssh")

MIB_20 = 20 << 20


def test_command_has_its_exit_status_streams_and_gpus(ssh_pool: SshPool) -> None:
    done = ssh_pool.ssh("cat; echo error >&2; echo $GPUPOOL_GPU_SHARE; exit 7", stdin=b"input\n")
    assert done.returncode == 7
    assert done.stdout == b"input\n0.10\n"
    assert done.stderr == b"error\n"


def test_signals_of_a_program_are_reported(ssh_pool: SshPool) -> None:
    assert ssh_pool.ssh("kill -TERM $$").returncode == 255  # ssh's status for a signal


def test_20_mb_arrive_in_both_directions(ssh_pool: SshPool) -> None:
    data = random_bytes(MIB_20)
    target = ssh_pool.pool.work / "up"
    assert ssh_pool.ssh(f"cat > {target}", stdin=data).returncode == 0
    assert target.read_bytes() == data
    assert ssh_pool.ssh(f"cat {target}").stdout == data
    target.unlink()


def test_terminal_follows_the_size_of_the_client(ssh_pool: SshPool) -> None:
    import fcntl
    import struct
    import termios

    terminal = Terminal(ssh_pool.pool, "ssh", "dev", "-t", "--", "sh", rows=33, columns=101)
    try:
        terminal.send(b"stty size\n")
        terminal.expect(b"33 101")
        fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 77, 0, 0))
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.send(b"while [ \"$(stty size)\" != '44 77' ]; do sleep 0.1; done; echo re''sized; tty\n")
        terminal.expect(b"resized")
        terminal.expect(b"/dev/pts/")
        terminal.send(b"trap \"echo inter''rupted; exit 5\" INT; echo loo''ping; while :; do sleep 0.1; done\n")
        terminal.expect(b"looping")
        terminal.send(b"\x03")
        terminal.expect(b"interrupted")
        assert terminal.wait() == 5
    finally:
        terminal.close()


def test_shell_is_the_login_shell(ssh_pool: SshPool) -> None:
    done = ssh_pool.run("ssh", "-T", "gpupool.dev", stdin=b"echo $0 $HOME\nexit 4\n")
    assert done.returncode == 4
    assert done.stdout.startswith(b"-") or b"/" in done.stdout


def test_session_of_a_workspace_starts_in_its_home(ssh_pool: SshPool, tmp_path: Path) -> None:
    pool = ssh_pool.pool
    pool("workspace", "create", "bob", "-n", "0")
    pool("workspace", "start", "bob")
    try:
        tmp_path.joinpath("sent").write_bytes(b"data")
        up = ssh_pool.run("scp", str(tmp_path / "sent"), "gpupool.bob:copied")
        assert up.returncode == 0, up.stderr
        found = ssh_pool.run("ssh", "gpupool.bob", "pwd; echo $HOME $GPUPOOL_WORKSPACE_HOME; cat ~/copied")
        assert found.returncode == 0, found.stderr
        home, *rest = found.stdout.decode().split()
        assert rest == [home, home, "data"]
        assert Path(home, "copied").read_bytes() == b"data"
        assert Path(home).parents[1] == pool.state / "workspaces"
    finally:
        pool("workspace", "stop", "bob", "--force")
        with pool.client as client:
            assert eventually(lambda: client.workspace("bob").state == "stopped")
        pool("workspace", "delete", "bob", "--yes")


def test_variables_of_the_client_are_filtered(ssh_pool: SshPool) -> None:
    words = ("-o", "SetEnv=LC_TEST=yes GPUPOOL_GPU_SHARE=1 LD_LIBRARY_PATH=/evil CUDA_VISIBLE_DEVICES=9")
    shown = ssh_pool.run("ssh", *words, "gpupool.dev", "env").stdout.decode()
    assert "LC_TEST=yes" in shown
    assert "GPUPOOL_GPU_SHARE=0.10" in shown
    assert "/evil" not in shown
    assert "CUDA_VISIBLE_DEVICES=9" not in shown


@pytest.mark.parametrize("mode", ["sftp", "scp"])
def test_files_are_copied_in_both_directions(ssh_pool: SshPool, tmp_path: Path, mode: str) -> None:
    data = random_bytes(MIB_20 if mode == "sftp" else 1 << 20)
    tmp_path.joinpath("sent").write_bytes(data)
    remote = ssh_pool.pool.work / {"sftp": "name with ä", "scp": "name"}[mode]
    old = ["-O"] if mode == "scp" else []  # the protocol from before SFTP
    there = f"gpupool.dev:{remote}"
    up = ssh_pool.run("scp", *old, "-p", str(tmp_path / "sent"), there)
    assert up.returncode == 0, up.stderr
    assert remote.read_bytes() == data
    down = ssh_pool.run("scp", *old, there, str(tmp_path / "got"))
    assert down.returncode == 0, down.stderr
    assert (tmp_path / "got").read_bytes() == data
    remote.unlink()


def test_sftp_lists_renames_and_deletes(ssh_pool: SshPool, tmp_path: Path) -> None:
    folder = ssh_pool.pool.work / "tree"
    (tmp_path / "local").write_bytes(b"content")
    steps = [
        f"mkdir {folder}",
        f"cd {folder}",
        f"put {tmp_path / 'local'} first",
        "chmod 640 first",
        "rename first second",
        "symlink second link",
        "ls -l",
        "pwd",
        f"get second {tmp_path / 'back'}",
        "rm link",
        "-get missing",
        "mkdir inner",
        "rmdir inner",
    ]
    done = ssh_pool.run("sftp", "-b", "-", "gpupool.dev", stdin="\n".join(steps).encode())
    assert done.returncode == 0, done.stderr
    assert b"second" in done.stdout
    assert b"-rw-r-----" in done.stdout
    assert (tmp_path / "back").read_bytes() == b"content"
    assert [path.name for path in folder.iterdir()] == ["second"]
    shutil.rmtree(folder)


@pytest.mark.needs("rsync")
def test_rsync_copies_changes(ssh_pool: SshPool, tmp_path: Path) -> None:
    source, target = tmp_path / "source", ssh_pool.pool.work / "synced"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "file").write_bytes(random_bytes(100_000))
    words = ["rsync", "-a", "--delete", "-e", f"ssh -F {ssh_pool.config}", f"{source}/", f"gpupool.dev:{target}/"]
    for content in (b"first", b"changed"):  # rsync takes files of equal size and second for unchanged
        (source / "changed").write_bytes(content)
        done = subprocess.run(words, env=ssh_pool.pool.env, capture_output=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert (target / "changed").read_bytes() == content
    assert (target / "inner" / "file").read_bytes() == (source / "inner" / "file").read_bytes()


def test_port_of_the_workload_is_forwarded(ssh_pool: SshPool, tmp_path: Path) -> None:
    port_file, local, other = ssh_pool.pool.work / "port", free_port(), free_port()
    # The program that listens is a session of its own: it shares the GPUs, so its port belongs to the workload.
    with ssh_pool.connected("gpupool.dev", f"exec python3 -c '{ECHO}' {port_file}"):
        forward = f"{local}:localhost:{written(port_file)}"
        with ssh_pool.connected("-N", "-L", forward, "-L", f"{other}:example.com:80", "gpupool.dev") as ssh:
            data = random_bytes(300_000)
            for _ in range(2):
                with connects(local) as near:
                    near.sendall(data)
                    got = b""
                    while len(got) < len(data):
                        got += near.recv(65536)
                assert got == data
            with connects(other) as near, contextlib.suppress(ConnectionResetError):
                assert near.recv(10) == b""
            ssh.terminate()
            assert b"example.com:80 cannot be reached: only localhost" in ssh.communicate(timeout=PATIENCE_S)[1]


def everything_from(near: socket.socket) -> bytes:
    near.settimeout(PATIENCE_S)
    return b"".join(iter(lambda: near.recv(65536), b""))


@pytest.mark.parametrize("carrier", ["ssh -L", "gpupool forward"])
def test_each_direction_of_a_port_ends_on_its_own(ssh_pool: SshPool, tmp_path: Path, carrier: str) -> None:
    port_file, received, local, data = tmp_path / "port", tmp_path / "received", free_port(), random_bytes(3_000_000)
    program = f"exec python3 -c '{HALF_CLOSER}' {port_file} {received}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(ssh_pool.connected("gpupool.dev", program))
        far = written(port_file)
        if carrier == "ssh -L":
            stack.enter_context(ssh_pool.connected("-N", "-L", f"{local}:localhost:{far}", "gpupool.dev"))
        else:
            forward = ssh_pool.pool.begin("forward", "dev", f"{local}:{far}")
            stack.callback(forward.communicate)
            stack.callback(forward.kill)
        with connects(local) as near:
            near.sendall(b"c" + data)
            near.shutdown(socket.SHUT_WR)
            assert everything_from(near) == data[::-1]
        with connects(local) as near:
            near.sendall(b"s")
            assert everything_from(near) == b"the end"
            near.sendall(data)
            near.shutdown(socket.SHUT_WR)
            assert eventually(received.exists)
            assert received.read_bytes() == data


def test_port_without_listener_is_refused(ssh_pool: SshPool) -> None:
    local = free_port()
    with ssh_pool.connected("-N", "-L", f"{local}:localhost:1", "gpupool.dev") as ssh:
        with connects(local) as near, contextlib.suppress(ConnectionResetError):
            assert near.recv(10) == b""
        ssh.terminate()
        assert b"listens on port 1" in ssh.communicate(timeout=PATIENCE_S)[1]


def test_remote_agent_and_x11_forwarding_are_refused(ssh_pool: SshPool) -> None:
    words = ("-A", "-X", "-R", f"{free_port()}:localhost:22", "-o", "LogLevel=INFO")
    done = ssh_pool.run("ssh", *words, "gpupool.dev", "echo agent=$SSH_AUTH_SOCK display=$DISPLAY")
    assert done.stdout == b"agent= display=\n"
    assert b"Remote forwarding (-R) is not supported" in done.stderr
    assert ssh_pool.run("ssh", "-s", "gpupool.dev", "netconf").returncode != 0


def test_connection_is_shared_by_sessions(ssh_pool: SshPool, tmp_path: Path) -> None:
    path = ssh_pool.pool.folder / "cm"
    shared = ("-o", f"ControlPath={path}", "gpupool.dev")
    with ssh_pool.connected("-M", "-N", *shared) as master:
        assert eventually(path.exists)
        runs = [ssh_pool.begin(*shared, f"cat; exit {number}") for number in range(5)]
        for number, process in enumerate(runs):
            assert process.communicate(b"%d" % number, timeout=PATIENCE_S)[0] == b"%d" % number
            assert process.returncode == number
        assert ssh_pool.run("ssh", "-O", "exit", *shared).returncode == 0
        assert master.wait(PATIENCE_S) in {0, 255}


@pytest.mark.parametrize("victim", ["ssh", "proxy"])
def test_program_ends_with_a_killed_client(ssh_pool: SshPool, victim: str) -> None:
    pid_file = ssh_pool.pool.work / f"pid-{victim}"
    with ssh_pool.connected("gpupool.dev", f"echo $$ > {pid_file}; exec sleep 1000") as ssh:
        program = pid_in(pid_file)
        children = Path(f"/proc/{ssh.pid}/task/{ssh.pid}/children").read_text().split()
        os.kill(ssh.pid if victim == "ssh" else int(children[0]), signal.SIGKILL)
        assert eventually(lambda: not alive(program))
        assert eventually(lambda: not ssh_pool.sessions())


def test_session_ends_with_its_workload(ssh_pool: SshPool) -> None:
    ssh_pool.begin_workload("brief")
    pid_file = ssh_pool.pool.work / "pid-brief"
    with ssh_pool.connected("gpupool.brief", f"echo $$ > {pid_file}; exec sleep 1000") as ssh:
        program = pid_in(pid_file)
        ssh_pool.pool("stop", "brief")
        _, errors = ssh.communicate(timeout=PATIENCE_S)
        assert ssh.returncode not in {0, None}
        assert b"gpupool: " in errors
        assert not alive(program)
    done = ssh_pool.run("ssh", "gpupool.brief", "true")
    assert done.returncode == 255
    assert b"brief is stopped, not running" in done.stderr


def test_replicas_are_separate_hosts(ssh_pool: SshPool) -> None:
    ssh_pool.pool("submit", "many", "-p", "0.1", "--completions", "2", "--", "sleep", "100000")
    assert ssh_pool.pool.becomes("many", "running")
    done = ssh_pool.run("ssh", "gpupool.many.5", "true")
    assert b"many has no replica 5; it has 2" in done.stderr
    found = [ssh_pool.run("ssh", f"gpupool.many.{number}", "echo $GPUPOOL_LEASE_DIR").stdout for number in (0, 1)]
    assert found[0] != found[1]
    ssh_pool.pool("stop", "many")


def test_unknown_workload_is_named(ssh_pool: SshPool) -> None:
    done = ssh_pool.run("ssh", "gpupool.nothing.3", "true")
    assert done.returncode == 255
    assert b"There is no workload 'nothing'" in done.stderr


def test_missing_extra_is_explained(ssh_pool: SshPool, tmp_path: Path) -> None:
    (tmp_path / "asyncssh.py").write_text("raise ModuleNotFoundError('asyncssh')")
    done = ssh_pool.pool("ssh-proxy", "gpupool.dev", ok=False, env={**ssh_pool.pool.env, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 125
    assert re.search(r"-m pip install 'gpupool\[ssh\]'", done.stderr.decode())


def test_configuration_keeps_the_file_of_the_user(ssh_pool: SshPool, tmp_path: Path) -> None:
    env = {**ssh_pool.pool.env, "HOME": str(tmp_path)}
    real = tmp_path / "dotfiles"
    real.mkdir()
    mine = b"# mine\nHost *\n  User me\n  Compression yes"
    (real / "config").write_bytes(mine)
    (real / "config").chmod(0o644)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "config").symlink_to(real / "config")
    for _ in range(2):
        ssh_pool.pool("ssh", "--configure", env=env)
    config, block = tmp_path / ".ssh" / "config", tmp_path / ".ssh" / "gpupool.config"
    assert config.is_symlink()
    assert config.read_bytes() == f'Include "{block}"\n\n'.encode() + mine
    assert config.stat().st_mode & 0o777 == 0o644
    key = tmp_path / ".config" / "gpupool" / "ssh_host_key"
    for private in (block, key):
        assert private.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    ssh_pool.pool("ssh", "--configure", env=env)
    assert key.read_bytes() == before
    words = ["ssh", "-G", "-F", str(config), "gpupool.dev"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    assert f"proxycommand {COMMAND} ssh-proxy %n" in shown
    assert "user me" in shown
    other = subprocess.run([*words[:-1], "elsewhere"], capture_output=True, text=True, check=True).stdout
    assert "ssh-proxy" not in other
