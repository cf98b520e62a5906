"""Both databases for tests: SQLite in a folder, PostgreSQL on a server of the tests' own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from sqlalchemy import Engine

from free_ports import free_port
from gpupool.store.backends import postgres, sqlite
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.migrations import migrate, migrate_postgres
from gpupool.store.schema.usage_tables import metadata
from requires import postgres_program, require

KINDS = ("sqlite", "postgresql")
TEMPLATE = "gpupool_template"
ROLE = "gpupool"
QUICK = {  # a test's database need not survive a crash of the machine
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_size": "256MB",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "listen_addresses": "127.0.0.1",
}


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


@dataclass
class PostgresServer:
    """A server in a folder; it must not run as root, which PostgreSQL refuses."""

    folder: Path
    port: int = field(default_factory=free_port)
    made: int = 0
    has_template: bool = False
    wiped_url: str = ""
    space: str = ""  # network namespace in which it listens, and the address there
    address: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str, check: bool = True) -> str:
        found = postgres_program(program)
        assert found is not None
        user = "postgres" if os.geteuid() == 0 else None
        done = subprocess.run([found, *arguments], user=user, capture_output=True, text=True, cwd="/", check=False)
        assert not check or done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def make(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
        self.folder.chmod(0o755)
        options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", f"--username={ROLE}"]
        self.run("initdb", "-D", self.data, *options)
        if self.space:
            with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {self.address}/24 trust\n")

    def start(self) -> None:
        """Start the server so that it ends with this process, and wait until it answers."""
        program = postgres_program("postgres")
        assert program is not None
        settings = QUICK | {"listen_addresses": self.address}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [program, "-D", self.data, "-p", str(self.port), "-k", str(self.folder), *options]
        become = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--pdeathsig", "QUIT"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.space, *become, *command] if self.space else command,
                user="postgres" if os.geteuid() == 0 and not self.space else None,
                stdout=log,
                stderr=log,
                cwd="/",
                preexec_fn=end_with_parent,  # noqa: PLW1509 - it only makes a system call
            )
        for _ in range(1200):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.socket_url("postgres")).close()
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)
        raise TimeoutError((self.folder / "log").read_text())

    def stop(self) -> None:
        """Stop the server at once, like a crash."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all its processes for a while: connections are accepted by the kernel, and nothing is answered."""
        self.signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal_all(signal.SIGCONT)

    def signal_all(self, signum: int) -> None:
        """Send a signal to the server and its sessions, if it runs."""
        if self.process is None or self.process.poll() is not None:
            return
        pid = self.process.pid
        for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signum)

    def url(self, database: str) -> str:
        return f"postgresql://{ROLE}@{self.address}:{self.port}/{database}"

    def socket_url(self, database: str) -> str:
        """Return the URL that works in every network namespace of this machine."""
        return f"postgresql://{ROLE}@/{database}?host={self.folder}&port={self.port}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        return self.run(
            "psql", "-XqtA", "-v", "ON_ERROR_STOP=1", "-d", self.socket_url(database), "-c", statement
        ).strip()

    def empty(self) -> str:
        """Return the URL of an empty database."""
        self.made += 1
        self.sql(f"CREATE DATABASE empty{self.made} TEMPLATE template0")
        return self.url(f"empty{self.made}")

    def fresh(self) -> str:
        """Return the URL of a new database of the current schema."""
        if not self.has_template:
            self.has_template = True
            self.sql(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
            migrate_postgres.prepare(PostgresAddress(self.socket_url(TEMPLATE)))
        self.made += 1
        self.sql(f"CREATE DATABASE test{self.made} TEMPLATE {TEMPLATE}")
        return self.url(f"test{self.made}")

    def wiped(self) -> str:
        """Return the URL of a shared database after its tables were emptied; faster than a new one."""
        if not self.wiped_url:
            self.wiped_url = self.fresh()
            return self.wiped_url
        tables = ", ".join(table.name for table in metadata.sorted_tables)
        seed = "INSERT INTO meta VALUES ('pool_id', 'p1'), ('created_at', '1.0')"
        first = "INSERT INTO leadership VALUES (1, 0, '', '', 0)"
        self.sql(f"TRUNCATE {tables} RESTART IDENTITY; {seed}; {first}", self.wiped_url.rpartition("/")[2])
        return self.wiped_url


@contextmanager
def postgres_server(space: str = "", address: str = "127.0.0.1") -> Iterator[PostgresServer]:
    """Yield a server and stop it at the end; without PostgreSQL the test is skipped, or fails where it must run.

    With ``space`` it listens in that network namespace, which needs root.
    """
    require("postgresql")
    folder = Path(tempfile.mkdtemp(prefix="gpupool-pg-"))
    server = PostgresServer(folder, space=space, address=address)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Databases:
    """New databases of one kind: SQLite files, or databases of a server."""

    folder: Path
    server: PostgresServer | None
    made: int = 0

    def fresh(self) -> str:
        """Return the URL of an empty database of the current schema."""
        if self.server is not None:
            return self.server.wiped()
        self.made += 1
        path = self.folder / f"{self.made}" / "pool.db"
        migrate.prepare(path)
        return str(path)

    def engine(self) -> Engine:
        """Return connections to such a database."""
        target = self.fresh()
        return (
            sqlite.make_engine(Path(target)) if self.server is None else postgres.make_engine(PostgresAddress(target))
        )
