"""Files and databases of an earlier version are accepted.

job_files and manifests are its examples. recorded_database.sql is the database of its pool after jobs of each kind: a
run, a batch job that failed, a sweep, a gang, a queued job, a lease, a project in a department, a user and a token.
Variables of programs and the hash of the token were replaced.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from gpupool.domain.work.workload import Workload, WorkloadKind
from gpupool.services.ports.store import EventFilter, LiveState, WorkloadFilter
from gpupool.specs.jobfile import load_job_file
from gpupool.specs.kubernetes.manifests import read_manifests
from gpupool.store import open_store
from gpupool.store.backends import errors

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted((HERE / "job_files").iterdir()), ids=lambda path: path.name)
def test_job_files_are_accepted(path: Path) -> None:
    (request,) = load_job_file(path)
    assert request.name == "digits-sweep"


@pytest.mark.parametrize("path", sorted((HERE / "manifests").iterdir()), ids=lambda path: path.name)
def test_manifests_are_accepted(path: Path) -> None:
    manifests = read_manifests(path.read_text(encoding="utf-8"), path.name)
    assert manifests.objects
    assert not manifests.skipped


def test_database_upgrade_keeps_all_data(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    with sqlite3.connect(path) as conn:
        conn.executescript((HERE / "recorded_database.sql").read_text(encoding="utf-8"))
    conn.close()
    path.chmod(0o600)
    workloads, live, events = asyncio.run(content(path))
    assert len(errors.backups(path)) == 1
    assert {name: (w.kind, len(w.program.argv) if w.program else 0) for name, w in workloads.items()} == {
        "quick": (WorkloadKind.RUN, 1),
        "first": (WorkloadKind.TRAINING, 1),
        "fails": (WorkloadKind.TRAINING, 3),
        "digits-sweep": (WorkloadKind.TRAINING, 8),
        "gang": (WorkloadKind.TRAINING, 2),
        "waits": (WorkloadKind.TRAINING, 2),
        "held": (WorkloadKind.LEASE, 0),
    }
    assert workloads["first"].labels == {"team": "vision"}
    assert workloads["digits-sweep"].completions == 6
    assert {project.name: project.department for project in live.projects}["vision"] == "science"
    assert [department.name for department in live.departments] == ["science"]
    assert {user.name for user in live.users} == {"root", "ada"}
    assert [node.name for node in live.nodes] == ["vm"]
    assert events == 53


async def content(path: Path) -> tuple[dict[str, Workload], LiveState, int]:
    store = await open_store(path)
    workloads = await store.list_workloads(WorkloadFilter())
    live = await store.load_live()
    events = await store.list_events(EventFilter(limit=1000))
    await store.close()
    return {workload.name: workload for workload in workloads}, live, len(events)
