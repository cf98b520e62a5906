"""Two control planes of one database and one node: one leads, the other takes over, nothing is lost or run twice."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from databases import PostgresServer
from e2e_pool import RealPool, eventually

from free_ports import free_port
from gpupool.client.discovery import Location
from gpupool.daemon.local_api import WAITING, health

JOB = 'echo $$ >> "$HOME/starts"; until [ -e "$HOME/end" ]; do sleep 0.1; done; echo done'


class Pair:
    """Two pools on one database: ``first`` has the node; ``second`` is a control plane that reaches the same node."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.first, self.second = (self._make(name, url) for name in ("first", "second"))

    def _make(self, name: str, url: str) -> RealPool:
        (self.folder / name).mkdir()
        pool = RealPool(self.folder / name, "2xT4")
        pool.home.chmod(0o777)
        for made, shared in ((pool.state, 0o711), (pool.run, 0o755)):
            made.mkdir()
            made.chmod(shared if os.geteuid() == 0 else 0o700)
        options = {"database": url, "dashboard": f"127.0.0.1:{free_port()}", "node_name": "gpu1"}
        if name == "second":
            options["commands"] = {"agent": ["sleep", "infinity"]}
            (pool.run / "agent.sock").symlink_to(self.folder / "first" / "run" / "agent.sock")
        (pool.state / "config.json").write_text(json.dumps(options))
        return pool

    def standing(self, pool: RealPool) -> str:
        done = pool("health", "--json", ok=False)
        return "leads" if done.returncode == 0 else "waits" if b"NOT_LEADING" in done.stderr else "away"

    def leads(self, pool: RealPool) -> bool:
        return eventually(lambda: self.standing(pool) == "leads")

    def waits(self, pool: RealPool) -> bool:
        return eventually(lambda: self.standing(pool) == "waits")

    def address(self, pool: RealPool) -> str:
        """Return the address of its dashboard."""
        return "http://" + json.loads((pool.state / "config.json").read_text())["dashboard"]

    def starts(self) -> list[str]:
        return (self.first.home / "starts").read_text().split()


@pytest.fixture(scope="module")
def pair(server: PostgresServer) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="gp-pair-") as name:
        Path(name).chmod(0o755)
        made = Pair(Path(name), server.fresh())
        try:
            made.first.up()
            made.second.up()
            yield made
        finally:
            for pool in (made.second, made.first):
                pool("down", "--stop-jobs", ok=False)  # refused where it waits
            for pool in (made.second, made.first):
                pool("down")


def supervisor(pool: RealPool) -> int:
    return int(json.loads((pool.run / "state.json").read_text())["pid"])


def test_standby_names_the_leader(pair: Pair) -> None:
    assert pair.leads(pair.first)
    assert pair.waits(pair.second)
    done = pair.second("submit", "j", "--", "true", ok=False)
    assert done.returncode == 125
    assert f"pid {pair.first.pids()['control-plane']}".encode() in done.stderr
    assert b"NOT_LEADING" in done.stderr
    place = Location(str(pair.second.state), str(pair.second.run), "system")
    assert health(place)["status"] == WAITING
    status = pair.second("status", ok=False).stdout.decode()
    assert "control-plane: running" in status


def test_work_continues_under_new_leader(pair: Pair) -> None:
    first, second = pair.first, pair.second
    first("submit", "long", "-n", "1", "--env", f"HOME={first.home}", "--", "sh", "-c", JOB)
    assert first.becomes("long", "running")
    browser = httpx2.Client()
    assert browser.get(first.json("dashboard")["url"]).status_code == 303
    os.kill(supervisor(first), signal.SIGSTOP)  # nobody starts its control plane again for now
    try:
        os.kill(first.pids()["control-plane"], signal.SIGKILL)
        assert pair.leads(second)
        assert second.becomes("long", "running")
        assert "long" in browser.get(f"{pair.address(second)}/workloads").text, "signed in at one, known to the other"
        assert eventually(lambda: sorted(second.free_permille()) == [0, 1000])
    finally:
        os.kill(supervisor(first), signal.SIGCONT)
    assert pair.waits(first)

    # A leader that was frozen loses its right, and can write nothing when it continues.
    frozen = second.pids()["control-plane"]
    os.kill(frozen, signal.SIGSTOP)
    try:
        assert pair.leads(first)
        first("submit", "later", "-n", "1", "--", "true")
        assert first.becomes("later", "succeeded")
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert eventually(lambda: second.pids().get("control-plane") not in {frozen, None})
    assert pair.waits(second)
    assert first.becomes("later", "succeeded")
    (first.home / "end").touch()
    assert first.becomes("long", "succeeded")
    assert len(pair.starts()) == 1
    assert first.all_free()


@pytest.mark.timeout(300)  # it only bounds a failing test, and machines may be busy
def test_nothing_is_lost_while_database_is_unavailable(pair: Pair, server: PostgresServer) -> None:
    leader = pair.first if pair.standing(pair.first) == "leads" else pair.second
    control_plane = leader.pids()["control-plane"]
    leader("submit", "through", "-n", "1", "--", "sh", "-c", "sleep 1; echo it ended")
    assert leader.becomes("through", "running", "succeeded")
    client = leader.begin("run", "-n", "1", "--", "sh", "-c", "echo asks; read word; echo said $word; exit 7")
    assert client.stdout is not None
    assert client.stdout.readline() == b"asks\n"
    server.stop()
    try:
        done = leader("submit", "now", "--", "true", ok=False)
        assert b"DATABASE_UNREACHABLE" in done.stderr
        assert b"gpu1" in leader("nodes").stdout  # what is in memory is answered
        out, _ = client.communicate(b"hello\n", timeout=150)
        assert (out, client.returncode) == (b"said hello\n", 7)
    finally:
        server.start()
    assert eventually(lambda: leader("describe", "through", ok=False).returncode == 0)
    assert leader.becomes("through", "succeeded")
    assert "it ended" in leader.text("logs", "through")
    assert leader.all_free()
    leader("submit", "after", "--", "true")
    assert leader.becomes("after", "succeeded")
    assert leader.pids()["control-plane"] == control_plane
