"""SSH sessions and forwarded ports of a real pool count as activity while they carry bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from e2e_pool import COMMAND, eventually
from ssh_pool import ECHO, SshPool, connects, written

from free_ports import free_port

pytestmark = pytest.mark.needs("ssh", "asyncssh")

IDLE = "--idle-timeout", "25s"


def test_silent_connections_end_at_the_idle_limit_and_carried_bytes_prevent_it(ssh_pool: SshPool) -> None:
    pool, port_file, local = ssh_pool.pool, ssh_pool.pool.work / "idle-port", free_port()
    for name in ("typed", "forwarded", "silent"):
        program = ("python3", "-c", ECHO, str(port_file)) if name == "forwarded" else ("sleep", "100000")
        ssh_pool.begin_workload(name, *IDLE, "--", *program)
    forward = f"{local}:localhost:{written(port_file)}"
    with (
        ssh_pool.connected("gpupool.typed", "cat") as typed,
        ssh_pool.connected("gpupool.silent", "cat") as silent,
        ssh_pool.connected("-N", "-L", forward, "gpupool.forwarded"),
        closing(connects(local)) as near,
        pool.client as client,
    ):
        assert typed.stdin is not None
        assert typed.stdout is not None
        assert silent.stdin is not None
        assert silent.stdout is not None
        silent.stdin.write(b"here")  # so that it is a session before the limit begins
        silent.stdin.flush()
        assert silent.stdout.read(4) == b"here"
        stdin, stdout = typed.stdin, typed.stdout

        def use() -> None:
            stdin.write(b"x")
            stdin.flush()
            assert stdout.read(1) == b"x"
            near.sendall(b"y")
            assert near.recv(1) == b"y"

        assert eventually(_using(use, lambda: client.get("silent").done()), 120, pause_s=0.3)
        reasons = [event["message"] for event in pool.json("events", "silent")["events"]]
        assert any("idle for" in reason and "the limit is 25s" in reason for reason in reasons), reasons
        assert pool.state_of("typed") == "running"
        assert pool.state_of("forwarded") == "running"
        for name in ("typed", "forwarded"):
            pool("stop", name, "--force")


def test_idle_session_ends_and_its_workload_runs_on(ssh_pool: SshPool) -> None:
    words = ssh_pool.words("ssh", "-o", f"ProxyCommand={COMMAND} ssh-proxy --idle-timeout 3s %n")
    idle = ssh_pool.run_plain(*words, "gpupool.dev", "sleep 100000", stdin=b"")
    assert idle.returncode != 0
    assert b"idle for" in idle.stderr, idle.stderr
    assert eventually(lambda: not ssh_pool.sessions())
    assert ssh_pool.pool.state_of("dev") == "running"


def _using(use: Callable[[], None], condition: Callable[[], bool]) -> Callable[[], bool]:
    def check() -> bool:
        use()
        return condition()

    return check
