"""The queue as a list, and leases with their idle time."""

from __future__ import annotations

from pool_world import ADMIN, ANN, BOB, World

from gpupool.domain.people.access import Project
from gpupool.scheduling.values import BlockReason

WHOLE_BOTH = {"gpus": {"count": 2}}


def test_queue_and_why_show_equal_positions(world: World) -> None:
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


def test_projects_are_in_scheduling_order_and_held_work_is_last(world: World) -> None:
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
            [(resting.id, 0, BlockReason.SUSPENDED), (later.id, 0, BlockReason.DEPENDENCY)],
            [(later.id, 0, BlockReason.DEPENDENCY), (resting.id, 0, BlockReason.SUSPENDED)],
        )
        names = [row.workload.project for row in queue.waiting if row.position]
        assert names == sorted(names, key=lambda name: queue.turns[name].position)
        assert rich.id in {w for w, _, _ in shown} or world.is_running(rich)

    world.do(story())


def test_queue_why_and_summary_have_equal_order(world: World) -> None:
    async def story() -> None:
        for name in ("red", "blue", "green"):
            await world.services.access.create_project(ADMIN, Project(name))
        await world.submit(project="red", **WHOLE_BOTH)
        for project in ("red", "blue", "green", "blue", "red", "green"):
            await world.submit(project=project, gpus={"count": 1 if project == "blue" else 2})
        queue = await world.services.workloads.queue.queue()
        explained = [await world.services.workloads.why(ADMIN, row.workload.id) for row in queue.waiting]
        assert [why.ahead_total for why in explained] == list(range(6))
        first = queue.waiting[0].workload.project
        assert "served first" not in explained[0].sentence
        firsts = {row.workload.project: why for row, why in reversed(list(zip(queue.waiting, explained, strict=True)))}
        assert all(f"{first}, which" in why.sentence for project, why in firsts.items() if project != first)

    world.do(story())


def test_replicas_above_parallelism_wait_outside_the_queue(world: World) -> None:
    async def story() -> None:
        sweep = await world.submit(completions=5, parallelism=2)
        (row,) = (await world.services.workloads.queue.queue()).waiting
        assert (row.workload.id, row.pending, row.offered, row.position, row.held) == (sweep.id, 3, 0, 0, None)

    world.do(story())


def test_lease_is_idle_until_a_program_runs_on_it(world: World) -> None:
    async def story() -> None:
        lease = await world.submit(kind="lease", idle_timeout="1h")
        granted = world.clock.now()
        await world.pass_time(60)
        (held,) = await world.services.workloads.current_leases.held()
        assert (held.lease.workload, held.last_active_at, held.programs) == (lease.id, granted, 0)
        await world.submit(kind="exec", on=lease.id)
        (held,) = await world.services.workloads.current_leases.held()
        assert (held.last_active_at, held.programs) == (world.clock.now(), 1)

    world.do(story())
