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
from gpupool.domain.gpu import GpuRequest, GpuShare
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.workload import Lease, Program, Replica, ReplicaState, Workload, WorkloadKind, WorkloadState
from gpupool.services.ports import ChangeSet
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
LEASE = Lease(Epoch(1), ID, 0, 1, "default", "ann", "node", (GpuShare("gpu", 0, 600, 1),), 0.0, 0, 10.0, 20.0)
ENDED = Event(20.0, "pool", Reason.EXITED, "exited with status 0", ID, 0)
GOOD = ChangeSet((WORKLOAD,), (REPLICA,), (LEASE,), (ENDED,))
Tell = Callable[..., set[str]]
MARKS = f"{KEY} start\n{KEY} end\n"


@dataclass(slots=True)
class Folder:
    """As much of a pool as the checks look at."""

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
    """As much of a mix and of a killer."""

    marks: Path
    planned: dict[str, Planned]
    kills: Kills = field(default_factory=Kills)


@pytest.fixture
def told(tmp_path: Path) -> Tell:
    """The violations found in a pool with these rows and marks, by what they violate."""

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


def test_a_pool_in_which_all_went_well(told: Tell) -> None:
    assert told() == set()


def test_a_submission_that_is_not_there(told: Tell) -> None:
    assert told(plan=Planned("batch-2", "batch"), rows=ChangeSet(), marks="") == {"jobs lost"}


def test_a_job_that_never_ended(told: Tell) -> None:
    still = replace(WORKLOAD, state=WorkloadState.RUNNING, finished_at=None)
    assert "jobs lost" in told(replace(GOOD, workloads=(still,)))


def test_a_success_without_an_end_of_the_program(told: Tell) -> None:
    assert told(marks=f"{KEY} start\n") == {"wrong outcomes"}


def test_a_status_that_is_not_the_programs(told: Tell) -> None:
    assert told(plan=Planned("batch-1", "batch", status=3)) == {"wrong outcomes"}


def test_an_attempt_that_was_started_twice(told: Tell) -> None:
    assert told(marks=f"{KEY} start\n{MARKS}") == {"finished twice"}


def test_a_program_that_went_to_its_end_and_was_run_again(told: Tell) -> None:
    again = replace(GOOD, replicas=(replace(REPLICA, attempt=2),))
    marks = MARKS + f"{ID}.0.2 start\n{ID}.0.2 end\n"
    assert told(again, marks) == {"wrong outcomes", "finished twice"}


def test_a_program_that_is_run_again_because_its_shepherd_was_killed(told: Tell) -> None:
    again = replace(GOOD, replicas=(replace(REPLICA, attempt=2),))
    marks = MARKS + f"{ID}.0.2 start\n{ID}.0.2 end\n"
    assert told(again, marks, None, KEY) == set()


def test_an_end_that_was_counted_twice(told: Tell) -> None:
    assert told(replace(GOOD, events=(ENDED, ENDED))) == {"finished twice"}


@pytest.mark.parametrize(("granted", "found"), [(15.0, {"GPUs leased twice", "parallelism exceeded"}), (20.0, set())])
def test_a_gpu_that_was_given_out_twice_at_a_time(told: Tell, granted: float, found: set[str]) -> None:
    second = replace(LEASE, epoch=Epoch(2), attempt=2, granted_at=granted, released_at=30.0)
    assert told(replace(GOOD, leases=(LEASE, second))) == found


def test_a_lease_that_is_held_at_rest(told: Tell) -> None:
    assert told(replace(GOOD, leases=(replace(LEASE, released_at=None),))) == {"leases leaked"}


def test_a_client_that_was_told_another_status(told: Tell) -> None:
    plan = Planned("batch-1", "run", client_status=1)
    plan.client = object()  # there was one
    assert told(plan=plan) == {"clients told wrong"}


def test_a_socket_without_an_owner(told: Tell, tmp_path: Path) -> None:
    attach = tmp_path / "state" / "run" / "attach"
    attach.mkdir(parents=True)
    (attach / f"{KEY}.sock").touch()
    assert told() == {"left on the machine"}
