"""Suspended programs: what is preempted keeps its state in the memory of its node and continues on its own GPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pool_world import ADMIN, ANN, BOB, World
from test_service_adoption import copied, go_back, lose_database
from test_service_lazy import HALF, held, row_of, use_cuda

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.work.workload import LAZY_GPUS, ReplicaState, Workload, WorkloadState

SUSPEND = {"on_preempt": "suspend", "preemptible": True, "project": "red"}


async def red(world: World) -> None:
    await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))


async def training(world: World, **body: object) -> Workload:
    return await world.submit(kind="training", **{"gpus": {"count": 1}, **SUSPEND, **body})


async def urgent(world: World, count: int = 2) -> Workload:
    return await world.submit(BOB, gpus={"count": count}, priority="high", preemptible=False, project="red")


def test_preempted_program_lives_on_and_continues_on_its_own_gpu(world: World) -> None:
    async def story() -> None:
        await red(world)
        made = await training(world)
        assert held(world) == [(0, 0), (LAZY_GPUS, 1000)]
        (mine,) = world.agent.programs[world.program(made)].spec.gpus
        await world.pass_time(5)
        first = await urgent(world)
        await world.pass_time(2)
        assert world.is_running(made)
        assert world.is_running(first)
        assert held(world) == [(0, 0), (0, 2000)]
        row = await row_of(world, made)
        assert (row.attempt, row.interruptions, row.lost_gpu_s, row.suspended_gpu) == (1, 0, 0.0, mine.gpu_uuid)
        why = await world.services.workloads.why(ANN, made.id)
        assert "suspended" in why.sentence
        world.check_always()
        await world.reboot()
        await world.end(first)
        (again,) = world.agent.programs[world.program(made)].spec.gpus
        assert again == mine
        row = await row_of(world, made)
        assert (row.attempt, row.suspended_gpu, row.gpu_lease is not None) == (1, "", True)
        world.check_always()
        await world.end(made)
        assert held(world) == []
        await world.check_at_rest()

    world.do(story())


def test_suspended_program_waits_for_its_own_gpu_also_beside_a_free_one(world: World) -> None:
    async def story() -> None:
        await red(world)
        made = await training(world)
        await world.pass_time(5)
        both = await urgent(world)
        await world.pass_time(2)
        (mine,) = [(await row_of(world, made)).suspended_gpu]
        await world.end(both)
        world.agent.suspend_now(world.program(made))  # unused now
        await world.settle()
        other = await world.submit(BOB, gpus={"count": 1, "fraction": 0.5})
        (taken,) = world.agent.programs[world.program(other)].spec.gpus
        rest = await world.submit(BOB, gpus={"count": 1})
        on_mine = other if taken.gpu_uuid == mine else rest
        await use_cuda(world, made)
        assert (await row_of(world, made)).waits_for_gpus
        await world.end(rest if on_mine is other else other)
        assert (await row_of(world, made)).waits_for_gpus, "the other GPU has room"
        await world.end(on_mine)
        (share,) = world.agent.programs[world.program(made)].spec.gpus
        assert share.gpu_uuid == mine
        world.check_always()

    world.do(story())


@pytest.mark.parametrize("answer", ["The program cannot be suspended: no memory.", None])
def test_program_that_cannot_be_suspended_is_stopped_with_its_grace_period(world: World, answer: str | None) -> None:
    """Its node refuses, or never answers."""

    async def story() -> None:
        await red(world)
        world.agent.suspend_answer = answer
        made = await training(world, grace="5s")
        await world.pass_time(5)
        first = await urgent(world)
        await world.pass_time(12 if answer else 170)
        assert world.is_running(first)
        row = await row_of(world, made)
        assert (row.state, row.interruptions, row.suspend_asked_at) == (ReplicaState.PENDING, 1, None)
        if answer is not None:
            assert answer in row.message
        world.check_always()
        await world.check_at_rest()

    world.do(story())


def test_lazy_session_is_suspended_when_unused_and_preempted_alike(world: World) -> None:
    async def story() -> None:
        await red(world)
        made = await world.submit(kind="interactive", lazy=True, gpus=HALF, **SUSPEND)
        assert held(world) == [(0, 0)]
        await use_cuda(world, made)
        world.agent.suspend_now(world.program(made))
        await world.settle()
        assert held(world) == [(0, 0)]
        why = await world.services.workloads.why(ANN, made.id)
        assert "It is suspended" in why.sentence
        await use_cuda(world, made)
        await world.pass_time(5)
        first = await urgent(world)
        await world.pass_time(2)
        assert world.is_running(first)
        assert (await row_of(world, made)).suspended_gpu
        world.check_always()

    world.do(story())


def test_suspended_processes_that_end_free_the_program_from_its_gpu(world: World) -> None:
    async def story() -> None:
        await red(world)
        made = await world.submit(kind="interactive", lazy=True, gpus={"count": 1}, **SUSPEND)
        await use_cuda(world, made)
        key = world.program(made)
        world.agent.suspend_now(key)
        await world.settle()
        mine = (await row_of(world, made)).suspended_gpu
        world.agent.forget_suspended(key)
        await world.settle()
        assert (await row_of(world, made)).suspended_gpu == ""
        whole = [await world.submit(BOB, gpus={"count": 1}) for _ in range(2)]
        freed = next(w for w in whole if world.agent.programs[world.program(w)].spec.gpus[0].gpu_uuid != mine)
        await use_cuda(world, made)
        await world.end(freed)
        (share,) = world.agent.programs[world.program(made)].spec.gpus
        assert share.gpu_uuid != mine

    world.do(story())


@pytest.mark.parametrize("end", ["program", "stop", "suspend"])
def test_every_end_of_a_suspended_program_leaves_no_lease(world: World, end: str) -> None:
    async def story() -> None:
        await red(world)
        made = await training(world)
        await world.pass_time(5)
        first = await urgent(world)
        await world.pass_time(2)
        if end == "program":
            await world.end(made, code=0)
            assert await world.state(made.id) is WorkloadState.SUCCEEDED
        elif end == "stop":
            await world.services.workloads.stop(ANN, made.id)
            await world.pass_time(11)
            assert await world.state(made.id) is WorkloadState.STOPPED
        else:
            await world.services.workloads.suspend(ANN, made.id)
            await world.pass_time(11)
            assert await world.state(made.id) is WorkloadState.SUSPENDED
        assert held(world) == [(0, 2000)]
        await world.end(first)
        assert held(world) == []
        await world.check_at_rest()

    world.do(story())


def test_database_from_before_the_suspension_knows_it_again(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        await red(world)
        made = await training(world)
        await world.pass_time(5)
        older = await copied(world, tmp_path / "copy.db")
        await urgent(world)
        await world.pass_time(2)
        assert (await row_of(world, made)).suspended_gpu
        await go_back(world, older)
        await world.settle()
        world.check_always()
        row = await row_of(world, made)
        assert row.attempt == 1
        assert row.suspended_gpu

    world.do(story())


@pytest.mark.parametrize("suspended", [False, True])
def test_new_database_adopts_the_program(world: World, suspended: bool) -> None:
    """It has its GPU and its CPUs once; a suspended program still waits for its own GPU."""

    async def story() -> None:
        await red(world)
        made = await training(world, cpus=2)
        sums = "select sum(cpus), sum(permille) from leases where released_at is null"
        if suspended:
            await world.pass_time(5)
            await world.end(await urgent(world))
            world.agent.suspend_now(world.program(made))
            await world.settle()
        before = world.rows(sums)
        await lose_database(world)
        await world.settle()
        assert world.rows(sums) == before
        row = await row_of(world, made)
        assert (row.state, bool(row.suspended_gpu)) == (ReplicaState.RUNNING, suspended)
        world.check_always()
        if suspended:
            await use_cuda(world, made)
        assert world.agent.programs[world.program(made)].spec.gpu_epoch == (await row_of(world, made)).gpu_lease
        await world.end(await world.get(made.id))
        await world.check_at_rest()

    world.do(story())


async def idle(world: World, one: Workload) -> None:
    """Suspend a program that has GPUs, as if it had not used them for a while."""
    if one.limits.suspendable and world.agent.programs[world.program(one)].spec.gpu_epoch:
        world.agent.suspend_now(world.program(one))
        await world.settle()


async def use(world: World, one: Workload) -> None:
    if one.limits.separate_gpus and not world.agent.programs[world.program(one)].spec.gpu_epoch:
        await use_cuda(world, one)


async def end(world: World, one: Workload) -> None:
    await world.end(one)


async def stop(world: World, one: Workload) -> None:
    await world.services.workloads.stop(ANN if one.user == ANN.user else BOB, one.id)
    await world.pass_time(11)


async def step(world: World, rng: random.Random, act: str) -> Workload | None:
    """Do something that concerns no present program; return a new one."""
    size = {"count": 1, "fraction": rng.choice([0.3, 0.5, 1.0])}
    if act == "train":
        return await training(world, gpus=size)
    if act == "lazy":
        return await world.submit(kind="interactive", lazy=True, gpus=size, **SUSPEND)
    if act == "urgent":
        return await urgent(world, rng.choice([1, 2]))
    if act == "crash":
        await world.reboot()
    elif act == "refuse":
        world.agent.suspend_answer = rng.choice(["", "", "no room", None])
    else:
        await world.pass_time(rng.choice([2, 200]))
    return None


ACTS = {"idle": idle, "use": use, "end": end, "stop": stop}


@pytest.mark.parametrize("seed", range(12))
def test_no_gpu_is_given_twice_in_any_order_of_events(world: World, seed: int) -> None:
    async def story() -> None:
        await red(world)
        rng, made = random.Random(seed), list[Workload]()
        for _ in range(30):
            live = [each for each in made if world.is_running(each)]
            act = rng.choice(["train", "lazy", "urgent", "crash", "refuse", "wait", *ACTS])
            if act not in ACTS:
                made += filter(None, [await step(world, rng, act)])
            elif live:
                await ACTS[act](world, rng.choice(live))
            world.check_always()
        await world.check_at_rest()

    world.do(story())


@pytest.mark.parametrize(
    "body",
    [
        {"gpus": {"count": 0}},
        {"gpus": {"count": 2}},
        {"gpus": {"count": 1, "fraction": 0.5, "sharing": "mps"}},
        {"gpus": {"count": 1, "models": ["a100 mig"]}},
        {"image": "x"},
        {"completions": 2},
        {"kind": "lease", "command": []},
    ],
)
def test_request_that_cannot_be_suspended_is_refused(world: World, body: dict[str, object]) -> None:
    with pytest.raises(GpupoolError) as refused:
        world.do(world.submit(**{"kind": "training", "on_preempt": "suspend", **body}))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
