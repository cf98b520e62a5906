"""While the database is unavailable, active workloads are listed from memory and stopped on their nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pool_world import ADMIN, ANN, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.workload import WorkloadState
from gpupool.services.ports.store import EventFilter, WorkloadFilter


class Away:
    """A database that does not answer."""

    async def read(self, _work: Any) -> NoReturn:
        raise GpupoolError(ErrorCode.DATABASE_UNREACHABLE, "The database does not answer.", "Start it.")

    write = read

    async def close(self) -> None:
        pass


def go_away(world: World) -> Callable[[], None]:
    """Make the database unavailable; the returned function makes it available."""
    store = world.store
    assert store is not None
    there, store._database = store._database, Away()  # type: ignore[assignment]

    def come_back() -> None:
        store._database = there

    return come_back


def test_active_work_is_listed_described_and_explained(world: World) -> None:
    async def story() -> None:
        await world.submit(name="big", gpus={"count": 2})
        await world.submit(name="waits", gpus={"count": 2})
        come_back = go_away(world)
        work = world.services.workloads
        found = await work.list(ANN, WorkloadFilter())
        assert {each.name for each in found} == {"waits", "big"}
        assert await work.count(ANN, WorkloadFilter(states=(WorkloadState.QUEUED,))) == 1
        big = await work.get(ANN, "big")
        assert (big.state, len(await work.replicas_of(big)), len(await work.leases_of(big))) == (
            WorkloadState.RUNNING,
            1,
            1,
        )
        assert (await work.why(ANN, "waits")).sentence
        events = await world.services.history.events(ADMIN, EventFilter(workload=big.id))
        assert [event.reason for event in events] == ["SUBMITTED", "GRANTED", "STARTED"]
        await refused(lambda: work.get(ANN, "nobody"), ErrorCode.DATABASE_UNREACHABLE)
        come_back()

    world.do(story())


def test_stop_ends_program_at_once_and_is_stored_later(world: World) -> None:
    async def story() -> None:
        job, waits = await world.submit(name="job", gpus={"count": 2}), await world.submit(name="waits")
        come_back = go_away(world)
        error = await refused(lambda: world.services.workloads.stop(ANN, "job"), ErrorCode.DATABASE_UNREACHABLE)
        assert "stopped 1 of 1 programs" in error.message
        assert not world.is_running(job)
        error = await refused(lambda: world.services.workloads.stop(ANN, "waits"), ErrorCode.DATABASE_UNREACHABLE)
        assert "no program was running" in error.message
        come_back()
        await world.pass_time(5)
        await world.pass_time(5)
        assert await world.state("job") is WorkloadState.STOPPED
        assert await world.state("waits") is WorkloadState.STOPPED
        assert not world.is_running(waits)
        await world.check_at_rest()

    world.do(story())


def test_stop_survives_a_crash_before_it_is_stored(world: World) -> None:
    async def story() -> None:
        job = await world.submit(name="job", restart="on-failure", backoff_limit=3)
        come_back = go_away(world)
        await refused(lambda: world.services.workloads.stop(ANN, "job"), ErrorCode.DATABASE_UNREACHABLE)
        come_back()
        await world.reboot()
        assert await world.state("job") is WorkloadState.STOPPED
        assert not world.is_running(job)
        await world.check_at_rest()

    world.do(story())
