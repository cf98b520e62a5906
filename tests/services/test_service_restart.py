"""Restart in place: the program ends and starts again on the same GPUs, and nothing else gets them in between."""

from __future__ import annotations

import pytest
from pool_world import ADMIN, ANN, BOB, World

from gpupool.domain.errors import GpupoolError
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.work.program.supervision import ExitReason
from gpupool.domain.work.workload import Replica, ReplicaState, Workload, WorkloadState


async def row_of(world: World, workload: Workload, index: int = 0) -> Replica:
    found: Replica = (await world.replicas(workload.id))[index]
    return found


def leases(world: World) -> list[tuple[int, str, int, bool]]:
    """Return epoch, GPU, thousandths and whether it is unreleased, of every lease so far."""
    query = "select epoch, gpu_uuid, permille, released_at is null from lease_shares order by epoch"
    return [(epoch, gpu, permille, bool(held)) for epoch, gpu, permille, held in world.rows(query)]


@pytest.mark.parametrize("polite", [True, False])
def test_restart_keeps_the_gpus_while_others_wait(world: World, polite: bool) -> None:
    async def story() -> None:
        world.agent.polite = polite
        made = await world.submit(gpus={"count": 2}, grace="10s")
        waiting = await world.submit(BOB, gpus={"count": 1})
        before = leases(world)
        await world.services.workloads.restart(ANN, made.id)
        await world.settle()
        await world.pass_time(11)
        row = await row_of(world, made)
        assert (row.state, row.attempt, row.failures, row.interruptions) == (ReplicaState.RUNNING, 2, 0, 0)
        assert world.program(made).endswith(".2")
        assert await world.state(waiting.id) is WorkloadState.QUEUED
        after = leases(world)
        assert [held for *_, held in after] == [False, False, True, True], "the old lease is released with the grant"
        assert [lease[1:3] for lease in after[2:]] == [lease[1:3] for lease in before], "the same shares"
        assert after[2][0] > before[0][0], "a new epoch"
        assert world.agent.starts[f"{made.id}.0.2"] == 1
        world.check_always()
        await world.end(made)
        assert world.is_running(waiting)

    world.do(story())


def test_events_name_user_who_restarted_program(world: World) -> None:
    async def story() -> None:
        made = await world.submit()
        await world.services.workloads.restart(ADMIN, made.id)
        await world.settle()
        assert (await world.reasons(made.id))[3:] == [*["RESTARTED_BY_USER"] * 3, "GRANTED", "STARTED"]
        notice = world.agent.notices[f"{made.id}.0.1"]
        assert notice == {"reason": "RESTARTED_BY_USER", "message": "restarted by root"}

    world.do(story())


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commits", [0, 1])
def test_crash_during_a_restart_neither_loses_nor_doubles_the_program(world: World, moment: str, commits: int) -> None:
    async def story() -> None:
        made = await world.submit(gpus={"count": 1})
        assert world.store is not None
        world.store.die = (commits, moment)
        await world.attempt(world.services.workloads.restart(ANN, made.id, attempt=1))
        await world.settle()
        await world.reboot()
        await world.services.workloads.restart(ANN, made.id, attempt=1)
        await world.settle()
        row = await row_of(world, made)
        assert (row.state, row.attempt) == (ReplicaState.RUNNING, 2)
        assert sum(held for *_, held in leases(world)) == 1
        world.check_always()

    world.do(story())


def test_program_that_ended_by_itself_just_before_is_started_again(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        made = await world.submit()
        await world.services.workloads.restart(ANN, made.id)
        await world.settle()
        world.agent.end(world.program(made), 0, reason=ExitReason.EXITED)
        await world.settle()
        assert (await row_of(world, made)).attempt == 2
        assert world.is_running(made)

    world.do(story())


@pytest.mark.parametrize("other", ["stop", "suspend"])
def test_stop_and_suspension_replace_a_restart(world: World, other: str) -> None:
    async def story() -> None:
        world.agent.polite = False
        made = await world.submit(gpus={"count": 2}, grace="10s")
        next_one = await world.submit(BOB, gpus={"count": 2})
        await world.services.workloads.restart(ANN, made.id)
        await getattr(world.services.workloads, other)(ANN, made.id)
        with pytest.raises(GpupoolError, match="WRONG_STATE"):
            await world.services.workloads.restart(ANN, made.id)
        await world.pass_time(11)
        expected = {"stop": WorkloadState.STOPPED, "suspend": WorkloadState.SUSPENDED}
        assert await world.state(made.id) is expected[other]
        assert world.is_running(next_one)

    world.do(story())


def test_preemption_replaces_a_restart(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))
        world.agent.polite = False
        victim = await world.submit(project="red", gpus={"count": 2}, grace="1m")
        await world.pass_time(5)
        await world.services.workloads.restart(ANN, victim.id)
        urgent = await world.submit(project="red", gpus={"count": 2}, priority="high")
        await world.pass_time(61)
        row = await row_of(world, victim)
        assert (row.state, row.interruptions) == (ReplicaState.PENDING, 1)
        assert world.is_running(urgent)

    world.do(story())


def test_other_programs_on_the_gpus_end_before_the_restart(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        made = await world.submit(gpus={"count": 1}, grace="5s")
        shell = await world.submit(kind="exec", on=made.id, grace="30s")
        await world.services.workloads.restart(ANN, made.id)
        await world.pass_time(6)
        assert not world.is_running(made)
        assert (await row_of(world, made)).state is ReplicaState.STOPPING, "its shares are still in use"
        await world.reboot()
        await world.pass_time(26)
        assert not world.is_running(shell)
        assert (await world.get(shell.id)).state.final
        assert (await row_of(world, made)).attempt == 2
        assert world.is_running(made)
        world.check_always()

    world.do(story())


def test_stop_while_other_programs_delay_the_restart_ends_the_workload(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        made = await world.submit(gpus={"count": 1}, grace="5s")
        await world.submit(kind="exec", on=made.id, grace="30s")
        await world.services.workloads.restart(ANN, made.id)
        await world.pass_time(6)
        await world.services.workloads.stop(ANN, made.id)
        await world.pass_time(31)
        assert await world.state(made.id) is WorkloadState.STOPPED
        assert not any(held for *_, held in leases(world))

    world.do(story())


def test_lost_node_ends_an_interactive_workload_instead_of_restarting_it(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        made = await world.submit(kind="interactive")
        await world.services.workloads.restart(ANN, made.id)
        await world.settle()
        world.agent.reboot()
        await world.settle()
        row = await row_of(world, made)
        assert (row.state, row.reason.value) == (ReplicaState.FAILED, "NODE_RESTARTED")

    world.do(story())


def test_time_limit_ends_a_restarting_program(world: World) -> None:
    async def story() -> None:
        world.agent.polite = False
        made = await world.submit(max_time="1h")
        await world.services.workloads.restart(ANN, made.id)
        await world.settle()
        world.agent.end(world.program(made), None, 15, ExitReason.TIME_LIMIT)
        await world.settle()
        assert await world.state(made.id) is WorkloadState.FAILED

    world.do(story())


def test_each_replica_can_be_restarted_alone(world: World) -> None:
    async def story() -> None:
        made = await world.submit(completions=2, parallelism=2, gpus={"count": 1})
        await world.services.workloads.restart(ANN, made.id, index=1)
        await world.settle()
        assert [row.attempt for row in await world.replicas(made.id)] == [1, 2]
        await world.services.workloads.restart(ANN, made.id)
        await world.settle()
        assert [row.attempt for row in await world.replicas(made.id)] == [2, 3]
        with pytest.raises(GpupoolError, match="no replica 7"):
            await world.services.workloads.restart(ANN, made.id, index=7)

    world.do(story())


def test_repeated_request_for_one_attempt_restarts_once(world: World) -> None:
    async def story() -> None:
        made = await world.submit()
        for _ in range(3):
            await world.services.workloads.restart(ANN, made.id, attempt=1)
            await world.settle()
        assert (await row_of(world, made)).attempt == 2
        with pytest.raises(GpupoolError, match="no running program"):
            await world.services.workloads.restart(ANN, made.id, attempt=9)

    world.do(story())


def test_workloads_that_cannot_be_restarted_are_refused(world: World) -> None:
    async def story() -> None:
        lease = await world.submit(kind="lease", gpus={"count": 1})
        bound = await world.submit(kind="run", client_bound=True)
        gang = await world.submit(BOB, gang={"workers": 2})
        queued = await world.submit(gpus={"count": 2})
        for made, words in (
            (lease, "without a program"),
            (bound, "ends with the command"),
            (gang, "is a gang"),
            (queued, "it is queued"),
        ):
            with pytest.raises(GpupoolError, match=words) as caught:
                await world.services.workloads.restart(ADMIN, made.id)
            assert caught.value.code == "WRONG_STATE"
        with pytest.raises(GpupoolError, match="FORBIDDEN"):
            await world.services.workloads.restart(BOB, queued.id)

    world.do(story())
