"""Checks after the chaos test: of the database, of the marks that programs wrote, and of the machine."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _chaos_kill import Killer, marked_processes
from _chaos_mix import Mix, Planned
from _common import FINAL, Pool, processes, rows

WHOLE_GPU = 1000
LOST = "SHEPHERD_LOST"
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Run:
    """One replica as the database records it at the end, with the plan that it belongs to."""

    planned: Planned
    workload: str
    index: int
    state: str
    reason: str
    exit_status: int | None
    attempt: int
    message: str

    def key(self, attempt: int | None = None) -> str:
        """Return the key of an attempt, by default the last one."""
        return f"{self.workload}.{self.index}.{self.attempt if attempt is None else attempt}"

    def __str__(self) -> str:
        return f"{self.planned.name} ({self.key()}): {self.state} {self.reason} {self.exit_status} {self.message!r}"


class Checks:
    """Checks that yield a sentence for each violation; ``all`` returns them by check."""

    def __init__(self, pool: Pool, mix: Mix, killer: Killer) -> None:
        self._pool = pool
        self._mix = mix
        self._kills = killer.kills
        self._starts, self._ends = read_marks(mix.marks)
        self._workloads = self._read_workloads()
        self.runs = list(self._read_runs())
        self._events = self._read_events()
        ((self.gpus_returned,),) = rows(pool, "SELECT count(*) FROM events WHERE reason = 'GPUS_RETURNED'")
        ((self.suspensions,),) = rows(pool, "SELECT count(*) FROM events WHERE reason = 'GPUS_SUSPENDED'")

    def all(self) -> dict[str, list[str]]:
        """Return the violations by kind."""
        checks = {
            "jobs lost": self.lost(),
            "wrong outcomes": self.outcomes(),
            "finished twice": self.doubled(),
            "clients told wrong": self.clients(),
            "GPUs leased twice": self.overbooked(),
            "parallelism exceeded": self.crowded(),
            "leases leaked": self.leaked_leases(),
            "left on the machine": self.leftovers(),
        }
        return {name: list(found) for name, found in checks.items()}

    # -- what happened to the workloads ------------------------------------------------------------------------------

    def lost(self) -> Iterator[str]:
        """Check that each submission exists exactly once, with all its replicas, and has ended."""
        count = Counter(name for name, _state in self._workloads.values())
        for planned in self._mix.planned.values():
            never_sent = planned.client is not None and (planned.gone or planned.no_pool_there)
            if count[planned.name] != 1 and not (never_sent and count[planned.name] == 0):
                yield f"{planned.name} is there {count[planned.name]} times"
        for workload, (name, state) in self._workloads.items():
            if state not in FINAL:
                yield f"{name} ({workload}) is still {state}"
        replicas = Counter(run.workload for run in self.runs)
        for workload, (name, _state) in self._workloads.items():
            if replicas[workload] != self._mix.planned[name].completions:
                yield f"{name} has {replicas[workload]} replicas"

    def outcomes(self) -> Iterator[str]:
        """Check that each replica ended like its program, unless an action explains another end."""
        for run in self.runs:
            if not self._rightly_ended(run):
                yield str(run)
            for attempt in range(1, run.attempt):
                if (
                    run.key(attempt) not in self._kills.shepherds
                    and not self._events[run.workload, run.index]["PREEMPTED"]
                ):
                    yield f"{run.planned.name}: attempt {run.key(attempt)} was repeated without a reason"

    def _rightly_ended(self, run: Run) -> bool:
        planned, killed = run.planned, run.key() in self._kills.shepherds
        if planned.kind == "lease":
            return run.state == "succeeded" and run.reason == "RELEASED"
        if run.reason == "EXITED":
            whole = len(self._ends[run.key()]) == 1
            wanted = "failed" if planned.status else "succeeded"
            return whole and run.exit_status == planned.status and run.state == wanted
        if run.reason == LOST:
            return killed and not planned.restarts
        return planned.gone and run.reason in {"CLIENT_GONE", "LEASE_ENDED", "STOPPED_BY_USER"}

    def doubled(self) -> Iterator[str]:
        """Check that no attempt ran twice, no finished one was repeated, and each replica ended once."""
        for key, count in self._starts.items():
            if count != 1:
                yield f"{key} was started {count} times"
        for run in self.runs:
            for attempt in range(1, run.attempt + 1):
                yield from self._doubled_attempt(run, attempt)
            ends = sum(
                n for reason, n in self._events[run.workload, run.index].items() if reason in {"EXITED", "RELEASED"}
            )
            if ends > 1 and run.planned.kind != "lease":
                yield f"{run.planned.name}/{run.index} has {ends} ends in its events"

    def _doubled_attempt(self, run: Run, attempt: int) -> Iterator[str]:
        key, ends = run.key(attempt), len(self._ends[run.key(attempt)])
        if ends > 1:
            yield f"{key} ended {ends} times"
        if ends and attempt < run.attempt and key not in self._kills.shepherds:
            yield f"{key} ended and was run again"

    def clients(self) -> Iterator[str]:
        """Check that each client that was not killed saw the program's status, unless the shepherd was killed."""
        by_name = {run.planned.name: run for run in self.runs}
        for planned in self._mix.planned.values():
            if planned.client is None or planned.gone:
                continue
            run = by_name.get(planned.name)
            if run is None and planned.no_pool_there:
                continue
            if run is not None and run.key() in self._kills.shepherds:
                continue
            if planned.client_status != planned.status:
                yield f"{planned.name}: client ended with {planned.client_status}: {planned.client_said}"

    # -- GPUs --------------------------------------------------------------------------------------------------------

    def overbooked(self) -> Iterator[str]:
        """Check that no GPU was ever overcommitted: a sweep line over all leases."""
        found = rows(
            self._pool,
            "SELECT s.gpu_uuid, s.permille, l.granted_at, l.released_at, l.epoch"
            " FROM lease_shares s JOIN leases l ON l.epoch = s.epoch",
        )
        by_gpu: dict[str, list[tuple[float, int, int, int]]] = defaultdict(list)
        for gpu, permille, granted, released, epoch in found:
            by_gpu[gpu].append((granted, 1, permille, epoch))
            if released is not None:
                by_gpu[gpu].append((released, 0, -permille, epoch))
        for gpu, steps in by_gpu.items():
            held = 0
            for at, _order, change, epoch in sorted(steps):
                held += change
                if held > WHOLE_GPU:
                    yield f"{gpu} was allocated to {held / WHOLE_GPU:.3f} at {at} (epoch {epoch})"

    def crowded(self) -> Iterator[str]:
        """Check that no sweep exceeded its parallelism."""
        placed = "SELECT workload, granted_at, released_at FROM leases WHERE released_at IS NOT NULL"
        found = rows(self._pool, f"{placed} AND replica_index >= 0")  # -1: the GPUs of a lazy program
        steps: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for workload, granted, released in found:
            steps[workload] += [(granted, 1), (released, -1)]
        for workload, (name, _state) in self._workloads.items():
            held, most = 0, self._mix.planned[name].parallelism
            for _at, change in sorted(steps[workload]):
                held += change
                if held > most:
                    yield f"{name} had {held} replicas at once, {most} allowed"

    def leaked_leases(self) -> Iterator[str]:
        """Check that no lease is left at the end."""
        for workload, index, attempt in rows(
            self._pool, "SELECT workload, replica_index, attempt FROM leases WHERE released_at IS NULL"
        ):
            yield f"the lease of {workload}.{index}.{attempt} is not released"
        for (epoch,) in rows(
            self._pool,
            "SELECT s.epoch FROM lease_shares s JOIN leases l ON l.epoch = s.epoch"
            " WHERE s.released_at IS DISTINCT FROM l.released_at",
        ):
            yield f"lease {epoch} and its shares disagree about their release"

    # -- the machine -------------------------------------------------------------------------------------------------

    def leftovers(self) -> Iterator[str]:
        """Check that there is no process, socket, folder or control group without an owner."""
        for pid, key in marked_processes(self._pool).items():
            yield f"process {pid} of {key}"
        for path in (self._pool.state / "node" / "replicas").iterdir():
            yield f"folder {path}"
        owned = {"attach": "socket", "leases": "pages of a lease", "notices": "notice", "progress": "progress file"}
        for folder, what in owned.items():
            for path in (self._pool.run_dir / folder).glob("*"):
                yield f"{what} {path}"
        known = {"api.sock", "agent.sock", "notify.sock", "state.json", "fake-gpus", *owned}
        known |= {"heard", "control-plane.phase"}  # when the node was last in contact; what a start was doing
        known |= {"context-sizes.json"}  # learnt by the agent
        for path in self._pool.run_dir.iterdir():
            if path.name not in known:
                yield f"{path}"
        workloads = set(self._workloads)
        for path in CGROUPS.glob("**/gpupool/*.*.*"):
            if path.name.split(".")[0] in workloads:
                yield f"control group {path}"

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read_workloads(self) -> dict[str, tuple[str, str]]:
        """Return the plan's name and the state of each workload by id."""
        found = {}
        for workload, name, state, spec in rows(self._pool, "SELECT id, name, state, spec FROM workloads"):
            document = json.loads(spec) if isinstance(spec, str) else spec
            env: dict[str, str] = document.get("program", {}).get("env", {})
            found[workload] = (env.get("CHAOS_NAME", name), state)
        return found

    def _read_runs(self) -> Iterator[Run]:
        columns = "workload, replica_index, state, reason, exit_status, attempt, message"
        for workload, *rest in rows(self._pool, f"SELECT {columns} FROM replicas"):
            yield Run(self._mix.planned[self._workloads[workload][0]], workload, *rest)

    def _read_events(self) -> dict[tuple[str, int], Counter[str]]:
        found: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for workload, index, reason in rows(self._pool, "SELECT workload, replica_index, reason FROM events"):
            found[workload, index][reason] += 1
        return found


def read_marks(path: Path) -> tuple[Counter[str], dict[str, list[str]]]:
    """Return the number of starts of each attempt, and the lines that report the end of its program."""
    starts: Counter[str] = Counter()
    ends: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        key, _, what = line.partition(" ")
        if what == "start":
            starts[key] += 1
        else:
            ends[key].append(line)
    return starts, ends


def holders(folder: Path) -> Iterator[str]:
    """Return processes that have files of a folder open or use it as current folder."""
    for pid in processes():
        links = [Path(f"/proc/{pid}/cwd")]
        try:
            links += Path(f"/proc/{pid}/fd").iterdir()
            if any(str(link.readlink()).startswith(f"{folder}/") for link in links):
                yield f"process {pid} holds files of {folder}"
        except OSError:
            continue


def at_rest(pool: Pool) -> bool:
    """Return whether everything has ended and the node was asked to forget it."""
    open_ones: list[tuple[Any, ...]] = rows(pool, f"SELECT 1 FROM workloads WHERE state NOT IN {FINAL} LIMIT 1")
    return not open_ones and not any((pool.state / "node" / "replicas").iterdir())
