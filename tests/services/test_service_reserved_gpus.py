"""Reserved GPUs of workspaces: always held by exactly one of the reservation and the session, through every failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused
from test_service_workspaces import HALF, NONE, S, new, service, state

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.usage import GroupBy
from gpupool.domain.work.workload import Workload, WorkloadState
from gpupool.domain.work.workspace import Workspace
from gpupool.services.workspaces.service import NewWorkspace

ONE, TWO = GpuRequest(), GpuRequest(count=2)


def reservation(world: World, ref: str = "lab") -> Workload:
    found = service(world).reservation(service(world).get(ANN, ref))
    assert found is not None
    return found


def holders(world: World) -> dict[str, list[str]]:
    """Return the names of the workloads that hold GPUs, with the GPUs of each."""
    mirror = world.now.engine.mirror
    found: dict[str, list[str]] = {}
    for lease in mirror.leases.values():
        gpus = found.setdefault(mirror.workloads[lease.workload].name, [])
        gpus += [share.gpu_uuid for share in lease.shares]
    return {name: gpus for name, gpus in found.items() if gpus}


async def reserved(world: World, name: str = "lab", gpus: GpuRequest = ONE, project: str = "") -> Workspace:
    made = await new(world, name, gpus=gpus, project=project, reserved=True)
    await world.settle()
    return made


def test_stopped_workspace_keeps_its_gpu_and_its_session_gets_the_same(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        held = holders(world)
        assert list(held) == ["lab-reserved"]
        for _ in range(2):
            await service(world).start(ANN, "lab")
            await world.settle()
            assert holders(world) == {"lab": held["lab-reserved"]}
            assert reservation(world).state is WorkloadState.SUSPENDED
            assert [share.gpu_uuid for share in world.agent.running()[0].spec.gpus] == held["lab-reserved"]
            await world.pass_time(30)
            await service(world).stop(ANN, "lab")
            await world.settle()
            assert holders(world) == held
            assert (reservation(world).state, state(world)) == (WorkloadState.RUNNING, S.STOPPED)

    world.do(story())


def test_wait_reason_of_others_names_holder_of_reserved_gpu(world: World) -> None:
    async def story() -> None:
        await reserved(world, gpus=TWO)
        other = await world.submit(BOB, gpus={"count": 1})
        assert other.state is WorkloadState.QUEUED
        why = await world.services.workloads.why(BOB, other.id)
        assert "lab-reserved" in " ".join([why.sentence, *why.would_help])
        await service(world).assign(ANN, "lab", NONE)
        await world.settle()
        assert world.is_running(other)

    world.do(story())


def test_idle_limits_do_not_end_a_reservation_but_the_time_limit_of_the_project_does(world: World) -> None:
    async def story() -> None:
        rules = ProjectRules()
        await world.services.access.create_project(
            ADMIN, Project("red", idle_timeout_s=60.0, max_time_s=7200.0, rules=rules)
        )
        await reserved(world, project="red")
        await world.pass_time(7000)
        assert list(holders(world)) == ["lab-reserved"]
        await world.pass_time(300)
        assert holders(world) == {}
        row = service(world).get(ANN, "lab")
        assert row.reserved
        assert service(world).reservation(row) is None
        await service(world).start(ANN, "lab")
        await world.settle()
        assert list(holders(world)) == ["lab"], "it starts on a free GPU as any other"

    world.do(story())


def test_only_whole_gpus_can_be_reserved(world: World) -> None:
    async def story() -> None:
        for gpus in (HALF, NONE, GpuRequest(memory_mib=1024)):
            await refused(lambda gpus=gpus: new(world, gpus=gpus, reserved=True), ErrorCode.INVALID_REQUEST)
        assert service(world).all(ANN) == []

    world.do(story())


def test_reservation_above_the_quota_is_refused_and_within_it_waits(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", quota_permille=1000))
        found = await refused(lambda: new(world, gpus=TWO, project="red", reserved=True), ErrorCode.OVER_LIMIT)
        assert "quota of red" in found.message
        await new(world, "one", gpus=ONE, project="red", reserved=True)
        await new(world, "two", gpus=ONE, project="red", reserved=True)
        await world.settle()
        assert list(holders(world)) == ["one-reserved"]
        why = await world.services.workloads.why(ANN, reservation(world, "two").id)
        assert "quota" in why.sentence.lower()

    world.do(story())


def test_session_that_starts_before_its_gpu_is_free_takes_the_place_in_the_queue(world: World) -> None:
    async def story() -> None:
        blocker = await world.submit(BOB, gpus={"count": 2})
        await reserved(world)
        assert reservation(world).state is WorkloadState.QUEUED
        await service(world).start(ANN, "lab")
        await world.settle()
        assert reservation(world).state is WorkloadState.SUSPENDED
        await world.end(blocker)
        assert list(holders(world)) == ["lab"]
        await service(world).stop(ANN, "lab")
        await world.settle()
        assert list(holders(world)) == ["lab-reserved"]

    world.do(story())


def test_session_that_is_stopped_while_it_waits_leaves_the_reservation_in_the_queue(world: World) -> None:
    async def story() -> None:
        blocker = await world.submit(BOB, gpus={"count": 2})
        await reserved(world)
        await service(world).start(ANN, "lab")
        await world.settle()
        await service(world).stop(ANN, "lab")
        await world.settle()
        await world.settle()
        assert reservation(world).state is WorkloadState.QUEUED
        await world.end(blocker)
        assert list(holders(world)) == ["lab-reserved"]

    world.do(story())


def test_session_without_gpus_leaves_them_reserved(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        await service(world).start(ANN, "lab", NONE)
        await world.settle()
        assert list(holders(world)) == ["lab-reserved"]
        assert state(world) is S.RUNNING
        await service(world).stop(ANN, "lab")
        await world.settle()
        await refused(lambda: service(world).start(ANN, "lab", HALF), ErrorCode.WRONG_STATE)
        await service(world).start(ANN, "lab")
        await world.settle()
        assert list(holders(world)) == ["lab"], "a start without GPUs changes nothing for the next"

    world.do(story())


def test_suspended_session_gives_the_gpu_back_and_resumes_on_it(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        held = holders(world)
        session = await service(world).start(ANN, "lab")
        await world.settle()
        await world.services.workloads.suspend(ANN, session.id)
        await world.settle()
        assert holders(world) == held
        await world.services.workloads.resume(ANN, session.id)
        await world.settle()
        assert holders(world) == {"lab": held["lab-reserved"]}

    world.do(story())


def test_restart_in_place_keeps_the_gpu(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        held = holders(world)["lab-reserved"]
        session = await service(world).start(ANN, "lab")
        await world.settle()
        await world.services.workloads.restart(ANN, session.id)
        await world.settle()
        assert holders(world) == {"lab": held}

    world.do(story())


def test_session_does_not_start_on_a_cordoned_node(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        await world.services.nodes.cordon(ADMIN, "here", "")
        await service(world).start(ANN, "lab")
        await world.settle()
        assert list(holders(world)) == ["lab-reserved"]
        await world.services.nodes.uncordon(ADMIN, "here")
        await world.settle()
        assert list(holders(world)) == ["lab"]

    world.do(story())


def test_unassign_and_delete_release_the_gpu(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        await service(world).assign(ANN, "lab", NONE)
        await world.settle()
        assert holders(world) == {}
        await service(world).assign(ANN, "lab", TWO, reserved=True)
        await world.settle()
        assert len(holders(world)["lab-reserved"]) == 2
        await service(world).assign(ANN, "lab", ONE, reserved=True)
        await world.settle()
        assert len(holders(world)["lab-reserved"]) == 1
        await service(world).start(ANN, "lab")
        await world.settle()
        await refused(lambda: service(world).delete(ANN, "lab"), ErrorCode.WRONG_STATE)
        assert list(holders(world)) == ["lab"], "a refused change releases nothing"
        await service(world).stop(ANN, "lab")
        await world.settle()
        await service(world).delete(ANN, "lab")
        await world.settle()
        assert holders(world) == {}

    world.do(story())


def test_clone_is_not_reserved_and_programs_cannot_use_a_reservation(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        await service(world).clone(ANN, "lab", "copy")
        await world.settle()
        assert not service(world).get(ANN, "copy").reserved
        assert list(holders(world)) == ["lab-reserved"]
        found = await refused(
            lambda: world.submit(kind="exec", on=reservation(world).id, command=["sh"]), ErrorCode.WRONG_STATE
        )
        assert "reserved for a workspace" in found.message

    world.do(story())


def test_simultaneous_starts_move_the_gpu_once(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        held = holders(world)["lab-reserved"]
        await asyncio.gather(*(service(world).start(ANN, "lab") for _ in range(4)), return_exceptions=True)
        await world.settle()
        assert holders(world) == {"lab": held}
        assert len(world.agent.running()) == 1

    world.do(story())


def test_time_while_stopped_is_metered_for_the_project(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red"))
        await reserved(world, project="red")
        begin = world.clock.now()
        await world.pass_time(3600)
        lines = await world.services.accounting.usage(begin, world.clock.now(), GroupBy.PROJECT)
        [line] = [line for line in lines if line.key == "red"]
        assert line.time.allocated_s == pytest.approx(3600, abs=10)

    world.do(story())


@pytest.mark.parametrize("step", ["reserved", "start", "running", "stop"])
def test_crash_at_any_step_neither_loses_nor_doubles_the_gpu(world: World, step: str) -> None:
    async def story() -> None:
        await reserved(world)
        held = holders(world)["lab-reserved"]
        if step != "reserved":
            await service(world).start(ANN, "lab")
        if step in {"running", "stop"}:
            await world.settle()
        if step == "stop":
            await service(world).stop(ANN, "lab")
        await world.crash()
        await world.boot()
        await world.settle()
        await world.pass_time(2)
        owner = "lab" if step in {"start", "running"} else "lab-reserved"
        assert holders(world) == {owner: held}
        row = service(world).get(ANN, "lab")
        assert replace(row, disk_bytes=None, measured_at=None).reserved

    world.do(story())


async def create(world: World) -> None:
    await service(world).create(ANN, NewWorkspace("lab", "", ONE, reserved=True))


async def unassign(world: World) -> None:
    await service(world).assign(ANN, "lab", NONE)


async def resize(world: World) -> None:
    await service(world).assign(ANN, "lab", TWO, reserved=True)


async def delete(world: World) -> None:
    await service(world).delete(ANN, "lab")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("act", "held_before", "held_after"), [(create, 0, 1), (unassign, 1, 0), (resize, 1, 2), (delete, 1, 0)]
)
def test_crash_in_a_change_leaves_workspace_and_reservation_in_agreement(
    world: World, act: Callable[[World], Awaitable[None]], held_before: int, held_after: int, moment: str
) -> None:
    async def story() -> None:
        if act is not create:
            await reserved(world)
        assert world.store is not None
        world.store.die = (0, moment)
        await world.attempt(act(world))
        assert world.store.dying.is_set(), "the change was stopped at its write"
        await world.reboot()
        await world.pass_time(2)
        expected = held_after if moment == "after" else held_before
        assert sum(len(gpus) for gpus in holders(world).values()) == expected
        rows = service(world).all(ANN)
        assert sum(row.gpus.count for row in rows if row.reserved) == expected
        await world.check_at_rest()

    world.do(story())


def test_workspace_whose_home_cannot_be_made_releases_its_gpu(world: World) -> None:
    async def story() -> None:
        world.agent.home_error = GpupoolError(ErrorCode.DISK_FULL, "The disk is full.", "Delete files.")
        made = await service(world).create(ANN, NewWorkspace("lab", "", ONE, reserved=True))
        await refused(lambda: service(world).settled(made, 30), ErrorCode.DISK_FULL)
        await world.settle()
        assert service(world).all(ANN) == []
        assert holders(world) == {}
        assert world.now.engine.mirror.reservations == {}

    world.do(story())


def test_refused_forget_keeps_the_reservation(world: World) -> None:
    async def story() -> None:
        await reserved(world)
        await refused(lambda: service(world).delete(ANN, "lab", forget=True), ErrorCode.WRONG_STATE)
        await world.settle()
        assert list(holders(world)) == ["lab-reserved"]

    world.do(story())


@pytest.mark.parametrize(("started", "after"), [(False, []), (True, ["lab-reserved"])])
def test_reservation_on_a_lost_node_ends_unless_a_session_used_it(
    world: World, started: bool, after: list[str]
) -> None:
    async def story() -> None:
        await reserved(world)
        if started:
            await service(world).start(ANN, "lab")
            await world.settle()
        world.agent.go(up=False)
        await world.pass_time(600)
        assert list(holders(world)) == ["lab" if started else "lab-reserved"], "silence releases nothing"
        await world.services.nodes.declare_lost(ADMIN, "here", "its power supply burnt")
        await world.settle()
        assert holders(world) == {}
        world.agent.go(up=True)
        await world.settle()
        await world.pass_time(5)
        assert list(holders(world)) == after
        assert state(world) is S.STOPPED
        await service(world).start(ANN, "lab")
        await world.settle()
        assert list(holders(world)) == ["lab"]
        await world.check_at_rest()

    world.do(story())


def test_gpu_reserved_within_the_quota_is_protected(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", quota_permille=1000))
        await world.services.access.create_project(ADMIN, Project("blue", quota_permille=2000))
        await reserved(world, project="red")
        held = holders(world)
        assert list(held) == ["lab-reserved"]
        wanted = await world.submit(BOB, project="blue", gpus={"count": 2})
        await world.pass_time(120)
        assert holders(world) == held
        assert wanted.state is WorkloadState.QUEUED

    world.do(story())
