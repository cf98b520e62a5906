"""The queue as a list, and who holds what for how long without use."""

from __future__ import annotations

from pool_world import ADMIN, ANN, BOB, World

from gpupool.domain.access import Project
from gpupool.scheduling.values import Held

WHOLE_BOTH = {"gpus": {"count": 2}}


def test_the_queue_says_the_same_positions_as_why(world: World) -> None:
    async def story() -> None:
        await world.submit(**WHOLE_BOTH)
        late = [await world.submit(actor, priority=p) for actor, p in ((ANN, 0), (BOB, 0), (ANN, 100), (BOB, -100))]
        queue = await world.services.workloads.queue.queue()
        assert [row.workload.id for row in queue.waiting] == [late[i].id for i in (2, 0, 1, 3)]
        for row in queue.waiting:
            why = await world.services.workloads.why(ADMIN, row.workload.id)
            assert (row.position, why.ahead_in_project) == (why.position, row.position - 1)
        last = queue.waiting[-1]
        ahead = world.services.workloads.queue.ahead(last, queue, 2)
        assert [row.workload.id for row in ahead] == [late[0].id, late[1].id]

    world.do(story())


def test_projects_come_in_their_turn_and_those_outside_the_queue_last(world: World) -> None:
    async def story() -> None:
        for name, quota in (("rich", 2000), ("poor", 0)):
            await world.services.access.create_project(ADMIN, Project(name, quota_permille=quota))
        await world.submit(project="poor", **WHOLE_BOTH)
        resting = await world.submit(project="poor")
        await world.services.workloads.suspend(ANN, resting.id)
        poor = await world.submit(project="poor")
        rich = await world.submit(project="rich", preemptible=False, kind="interactive", wait="1h")
        later = await world.submit(after=[{"workload": poor.name, "condition": "any"}])
        queue = await world.services.workloads.queue.queue()
        shown = [(row.workload.id, row.position, row.held) for row in queue.waiting]
        assert shown[-2:] in (
            [(resting.id, 0, Held.SUSPENDED), (later.id, 0, Held.DEPENDENCY)],
            [(later.id, 0, Held.DEPENDENCY), (resting.id, 0, Held.SUSPENDED)],
        )
        names = [row.workload.project for row in queue.waiting if row.position]
        assert names == sorted(names, key=lambda name: queue.turns[name].position)
        assert rich.id in {w for w, _, _ in shown} or world.is_running(rich)

    world.do(story())


def test_replicas_beyond_the_parallelism_wait_outside(world: World) -> None:
    async def story() -> None:
        sweep = await world.submit(completions=5, parallelism=2)
        (row,) = (await world.services.workloads.queue.queue()).waiting
        assert (row.workload.id, row.pending, row.offered, row.position, row.held) == (sweep.id, 3, 0, 0, None)

    world.do(story())


def test_a_lease_is_idle_until_a_program_runs_on_it(world: World) -> None:
    async def story() -> None:
        lease = await world.submit(kind="lease", idle_timeout="1h")
        granted = world.clock.now()
        await world.pass_time(60)
        (held,) = await world.services.workloads.holdings.held()
        assert (held.lease.workload, held.last_active_at, held.programs) == (lease.id, granted, 0)
        await world.submit(kind="exec", on=lease.id)
        (held,) = await world.services.workloads.holdings.held()
        assert (held.last_active_at, held.programs) == (world.clock.now(), 1)

    world.do(story())
