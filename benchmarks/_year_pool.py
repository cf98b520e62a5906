"""A control plane over a store of `_year.py`: 64 nodes that run no programs but report like real ones, once a second.

`python _year_pool.py STORE SOCKET PORT [--profile FILE]`. It listens on the unix socket and, without TLS, on a port of
the loopback; prints one JSON line with a token when it is ready, and ends with SIGTERM. Started programs count as
running until they are stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import json
import logging
import os
import random
import secrets
import signal
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import uvicorn

sys.path.insert(0, str(Path(__file__).parent))

import _year_names as names
from gpupool.api.app import create_app
from gpupool.api.server.protocols import PeerHttpProtocol
from gpupool.api.server.server import serve
from gpupool.domain.nodes.gpu import Gpu, NodeReport
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample
from gpupool.domain.protocol.log_records import LogBatch
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessPhase, ProcessSpec, ProcessStatus
from gpupool.services.clock import SteadyClock
from gpupool.services.pool import Pool, PoolInfo
from gpupool.services.ports.adapters import Ports
from gpupool.services.ports.fabric import AttachStream, FabricEvent, NodeLink
from gpupool.store import open_store
from gpupool.web.install import install

IDLE_ONE_IN = 14  # programs that have not computed since they began
Running = tuple[str, int, float]  # attempt key, epoch, start


class YearNode(NodeLink):
    """A node whose programs are entries of a dictionary; its measurements are random."""

    def __init__(
        self, number: int, running: Sequence[tuple[str, int, float]], inbox: asyncio.Queue[FabricEvent]
    ) -> None:
        self.name = names.node(number)
        self._report = names.report(number)
        self._inbox = inbox
        self._draw = random.Random(number)
        self._begun = time.time()
        self._programs = {key: self._status(key, epoch, started) for key, epoch, started in running}

    def _status(self, key: str, epoch: int, started: float) -> ProcessStatus:
        active = started if epoch % IDLE_ONE_IN == 0 else time.time()
        return ProcessStatus(
            key, epoch, ProcessPhase.RUNNING, 4242, started, last_active_at=active, attach_path="/none", mode="share"
        )

    async def report(self) -> NodeReport:
        """Return the report of the machine."""
        return self._report

    async def gpus(self) -> Sequence[Gpu]:
        """Return its GPUs in use."""
        return tuple(
            replace(gpu, utilisation_percent=self._draw.randrange(101), memory_used_mib=gpu.memory_mib // 2)
            for gpu in self._report.gpus
        )

    async def samples(self, after: int) -> Sequence[NodeSample]:
        """Return one sample for each second since the start, at most ten."""
        number = int(time.time() - self._begun)
        return [self._look(n) for n in range(max(after + 1, number - 9), number + 1)] if after < number else []

    def _look(self, number: int) -> NodeSample:
        draw = self._draw.random
        gpus = tuple(
            GpuSample(g.uuid, 100 * draw(), g.memory_mib // 2, 1, 250.0, 60.0, 1400) for g in self._report.gpus
        )
        replicas = tuple(
            ReplicaSample(key, 100 * draw(), 6000, 250.0, 9000, 1 << 30, 1 << 20, 3, gpus=1, lease=status.epoch)
            for key, status in self._programs.items()
        )
        return NodeSample(self.name, number, self._begun + number, 2500.0, 400_000, gpus, replicas)

    async def list(self) -> Sequence[ProcessStatus]:
        """Return the running programs."""
        return list(self._programs.values())

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Start the program."""
        return self._programs.setdefault(spec.key, self._status(spec.key, spec.epoch, time.time()))

    async def stop(self, key: str, grace_s: float, notice: dict[str, Any] | None = None) -> None:
        """End the program."""
        del grace_s, notice
        if key in self._programs:
            report = ExitReport(ExitReason.STOPPED, 0, None, "", time.time())
            self._inbox.put_nowait(
                FabricEvent(self.name, replace(self._programs.pop(key), phase=ProcessPhase.EXITED, exit=report))
            )

    async def notify(self, key: str, notice: dict[str, Any] | None) -> None:
        """Do nothing: no program reads the notice."""

    async def signal(self, key: str, signum: int) -> None:
        """Do nothing: no program receives the signal."""

    async def forget(self, key: str, *, delete_logs: bool = False) -> None:
        """Do nothing: a program is forgotten when it is stopped."""

    async def read_log(self, key: str, cursor: str, limit: int) -> Sequence[LogBatch]:
        """Return an empty log."""
        del key, cursor, limit
        return ()

    async def tail_log(self, key: str, lines: int) -> str:
        """Return an empty log."""
        del key, lines
        return ""

    async def attach(self, key: str) -> AttachStream:
        """Refuse: there is no program to attach to."""
        raise NotImplementedError(key)


class YearFabric:
    """The connections to all nodes of the year."""

    def __init__(self, store: Path) -> None:
        self.inbox: asyncio.Queue[FabricEvent] = asyncio.Queue()
        found = running(store)
        self._nodes = {names.node(n): YearNode(n, found[names.node(n)], self.inbox) for n in range(names.NODES)}

    async def start(self) -> None:
        """Do nothing: the nodes are up."""
        for name in self._nodes:
            self.inbox.put_nowait(FabricEvent(name, up=True))

    def link(self, node: str) -> NodeLink:
        """Return the connection to a node."""
        return self._nodes[node]

    async def events(self) -> AsyncIterator[FabricEvent]:
        """Yield the events of the nodes."""
        while True:
            yield await self.inbox.get()

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def running(store: Path) -> defaultdict[str, list[Running]]:
    """Return the running replicas of each node."""
    query = "SELECT node, workload, replica_index, attempt, lease, started_at FROM replicas WHERE state = 'running'"
    found: defaultdict[str, list[Running]] = defaultdict(list)
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    for node, workload, index, attempt, lease, started in connection.execute(query):
        found[node].append((f"{workload}.{index}.{attempt}", lease, started))
    connection.close()
    return found


async def run(path: Path, socket: Path, port: int) -> None:
    """Serve until a stop is requested."""
    store = await open_store(path)
    clock = SteadyClock()
    ports = Ports(store, YearFabric(path), clock, secrets.randbits, asyncio.sleep)
    info = PoolInfo("0", store.pool_id, "user", clock.now(), str(path.parent), None, os.geteuid(), retention_days=400)
    pool = Pool(ports, info)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await pool.start()
    gc.freeze()
    app = create_app(pool.services)
    install(app, pool.services)
    owner = await pool.services.access.actor_for_uid(os.geteuid())
    _, secret = await pool.services.access.create_token(owner, user=owner.user, role=None, expires_in_s=86400.0)
    loopback = Loopback(
        uvicorn.Config(app, "127.0.0.1", port, http=PeerHttpProtocol, lifespan="off", log_config=None, access_log=False)
    )
    tasks = [
        asyncio.create_task(loopback.serve()),
        asyncio.create_task(serve(app, socket_path=socket, stop=stop, ready=lambda _: say({"token": secret}))),
        asyncio.create_task(pool.run(stop)),
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    loopback.should_exit = True
    await asyncio.gather(*tasks)
    await pool.close()


class Loopback(uvicorn.Server):
    """A server that does not handle signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the main program handles signals."""
        yield


def say(what: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(what), flush=True)


def main() -> int:
    """Start a control plane from the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("socket", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    asyncio.run(run(options.store, options.socket, options.port))
    if options.profile:
        profile.disable()
        profile.dump_stats(options.profile)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
