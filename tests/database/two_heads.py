"""Two heads of a cluster on one database, without Ray: what heads say and decide needs none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from databases import PostgresServer
from e2e_pool import PATIENCE_S, RealPool, eventually

from free_ports import free_port
from gpupool.daemon.cluster.joining import join
from gpupool.daemon.config import PoolConfig, PoolKind, save_config
from gpupool.domain.decode import decode

ROLE = "guarded"
PASSWORD = "first-secret"
NO_RAY = {"ray": ["sleep", "infinity"], "bridge": ["sleep", "infinity"]}


def guarded(server: PostgresServer) -> str:
    """Return the URL of a new database that needs a password, by a name that other machines can use."""
    rules = server.folder / "data" / "pg_hba.conf"
    if ROLE not in rules.read_text():
        server.sql(f"CREATE ROLE {ROLE} LOGIN")
        rules.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.sql("SELECT pg_reload_conf()")
    change_password(server, PASSWORD)
    name = server.empty().rpartition("/")[2]
    server.sql(f"ALTER DATABASE {name} OWNER TO {ROLE}")
    return f"postgresql://{ROLE}@db.test:{server.port}/{name}?hostaddr=127.0.0.1"


def change_password(server: PostgresServer, password: str) -> None:
    server.sql(f"ALTER ROLE {ROLE} PASSWORD '{password}'")


class TwoHeads:
    """``first`` leads; ``second`` joins later."""

    def __init__(self, folder: Path, server: PostgresServer, url: str) -> None:
        self.folder, self.server, self.url = folder, server, url
        self.first, self.second = self._pool("h1"), self._pool("h2")

    def _pool(self, name: str) -> RealPool:
        (self.folder / name).mkdir()
        pool = RealPool(self.folder / name, "1xT4")
        pool.home.chmod(0o777)
        return pool

    def password_file(self, pool: RealPool, password: str = PASSWORD) -> Path:
        path = pool.folder / "database-password"
        path.write_text(f"{password}\n")
        path.chmod(0o600)
        return path

    def options(self, pool: RealPool) -> dict[str, Any]:
        return {
            "node_name": pool.folder.name,
            "emulate": pool.emulate,
            "cluster_address": "127.0.0.1",
            "listen": f"0.0.0.0:{free_port()}",
            "tls_self_signed": True,
            "dashboard": f"127.0.0.1:{free_port()}",
            "commands": NO_RAY,
        }

    def start(self, pool: RealPool) -> None:
        pool("up", "--background", "--emulate", pool.emulate, timeout=PATIENCE_S * 4)

    def begin(self) -> None:
        """Start the first head."""
        for made in (self.first.state, self.first.run):
            made.mkdir(mode=0o711)
        own = {"role": "head", "database": self.url, "database_password_file": str(self.password_file(self.first))}
        (self.first.state / "config.json").write_text(json.dumps(self.options(self.first) | own))
        self.start(self.first)

    @property
    def address(self) -> str:
        listen = json.loads((self.first.state / "config.json").read_text())["listen"]
        return f"127.0.0.1:{listen.rpartition(':')[2]}"

    def token(self) -> str:
        return self.first.text("join-token", "create", "--head").strip()

    def join(self) -> None:
        """Have the second join as a head, and start it."""
        kind = PoolKind.SYSTEM if os.geteuid() == 0 else PoolKind.USER
        places = {"state_dir": str(self.second.state), "run_dir": str(self.second.run), "kind": kind}
        password = {"database_password_file": str(self.password_file(self.second))}
        wanted = decode(PoolConfig, self.options(self.second) | places | password)
        save_config(join(wanted, self.address, self.token(), as_head=True))
        self.start(self.second)
        assert eventually(lambda: b"NOT_LEADING" in self.second("ps", ok=False).stderr, PATIENCE_S * 2)

    def sql(self, statement: str) -> str:
        return self.server.sql(statement, self.url.rpartition("/")[2].partition("?")[0])

    def head(self, name: str) -> dict[str, Any]:
        """Return the leader's report about a head."""
        heads = self.first.json("status")["pool"]["heads"]
        return next((head for head in heads if head["name"] == name), {})

    def close(self) -> None:
        for pool in (self.second, self.first):
            pool("down", "--stop-jobs", ok=False)
            pool("down", ok=False)
