"""The checks of the chaos test see what they are there to see: each is shown a pool in which it went wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from _chaos_check import Checks
from _chaos_kill import Kills
from _chaos_mix import Planned
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest, GpuShare
from gpupool.domain.work.workload import (
    GpuLease,
    Program,
    Replica,
    ReplicaState,
    Workload,
    WorkloadKind,
    WorkloadState,
)
from gpupool.services.ports.store import ChangeSet
from gpupool.store import open_store

ID = WorkloadId("w0000000001")
KEY = f"{ID}.0.1"
WORKLOAD = Workload(
    ID,
    "batch-1",
    WorkloadKind.TRAINING,
    "default",
    "ann",
    Program(("true",), {"CHAOS_NAME": "batch-1"}),
    GpuRequest(),
    1.0,
    state=WorkloadState.SUCCEEDED,
    finished_at=20.0,
)
REPLICA = Replica(ID, 0, ReplicaState.SUCCEEDED, 1, exit_status=0, reason=Reason.EXITED, finished_at=20.0)
LEASE = GpuLease(Epoch(1), ID, 0, 1, "default", "ann", "node", (GpuShare("gpu", 0, 600, 1),), 0.0, 0, 10.0, 20.0)
ENDED = Event(20.0, "pool", Reason.EXITED, "exited with status 0", ID, 0)
GOOD = ChangeSet((WORKLOAD,), (REPLICA,), (LEASE,), (ENDED,))
Tell = Callable[..., set[str]]
MARKS = f"{KEY} start\n{KEY} end\n"


@dataclass(slots=True)
class Folder:
    """The parts of a pool that the checks read."""

    folder: Path
    database_url: str = ""

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def run_dir(self) -> Path:
        return self.state / "run"

    @property
    def database(self) -> Path:
        return self.state / "pool.db"


@dataclass(slots=True)
class Story:
    """The parts of a mix and of a killer that the checks read."""

    marks: Path
    planned: dict[str, Planned]
    kills: Kills = field(default_factory=Kills)


@pytest.fixture
def told(tmp_path: Path) -> Tell:
    """Return a function that finds the violations in a pool with given rows and marks, by check."""

    def tell(rows: ChangeSet = GOOD, marks: str = MARKS, plan: Planned | None = None, *killed: str) -> set[str]:
        pool = Folder(tmp_path)
        for path in (pool.state / "node" / "replicas", pool.run_dir / "attach"):
            path.mkdir(parents=True, exist_ok=True)
        asyncio.run(write(pool.database, rows))
        planned = plan or Planned("batch-1", "batch")
        story = Story(tmp_path / "marks", {planned.name: planned}, Kills(Counter(), set(killed)))
        story.marks.write_text(marks)
        found = Checks(pool, story, story).all()
        return {name for name, violations in found.items() if violations}

    return tell


async def write(database: Path, rows: ChangeSet) -> None:
    store = await open_store(database)
    try:
        await store.commit(rows)
    finally:
        await store.close()


def test_sound_history_passes(told: Tell) -> None:
    assert told() == set()


def test_missing_submission_is_found(told: Tell) -> None:
    assert told(plan=Planned("batch-2", "batch"), rows=ChangeSet(), marks="") == {"jobs lost"}


def test_job_without_end_is_found(told: Tell) -> None:
    still = replace(WORKLOAD, state=WorkloadState.RUNNING, finished_at=None)
    assert "jobs lost" in told(replace(GOOD, workloads=(still,)))


def test_success_without_program_end_is_found(told: Tell) -> None:
    assert told(marks=f"{KEY} start\n") == {"wrong outcomes"}


def test_wrong_exit_status_is_found(told: Tell) -> None:
    assert told(plan=Planned("batch-1", "batch", status=3)) == {"wrong outcomes"}


def test_duplicate_start_of_attempt_is_found(told: Tell) -> None:
    assert told(marks=f"{KEY} start\n{MARKS}") == {"finished twice"}


def test_rerun_of_finished_program_is_found(told: Tell) -> None:
    again = replace(GOOD, replicas=(replace(REPLICA, attempt=2),))
    marks = MARKS + f"{ID}.0.2 start\n{ID}.0.2 end\n"
    assert told(again, marks) == {"wrong outcomes", "finished twice"}


def test_rerun_after_lost_shepherd_is_allowed(told: Tell) -> None:
    again = replace(GOOD, replicas=(replace(REPLICA, attempt=2),))
    marks = MARKS + f"{ID}.0.2 start\n{ID}.0.2 end\n"
    assert told(again, marks, None, KEY) == set()


def test_duplicate_end_is_found(told: Tell) -> None:
    assert told(replace(GOOD, events=(ENDED, ENDED))) == {"finished twice"}


@pytest.mark.parametrize(("granted", "found"), [(15.0, {"GPUs leased twice", "parallelism exceeded"}), (20.0, set())])
def test_double_grant_of_gpu_is_found(told: Tell, granted: float, found: set[str]) -> None:
    second = replace(LEASE, epoch=Epoch(2), attempt=2, granted_at=granted, released_at=30.0)
    assert told(replace(GOOD, leases=(LEASE, second))) == found


def test_leaked_lease_is_found(told: Tell) -> None:
    assert told(replace(GOOD, leases=(replace(LEASE, released_at=None),))) == {"leases leaked"}


def test_wrong_status_at_client_is_found(told: Tell) -> None:
    plan = Planned("batch-1", "run", client_status=1)
    plan.client = object()  # there was one
    assert told(plan=plan) == {"clients told wrong"}


def test_socket_without_owner_is_found(told: Tell, tmp_path: Path) -> None:
    attach = tmp_path / "state" / "run" / "attach"
    attach.mkdir(parents=True)
    (attach / f"{KEY}.sock").touch()
    assert told() == {"left on the machine"}
