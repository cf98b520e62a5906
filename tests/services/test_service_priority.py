"""A changed priority of waiting work: its order changes, and its queue time stays."""

from __future__ import annotations

from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Actor, Project, Role
from gpupool.domain.work.workload import Workload
from gpupool.services.ports.store import EventFilter
from gpupool.specs.request import parse_request

WHOLE_BOTH = {"gpus": {"count": 2}}


def test_higher_priority_starts_before_earlier_submission(world: World) -> None:
    async def story() -> None:
        running = await world.submit(**WHOLE_BOTH)
        first, second, third = [await world.submit(**WHOLE_BOTH) for _ in range(3)]
        await world.allow_priorities()
        made = await world.services.workloads.set_priority(ANN, third.id, 100)
        assert made.priority == 100
        await world.services.workloads.set_priority(ANN, first.id, -5)
        queue = await world.services.workloads.queue.queue()
        assert [row.workload.id for row in queue.waiting] == [third.id, second.id, first.id]
        for ended, following in ((running, third), (third, second), (second, first)):
            await world.end(ended)
            assert world.is_running(following)
        await world.end(first)
        await world.check_at_rest()

    world.do(story())


def test_new_priority_is_recorded_and_survives_a_restart(world: World) -> None:
    async def story() -> None:
        await world.submit(**WHOLE_BOTH)
        first, second = [await world.submit(**WHOLE_BOTH) for _ in range(2)]
        await world.services.workloads.set_priority(ADMIN, second.id, 7)
        await world.services.workloads.set_priority(ADMIN, second.id, 7)
        wanted = EventFilter(workload=second.id, reasons=(Reason.CHANGED,))
        (event,) = await world.services.history.events(ADMIN, wanted)
        assert (event.actor, event.message) == (ADMIN.user, "priority 0 -> 7")
        await world.crash()
        await world.boot()
        queue = await world.services.workloads.queue.queue()
        assert [row.workload.id for row in queue.waiting] == [second.id, first.id]

    world.do(story())


def test_priority_of_running_work_or_of_other_users_is_not_changed(world: World) -> None:
    async def story() -> None:
        running = await world.submit(**WHOLE_BOTH)
        waits = await world.submit(**WHOLE_BOTH)
        service = world.services.workloads
        await refused(lambda: service.set_priority(ANN, running.id, -5), ErrorCode.WRONG_STATE)
        await refused(lambda: service.set_priority(BOB, waits.id, 5), ErrorCode.FORBIDDEN)

    world.do(story())


def test_members_cannot_choose_a_priority_above_the_limit_of_the_project(world: World) -> None:
    """A member who could would preempt, and overtake for ever, the work of all others in the project."""

    async def story() -> None:
        access, service = world.services.access, world.services.workloads
        for name in ("ann", "bob", "mia"):
            await access.put_user(ADMIN, name, {})
        await access.create_project(ADMIN, Project("vision", members=("ann", "bob", "mia")))
        manager = Actor("mia", Role.MANAGER, "uid 1003", 1003)

        async def submit(actor: Actor, priority: int) -> Workload:
            body = {"kind": "training", "command": ["work"], "project": "vision", "priority": priority}
            made, _ = await service.submit(actor, parse_request(body))
            return made

        found = await refused(lambda: submit(ANN, 1), ErrorCode.OVER_LIMIT)
        assert "members of the project vision may choose at most 0" in found.message
        for actor in (manager, ADMIN):
            assert (await submit(actor, 1000)).priority == 1000
        await world.submit(**WHOLE_BOTH)
        own = await submit(ANN, -5)
        await refused(lambda: service.set_priority(ANN, own.id, 5), ErrorCode.OVER_LIMIT)
        assert (await service.set_priority(ANN, own.id, -1)).priority == -1
        await access.change_project(ADMIN, "vision", {"rules": {"max_priority": 10}})
        assert (await service.set_priority(ANN, own.id, 10)).priority == 10
        await refused(lambda: submit(BOB, 11), ErrorCode.OVER_LIMIT)
        await access.change_project(ADMIN, "vision", {"rules": {"max_priority": -10}})
        await refused(lambda: submit(BOB, 0), ErrorCode.OVER_LIMIT)

    world.do(story())
