"""Listings of live workloads from memory are those of the database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pool_world import ADMIN, ANN, BOB, World

from gpupool.domain.work.search import parse_search, parse_sort
from gpupool.domain.work.workload import WorkloadKind, WorkloadState
from gpupool.services.control.database_outage import can_list_live
from gpupool.services.ports.store import WorkloadFilter

LIVE = tuple(state for state in WorkloadState if not state.final)


@pytest.fixture
def listed(world: World) -> World:
    """Return a world with queued, running, suspended and ended workloads of two users."""
    for number in range(12):
        body = {"name": f"job-{number}", "labels": {"even": str(number % 2 == 0)}, "gpus": {"fraction": 0.5}}
        workload = world.do(world.submit(ANN if number % 3 else BOB, **body))
        world.do(world.pass_time(1.0 if number % 4 else 0.0))
        if number == 1:
            world.do(world.end(workload))
        if number == 7:
            world.do(world.services.workloads.suspend(ADMIN, workload.id))
    world.do(world.submit(ANN, kind="lease", gpus={"count": 1}))
    return world


@pytest.mark.parametrize(
    "wanted",
    [
        WorkloadFilter(states=LIVE),
        WorkloadFilter(states=(WorkloadState.QUEUED,)),
        WorkloadFilter(states=LIVE, user="bob"),
        WorkloadFilter(states=LIVE, project="default", labels=(("even", "True"),)),
        WorkloadFilter(states=LIVE, kinds=(WorkloadKind.LEASE,)),
        WorkloadFilter(states=LIVE, name="job-5"),
        WorkloadFilter(states=LIVE, name="no-such"),
        WorkloadFilter(states=LIVE, offset=3, limit=4),
    ],
    ids=str,
)
def test_memory_and_database_agree(listed: World, wanted: WorkloadFilter) -> None:
    assert can_list_live(wanted)
    found = listed.do(listed.services.workloads.list(ADMIN, wanted))
    assert found == list(listed.do(listed.now.engine.ports.store.list_workloads(wanted)))
    assert bool(found) == (wanted.name != "no-such")


def test_pages_have_each_workload_once(listed: World) -> None:
    whole = listed.do(listed.services.workloads.list(ADMIN, WorkloadFilter(states=LIVE)))
    page, found = WorkloadFilter(states=LIVE, limit=5), []
    while got := listed.do(listed.services.workloads.list(ADMIN, page)):
        found += got
        page = replace(page, before=(got[-1].created_at, got[-1].id))
    assert found == whole
    assert len(found) == 12


@pytest.mark.parametrize(
    "wanted",
    [
        WorkloadFilter(),
        WorkloadFilter(states=(WorkloadState.QUEUED, WorkloadState.FAILED)),
        WorkloadFilter(states=LIVE, search=parse_search("job")),
        WorkloadFilter(states=LIVE, sort=parse_sort("name")),
    ],
)
def test_other_listings_are_of_the_database(wanted: WorkloadFilter) -> None:
    assert not can_list_live(wanted)
