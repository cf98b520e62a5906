"""Helpers of all benchmarks: a private pool, percentiles, tables, and results with a description of the machine."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpupool.bench.machine import describe_machine, percentile
from gpupool.client.discovery import place_for_new_pool
from gpupool.daemon.config import PoolConfig, PoolKind
from gpupool.daemon.process.launch import start

RESULTS = Path(__file__).parent / "results"
GPUPOOL = str(Path(sys.executable).parent / "gpupool")
FINAL = ("succeeded", "failed", "stopped")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


class Api(http.client.HTTPConnection):
    """A persistent connection to a pool's unix socket; it reconnects after a loss."""

    def __init__(self, path: Path, timeout_s: float = 60.0) -> None:
        super().__init__("gpupool", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect; raise ``OSError`` if that fails."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """Return the JSON of a successful answer; raise ``RefusedError`` for another and ``OSError`` for none."""
        try:
            self.request(method, target, json.dumps(body), {"Content-Type": "application/json"})
            response = self.getresponse()
            data = response.read()
        except http.client.HTTPException as error:
            self.close()
            raise ConnectionError(repr(error)) from error
        except OSError:
            self.close()
            raise
        if response.status >= 300:
            raise RefusedError(response.status, f"{method} {target}: {response.status} {data[:500]!r}")
        return json.loads(data or b"null")


class RefusedError(RuntimeError):
    """The pool answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Pool:
    """A pool of emulated GPUs in a folder of its own, taken down and removed at the end."""

    def __init__(self, emulate: str) -> None:
        self.emulate = emulate
        self.folder = Path(tempfile.mkdtemp(prefix="gpb-"))
        self.state = self.folder / "state"
        self.run_dir = self.state / "run"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env["GPUPOOL_STATE_DIR"] = str(self.state)
        self.env["XDG_CONFIG_HOME"] = str(self.folder / "config")
        self.env["CHAOS_POOL"] = str(self.folder)  # marks all descendants of this pool
        self.database_url = ""  # of PostgreSQL, if the pool uses it

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.down()
        if kind is None:
            self.remove()
        else:
            print(f"kept for a look: {self.folder}", file=sys.stderr)

    def cli(self, *arguments: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run a command of the pool to its end."""
        return subprocess.run(
            (GPUPOOL, *arguments), env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def up(self) -> None:
        """Start it, or use the pool that another process started meanwhile."""
        done = self.cli("up", "--background", "--emulate", self.emulate)
        if done.returncode != 0 and "POOL_ALREADY_RUNNING" not in done.stderr:
            raise RuntimeError(f"gpupool up: {done.stderr.strip()}")

    def down(self) -> None:
        """Stop its jobs and its processes."""
        done = self.cli("down", "--stop-jobs")
        if done.returncode != 0:  # ten thousand jobs may take longer than it waits
            print(done.stderr.strip(), file=sys.stderr)
            done = self.cli("down")
        if done.returncode != 0:
            raise RuntimeError(f"gpupool down: {done.stderr.strip()}")

    def remove(self) -> None:
        """Return the logs."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def api(self, timeout_s: float = 60.0) -> Api:
        """Return a new connection, for one thread."""
        return Api(self.run_dir / "api.sock", timeout_s)

    def pids(self) -> dict[str, int]:
        """Return the running processes of the pool by name: supervisor, control-plane, agent, and its children."""
        try:
            state = json.loads((self.run_dir / "state.json").read_bytes())
        except (OSError, ValueError):
            return {}
        said = {"supervisor": state, **{child["name"]: child for child in state["children"]}}
        found = {name: one["pid"] for name, one in said.items() if one["pid"] and runs(one["pid"], one["start_ticks"])}
        for pid in children_of(found["agent"]) if "agent" in found else []:
            found.setdefault(kind_of_child(pid), pid)
        return found

    def client_env(self) -> dict[str, str]:
        """Return the environment for commands of this pool."""
        return self.env

    @property
    def database(self) -> Path:
        """Return the SQLite file of the pool."""
        return self.state / "pool.db"


class NullPool(Pool):
    """A pool with a real control plane on a node that runs nothing: programs end at once, or never."""

    def __init__(self, emulate: str, *, ends: bool) -> None:
        super().__init__(emulate)
        self._ends = ends

    def up(self) -> None:
        """Start it; the agent is a stand-in."""
        place = place_for_new_pool(str(self.state))
        script, socket_path = str(Path(__file__).parent / "_null_agent.py"), f"{place.run_dir}/agent.sock"
        agent = (sys.executable, script, socket_path, "null", self.emulate, "ends" if self._ends else "lives")
        start(
            PoolConfig(
                place.state_dir, place.run_dir, PoolKind(place.kind), node_name="null", commands={"agent": agent}
            ),
            print,
        )


def kind_of_child(pid: int) -> str:
    """Return what a child of the agent is: arbiter, spawner, or the helper that suspends processes."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "spawner"
    if b"checkpoint_process.py" in command:
        return "suspension-helper"
    return "arbiter" if b"gpupool-arbiter" in command else "spawner"


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in ticks since boot; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def runs(pid: int, started: int) -> bool:
    """Return whether a process with this pid and start runs."""
    return start_ticks(pid) == started


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process, MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KIB / 1024


def uss_mib(pid: int) -> float:
    """Return the memory that the end of the process would free, MiB."""
    fields = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(field[1]) for field in fields if field[0].startswith("Private_")) / 1024


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


UNREADABLE = (sqlite3.Error, ConnectionError)


def rows(pool: Pool, query: str) -> list[tuple[Any, ...]]:
    """Return rows of a pool's database, read only; raise ``UNREADABLE``."""
    if pool.database_url:
        return server_rows(pool.database_url, query)
    connection = sqlite3.connect(f"file:{pool.database}?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def server_rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """Return rows of a PostgreSQL database; raise ``ConnectionError``."""
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            return connection.execute(query.encode()).fetchall()
    except psycopg.Error as error:
        raise ConnectionError(repr(error)) from error


def live(pool: Pool) -> int:
    """Return the number of workloads in the database that have not ended."""
    try:
        return int(rows(pool, f"SELECT count(*) FROM workloads WHERE state NOT IN {FINAL}")[0][0])
    except UNREADABLE:
        return 1 << 30  # unknown at this moment


def processes() -> list[int]:
    """Return the pids of all processes."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def until(condition: Callable[[], object], timeout_s: float, every_s: float = 0.02) -> bool:
    """Return whether a condition becomes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def spread(values: Sequence[float], unit: float = 1.0, digits: int = 2) -> dict[str, float]:
    """Return count, median, 99th percentile, minimum and maximum, times ``unit``."""
    named = {"p50": percentile(values, 50), "p99": percentile(values, 99), "min": min(values), "max": max(values)}
    return {"n": len(values)} | {name: round(value * unit, digits) for name, value in named.items()}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return aligned plain text."""
    texts = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts
    )


def machine() -> dict[str, Any]:
    """Return a description of the machine and versions; ``load`` is the load by other programs."""
    return describe_machine(" ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]))


def write_result(name: str, result: dict[str, Any]) -> None:
    """Write a result to ``results/NAME.json``, next to the others."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=2, sort_keys=False) + "\n")
    temporary.replace(path)
    print(f"written to {path}")
