"""Memory of the pool's processes: idle, with running programs, and with a long history and many live replicas.

`python benchmarks/memory.py [--live 1000] [--history 100000]` measures: the control plane's resident memory in a fresh
pool and, on a node that runs nothing, with these numbers of live replicas and of ended workloads; the memory that the
end of the agent, the spawner, the supervisor and a shepherd would free; and a Python process that does nothing. Prints
a table and writes results/memory.json.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import (
    NullPool,
    Pool,
    live,
    machine,
    percentile,
    rows,
    rss_mib,
    table,
    until,
    uss_mib,
    write_result,
)

GOAL_REST_MIB = 120.0
GOAL_LOAD_MIB = 400.0
SETTLE_S = 6.0
PROGRAMS = 8
TABLES = {
    "workloads": ("id", "request_id", "name"),
    "replicas": ("workload",),
    "leases": ("workload", "epoch"),
    "lease_shares": ("epoch",),
    "events": ("workload", "id"),
}


def bare_python() -> float:
    """Return the resident memory of an interpreter that only sleeps, MiB."""
    process = subprocess.Popen((sys.executable, "-I", "-c", "import time; time.sleep(60)"))
    time.sleep(0.5)
    size = rss_mib(process.pid)
    process.kill()
    process.wait()
    return size


def at_rest() -> dict[str, Any]:
    """Measure a fresh pool, then the same pool with a few real programs."""
    with Pool("8xT4") as pool:
        time.sleep(SETTLE_S)
        pids = pool.pids()
        rest = {
            name: {"rss_mib": round(rss_mib(pid), 1), "uss_mib": round(uss_mib(pid), 1)} for name, pid in pids.items()
        }
        api = pool.api()
        for _ in range(PROGRAMS):
            api.ask("POST", "/v1/workloads", {"command": ["sleep", "600"], "workdir": "/", "env": dict(os.environ)})
        states = "SELECT count(*) FROM replicas WHERE state = 'running'"
        until(lambda: rows(pool, states)[0][0] == PROGRAMS, 30)
        time.sleep(1)
        shepherds = [pid for pid in all_shepherds(pool) if pid != pids["spawner"]]
        rest["shepherd"] = {
            "rss_mib": round(percentile([rss_mib(pid) for pid in shepherds], 50), 1),
            "uss_mib": round(percentile([uss_mib(pid) for pid in shepherds], 50), 1),
        }
        return rest


def all_shepherds(pool: Pool) -> list[int]:
    """Return the parents of the running programs."""
    programs = [pid for (pid,) in rows(pool, "SELECT pid FROM replicas WHERE pid IS NOT NULL")]
    return [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in programs]


def under_load(alive: int, history: int) -> dict[str, Any]:
    """Measure a control plane with a long history and many active workloads."""
    pool = NullPool("64xT4", ends=False)
    with pool:
        api = pool.api()
        first = api.ask(
            "POST", "/v1/workloads?wait=started", {"command": ["true"], "workdir": "/", "env": dict(os.environ)}
        )
        api.ask("POST", f"/v1/workloads/{first['id']}/stop", {})
        until(lambda: live(pool) == 0, 30)
        pool.down()
        multiply(pool.database, first["id"], history)
        pool.up()
        api = pool.api()
        fresh = rss_mib(pool.pids()["control-plane"])
        for _ in range(alive):
            body = {"command": ["train"], "workdir": "/", "env": dict(os.environ), "gpus": {"fraction": 0.05}}
            api.ask("POST", "/v1/workloads", body)
        running = "SELECT count(*) FROM replicas WHERE state = 'running'"
        if not until(lambda: rows(pool, running)[0][0] >= alive, 120):
            raise RuntimeError("not all replicas run")
        pages = [timed_page(api, "/v1/workloads?all=true&limit=100") for _ in range(10)]
        time.sleep(SETTLE_S)
        return {
            "live_replicas": alive,
            "finished_workloads": history,
            "rows": sum(rows(pool, f"SELECT count(*) FROM {name}")[0][0] for name in TABLES),
            "database_mib": round(pool.database.stat().st_size / (1 << 20), 1),
            "control_plane_started_on_history_rss_mib": round(fresh, 1),
            "control_plane_rss_mib": round(rss_mib(pool.pids()["control-plane"]), 1),
            "a_list_of_100_ms": round(percentile(pages, 50) * 1000, 1),
        }


def timed_page(api: Any, target: str) -> float:
    """Return the seconds until an answer."""
    begun = time.perf_counter()
    api.ask("GET", target)
    return time.perf_counter() - begun


def multiply(database: Path, workload: str, copies: int) -> None:
    """Copy an ended workload with its rows ``copies`` times, under other names."""
    connection = sqlite3.connect(database)
    with connection:
        for name, changed in TABLES.items():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            values = ", ".join(_copied(name, column) if column in changed else column for column in columns)
            key = "id" if name == "workloads" else "workload"
            which = f"{key} = '{workload}'" if name != "lease_shares" else "epoch = 1"
            if name == "events":
                which += f" AND id = (SELECT max(id) FROM events WHERE workload = '{workload}')"
            connection.execute(
                "WITH RECURSIVE copy(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copy WHERE n < ?)"
                f" INSERT INTO {name} ({', '.join(columns)}) SELECT {values} FROM copy, {name} WHERE {which}",
                (copies,),
            )
    connection.close()


def _copied(name: str, column: str) -> str:
    """Return the value of a changed column in copy ``n``."""
    if column in {"epoch", "id"} and name in {"leases", "lease_shares", "events"}:
        return f"{column} + n"
    return {"name": "'old-' || n", "request_id": "NULL"}.get(column, "printf('w%010d', n)")


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--history", type=int, default=100_000, help="finished workloads")
    options = parser.parse_args()
    bare = round(bare_python(), 1)
    rest, load = at_rest(), under_load(options.live, options.history)
    result = {"what": "memory", **machine(), "python_that_sleeps_rss_mib": bare, "at_rest": rest, "under_load": load}
    result["goals_mib"] = {"control plane at rest": GOAL_REST_MIB, "control plane under load": GOAL_LOAD_MIB}
    shown: list[tuple[object, ...]] = [("a Python that sleeps", bare, "", "", "1.0")]
    for name, sizes in rest.items():
        goal = f"{GOAL_REST_MIB:g}" if name == "control-plane" else ""
        shown.append((f"{name}, at rest", sizes["rss_mib"], sizes["uss_mib"], goal, f"{sizes['rss_mib'] / bare:.1f}"))
    size = load["control_plane_rss_mib"]
    what = f"control-plane, {load['live_replicas']} live, {load['finished_workloads']} finished workloads"
    shown.append((what, size, "", f"{GOAL_LOAD_MIB:g}", f"{size / bare:.1f}"))
    print(table(("memory, MiB", "resident", "private", "goal", "ratio to Python"), shown))
    print(f"a list of 100 workloads then takes {load['a_list_of_100_ms']} ms (p50)")
    write_result("memory", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
