"""Kill the pool's processes with SIGKILL, and watch from outside for programs that should not run."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from _chaos_mix import Mix
from _common import UNREADABLE, Pool, processes, rows, runs, start_ticks

# How often each kind is drawn. Kinds that take seconds to come back are drawn less often.
WEIGHTS = {
    "shepherd": 38,
    "client": 26,
    "spawner": 10,
    "arbiter": 4,
    "suspension-helper": 4,
    "agent": 9,
    "control-plane": 9,
    "supervisor": 3,
    "everything": 1,
}
KEY = b"GPUPOOL_REPLICA_KEY="


@dataclass(slots=True)
class Kills:
    """Number of killed processes by kind."""

    by_kind: Counter[str] = field(default_factory=Counter)
    shepherds: set[str] = field(default_factory=set)  # keys of attempts whose shepherd was killed
    outages_s: list[float] = field(default_factory=list)  # from a supervisor's death until the pool was up again

    @property
    def total(self) -> int:
        """Return the number of processes."""
        return sum(self.by_kind.values())


class Killer:
    """Chooses a random running process and kills it."""

    weights = WEIGHTS

    def __init__(self, pool: Pool, mix: Mix, seed: int) -> None:
        self.kills = Kills()
        self._pool = pool
        self._mix = mix
        self._random = random.Random(seed ^ 0x5EED)

    def strike(self) -> bool:
        """Kill once; return False if no process of the drawn kind runs."""
        return self._blow(self._random.choices(list(self.weights), list(self.weights.values()))[0])

    def rest(self) -> None:
        """Stop killing and restart what is still to be restarted."""

    def _blow(self, kind: str) -> bool:
        if kind == "everything":
            return self._kill_everything()
        if kind == "shepherd":
            found = self.shepherds()
            return bool(found) and self._kill_shepherd(*self._random.choice(sorted(found.items())))
        if kind == "client":
            return self._kill_client()
        pid = self._pool.pids().get(kind)
        done = pid is not None and self._kill(kind, pid)
        if done and kind == "supervisor":
            self._raise_again()
        return done

    def shepherds(self) -> dict[str, tuple[int, int]]:
        """Return pid and start time of each running shepherd by the key of its attempt."""
        found = {}
        for record in (self._pool.state / "node" / "replicas").glob("*/shepherd.json"):
            try:
                said = json.loads(record.read_bytes())
            except (OSError, ValueError):
                continue
            if runs(said["pid"], said["start"]):
                found[record.parent.name] = (said["pid"], said["start"])
        return found

    def _kill_shepherd(self, key: str, identity: tuple[int, int]) -> bool:
        self.kills.shepherds.add(key)  # before the kill, because it may end by itself at the same moment
        return runs(*identity) and self._kill("shepherd", identity[0])

    def _kill_client(self) -> bool:
        clients = self._mix.clients()
        if not clients:
            return False
        victim = self._random.choice(clients)
        victim.client_killed = True
        return victim.client is not None and self._kill("client", victim.client.pid)

    def _kill_everything(self) -> bool:
        pids = self._pool.pids()
        if "supervisor" not in pids:
            return False
        for kind, pid in pids.items():
            self._kill(kind, pid)
        for key, identity in self.shepherds().items():
            self._kill_shepherd(key, identity)
        for planned in self._mix.clients():
            planned.client_killed = True
            if planned.client is not None:
                self._kill("client", planned.client.pid)
        self._raise_again()
        return True

    def _kill(self, kind: str, pid: int) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills.by_kind[kind] += 1
        return True

    def _raise_again(self) -> None:
        begun = time.monotonic()
        time.sleep(self._random.uniform(0, 0.5))
        self._up_again()
        self.kills.outages_s.append(time.monotonic() - begun)

    def _up_again(self) -> None:
        self._pool.up()


class Watcher(threading.Thread):
    """Checks twice a second for programs whose attempt has ended or released its GPUs by the database."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(name="watcher")
        self.looks = 0
        self.violations: list[str] = []
        self._pool = pool
        self._done = threading.Event()

    def run(self) -> None:
        """Kill until requested to finish."""
        while not self._done.wait(0.5):
            try:
                self._look()
            except UNREADABLE:
                continue

    def finish(self) -> None:
        """Stop the checks."""
        self._done.set()
        self.join()

    def _look(self) -> None:
        at = time.time()
        running = marked_processes(self._pool)
        leases = "SELECT workload || '.' || replica_index || '.' || attempt, released_at FROM leases"
        ended = "SELECT workload || '.' || replica_index || '.' || attempt, finished_at FROM replicas"
        over = dict(rows(self._pool, f"{leases} WHERE released_at IS NOT NULL"))
        over |= dict(rows(self._pool, f"{ended} WHERE state IN ('succeeded', 'failed', 'stopped')"))
        self.looks += 1
        for pid, key in running.items():
            if key in over and over[key] < at:
                self.violations.append(f"process {pid} of {key} was alive {at - over[key]:.2f} s after its end")


def marked_processes(pool: Pool) -> dict[int, str]:
    """Return the attempt of each running process that has the mark of a program of this pool."""
    mine = f"CHAOS_POOL={pool.folder}".encode()
    found = {}
    for pid in processes():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        keys = [entry[len(KEY) :].decode() for entry in environ if entry.startswith(KEY)]
        if keys and mine in environ and start_ticks(pid) is not None:
            found[pid] = keys[-1]
    return found
