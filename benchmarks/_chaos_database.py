"""The chaos test with PostgreSQL: the server is killed, frozen and disconnected, and there are two control planes.

Needs PostgreSQL, psycopg and this repository's tests, whose server it uses.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "store"))

from databases import PostgresServer

from _chaos_kill import Killer
from _chaos_mix import Mix
from _common import Api, Pool, RefusedError, until
from gpupool.client.discovery import Location
from gpupool.daemon.local_api import health

NODE = "gpu1"
SERVER_STARTS_S = 60.0
TURN_S = 60.0
# How often each kind is drawn.
WEIGHTS = {
    "shepherd": 26,
    "client": 20,
    "spawner": 6,
    "arbiter": 3,
    "agent": 7,
    "control-plane": 7,
    "supervisor": 1,
    "everything": 1,
    "PostgreSQL": 7,
    "PostgreSQL, frozen": 5,
    "PostgreSQL's sessions": 9,
    "PostgreSQL's session of the leader": 6,
    "the leader": 8,
    "the leader, frozen": 4,
}
SESSIONS = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE '{}'"


class Server(PostgresServer):
    """A server that can be killed and frozen, and that is started again after any crash."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="gpb-pg-")))
        self.frozen = False
        self.make()
        self.start()

    @property
    def up(self) -> bool:
        """Return whether the server would answer."""
        return not self.frozen and self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kill the postmaster with -9; its backends notice that themselves."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def start_again(self) -> None:
        """Recover from a crash; a remaining backend process delays a new server."""

        def started() -> bool:
            try:
                self.start()
            except AssertionError:
                return False
            return True

        if not until(started, SERVER_STARTS_S, 0.2):
            raise TimeoutError((self.folder / "log").read_text()[-2000:])

    def freeze(self, *, still: bool) -> None:
        """Stop all its processes, or continue them."""
        self.frozen = still
        self.signal_all(signal.SIGSTOP if still else signal.SIGCONT)

    def end(self) -> None:
        """Stop the server; its folder stays."""
        self.freeze(still=False)
        self.stop()


class EitherApi(Api):
    """A connection to two control planes, of which it uses the leader."""

    def __init__(self, paths: list[Path], timeout_s: float) -> None:
        super().__init__(paths[0], timeout_s)
        self._paths = paths

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """Ask one pool; after a refusal or no answer, the next request goes to the other one."""
        try:
            return super().ask(method, target, body)
        except (OSError, RefusedError) as error:
            if isinstance(error, OSError) or error.status == 503:
                self.close()
                self._path = next(path for path in self._paths if path != self._path)
            raise


class PairPool(Pool):
    """Two pools with one database: this one has the node, ``second`` is a control plane that reaches the same node."""

    def __init__(self, emulate: str) -> None:
        super().__init__(emulate)
        self.server = Server()
        self.database_url = self.server.fresh()
        self.second = Pool(emulate)
        self.second.env["CHAOS_POOL"] = str(self.folder)
        self.second.database_url = self.database_url
        self._prepare(self, {})
        self._prepare(self.second, {"commands": {"agent": ["sleep", "infinity"]}})
        (self.second.run_dir / "agent.sock").symlink_to(self.run_dir / "agent.sock")

    def _prepare(self, pool: Pool, options: dict[str, Any]) -> None:
        for folder, shared in ((pool.state, 0o711), (pool.run_dir, 0o755)):
            folder.mkdir()
            folder.chmod(shared if os.geteuid() == 0 else 0o700)
        options |= {"database": self.database_url, "dashboard": "off", "node_name": NODE}
        (pool.state / "config.json").write_text(json.dumps(options))

    def up(self) -> None:
        """Start both pools; the first one becomes the leader."""
        super().up()
        self.second.up()

    def down(self) -> None:
        """Stop both pools: the leader stops the jobs; a standby refuses to."""
        if not until(lambda: self.leader() is not None, TURN_S, 0.5):
            raise RuntimeError("nobody leads")
        for pool in (self.second, self):
            pool.cli("down", "--stop-jobs")
        for pool in (self.second, self):
            Pool.down(pool)
        self.server.end()

    def remove(self) -> None:
        """Return the logs."""
        super().remove()
        for folder in (self.second.folder, self.server.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def leader(self) -> Pool | None:
        """Return the pool that reports to be the leader."""
        pools = (self, self.second)
        return next((pool for pool in pools if health(place(pool)).get("status") == "ok"), None)

    def api(self, timeout_s: float = 60.0) -> Api:
        """Return a connection to the current leader."""
        return EitherApi([pool.run_dir / "api.sock" for pool in (self, self.second)], timeout_s)

    def client_env(self) -> dict[str, str]:
        """Return the environment for commands of the current leader."""
        return (self.leader() or self).env


def place(pool: Pool) -> Location:
    """Return the location of a pool."""
    return Location(str(pool.state), str(pool.run_dir), "system")


class DatabaseKiller(Killer):
    """Kills also the database and the leader; frozen and ended processes are restarted after some seconds."""

    weights = WEIGHTS

    def __init__(self, pool: PairPool, mix: Mix, seed: int) -> None:
        super().__init__(pool, mix, seed)
        self._pair = pool
        self._later: list[tuple[float, Callable[[], None]]] = []

    def strike(self) -> bool:
        """Kill once, after processes whose time has come were restarted."""
        self._settle(time.monotonic())
        return super().strike()

    def rest(self) -> None:
        """Restart everything."""
        self._settle(float("inf"))

    def _settle(self, now: float) -> None:
        due = [each for at, each in self._later if at <= now]
        self._later = [(at, each) for at, each in self._later if at > now]
        for each in due:
            each()

    def _after(self, least_s: float, most_s: float, then: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + self._random.uniform(least_s, most_s), then))

    def _blow(self, kind: str) -> bool:
        blows = {
            "control-plane": self._control_plane,
            "PostgreSQL": self._kill_server,
            "PostgreSQL, frozen": self._freeze_server,
            "PostgreSQL's sessions": lambda: self._cut("gpupool%"),
            "PostgreSQL's session of the leader": lambda: self._cut("gpupool leader"),
            "the leader": self._kill_leader,
            "the leader, frozen": self._freeze_leader,
        }
        done = blows[kind]() if kind in blows else super()._blow(kind)
        if done and kind.startswith("PostgreSQL"):
            self.kills.by_kind[kind] += 1
        return done

    def _control_plane(self) -> bool:
        pid = self._random.choice((self._pair, self._pair.second)).pids().get("control-plane")
        return pid is not None and self._kill("control-plane", pid)

    def _kill_server(self) -> bool:
        server = self._pair.server
        if not server.up:
            return False
        server.kill()
        self._after(0.0, 6.0, server.start_again)
        return True

    def _freeze_server(self) -> bool:
        server = self._pair.server
        if not server.up:
            return False
        server.freeze(still=True)
        self._after(1.0, 8.0, lambda: server.freeze(still=False))
        return True

    def _cut(self, sessions: str) -> bool:
        server = self._pair.server
        return server.up and int(server.sql(SESSIONS.format(sessions))) > 0

    def _kill_leader(self) -> bool:
        pid = self._leader_pid()
        return pid is not None and self._kill("the leader", pid)

    def _freeze_leader(self) -> bool:
        pid = self._leader_pid()
        if pid is None:
            return False
        os.kill(pid, signal.SIGSTOP)
        self.kills.by_kind["the leader, frozen"] += 1
        self._after(3.0, 16.0, lambda: thaw(pid))
        return True

    def _leader_pid(self) -> int | None:
        leader = self._pair.leader()
        return None if leader is None else leader.pids().get("control-plane")

    def _up_again(self) -> None:
        try:
            super()._up_again()
        except RuntimeError:  # the database is away
            self.rest()
            super()._up_again()


def thaw(pid: int) -> None:
    """Continue a process if it still exists: a supervisor may have ended it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
