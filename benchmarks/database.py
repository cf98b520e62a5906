"""Cost of the store on SQLite and PostgreSQL: one grant, a hundred grants at once, loading live workloads.

``python benchmarks/database.py``; needs PostgreSQL (``initdb``, ``pg_ctl``) and psycopg. Both write to the same disk
with ``fsync`` on, alternating, so that other load affects both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from _common import machine, percentile, spread, table, write_result
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest, GpuShare
from gpupool.domain.work.workload import GpuLease, Program, Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.ports.store import ChangeSet
from gpupool.store import SqlStore, open_store

TOGETHER = 100


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Start a server with default settings in a folder and yield the URL of its database."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    data = str(folder / "data")

    def run(program: str, *arguments: str) -> None:
        versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
        found = shutil.which(program) or str(versions[-1])
        subprocess.run([found, *arguments], user=user, check=True, cwd="/", stdout=subprocess.DEVNULL)

    run("initdb", "-D", data, "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=gpupool")
    run("pg_ctl", "-D", data, "-l", f"{folder}/log", "-w", "-o", f"-p {port} -k {folder}", "start")
    try:
        yield f"postgresql://gpupool@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-D", data, "-m", "fast", "-w", "stop")


def submitted(number: int) -> ChangeSet:
    """Return one workload and its replica."""
    key = WorkloadId(f"w{number:010d}")
    made = Workload(
        id=key,
        name=f"job-{number}",
        kind=WorkloadKind.TRAINING,
        project="default",
        user="ada",
        program=Program(argv=("python", "train.py"), env={"A": "1"}, cwd="/home/ada"),
        gpus=GpuRequest(permille=500),
        created_at=float(number),
    )
    return ChangeSet((made,), (Replica(key, 0),), (), (_event(key, Reason.SUBMITTED),))


def granted(number: int) -> ChangeSet:
    """Return its lease on a GPU of its own, and the replica that starts."""
    key = WorkloadId(f"w{number:010d}")
    share = GpuShare(f"GPU-{number}", 0, 500, 8_000)
    lease = GpuLease(Epoch(number), key, 0, 1, "default", "ada", "gpu1", (share,), 1.0, 1_000, float(number))
    started = Replica(key, 0, state=ReplicaState.STARTING, attempt=1, lease=Epoch(number), node="gpu1", version=1)
    return ChangeSet((), (started,), (lease,), (_event(key, Reason.GRANTED),))


def _event(key: WorkloadId, reason: Reason) -> Event:
    return Event(1.0, "pool", reason, "on gpu1", workload=key)


def together(parts: list[ChangeSet]) -> ChangeSet:
    """Join several changes into one."""
    names = ("workloads", "replicas", "leases", "events")
    return ChangeSet(*(tuple(row for part in parts for row in getattr(part, name)) for name in names))


async def measure(stores: dict[str, SqlStore], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds by operation and database."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    numbers = count(1)

    async def timed(what: str, change: ChangeSet) -> None:
        for name, store in stores.items():
            began = time.perf_counter()
            await store.commit(change)
            found[what][name].append((time.perf_counter() - began) * 1e3)

    for _ in range(rounds):
        number = next(numbers)
        await timed("submit one", submitted(number))
        await timed("grant one", granted(number))
    for _ in range(max(1, rounds // 20)):
        chosen = [next(numbers) for _ in range(TOGETHER)]
        await timed(f"submit {TOGETHER} together", together([submitted(n) for n in chosen]))
        await timed(f"grant {TOGETHER} together", together([granted(n) for n in chosen]))
    for _ in range(5):
        for name, store in stores.items():
            began = time.perf_counter()
            live = len((await store.load_live()).workloads)
            found[f"load {live} live"][name].append((time.perf_counter() - began) * 1e3)
    return found


async def run(rounds: int, targets: dict[str, str | Path]) -> dict[str, dict[str, list[float]]]:
    """Open, measure, close."""
    stores = {name: await open_store(target) for name, target in targets.items()}
    try:
        return await measure(stores, rounds)
    finally:
        for store in stores.values():
            await store.close()


def shown(took_ms: list[float]) -> str:
    """Return median and 99th percentile."""
    return f"{percentile(took_ms, 50):.1f} / {percentile(took_ms, 99):.1f}"


def main(argv: list[str] | None = None) -> int:
    """Print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args(argv).rounds
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "server").mkdir()
        with postgres(folder / "server") as url:
            found = asyncio.run(run(rounds, {"SQLite": folder / "pool.db", "PostgreSQL": url}))
    lines = [(what, *(shown(by[name]) for name in ("SQLite", "PostgreSQL"))) for what, by in found.items()]
    print(table(("ms, p50 / p99", "SQLite", "PostgreSQL"), lines))
    figures = {what: {name: spread(took) for name, took in by.items()} for what, by in found.items()}
    write_result("database", {"machine": machine(), "milliseconds": figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
