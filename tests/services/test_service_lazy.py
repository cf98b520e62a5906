"""Lazy sessions: the program runs without GPUs, waits for them when it first uses CUDA, and then is an ordinary one."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from pool_world import ADMIN, ANN, BOB, World
from test_service_adoption import copied, go_back, lose_database

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.work.workload import LAZY_GPUS, Replica, ReplicaState, Workload, WorkloadState

HALF = {"count": 1, "fraction": 0.5}


async def lazy(world: World, **body: object) -> Workload:
    return await world.submit(kind="interactive", lazy=True, **{"gpus": HALF, **body})


async def use_cuda(world: World, made: Workload) -> None:
    world.agent.use_cuda(world.program(made))
    await world.settle()


async def row_of(world: World, made: Workload) -> Replica:
    found: Replica = (await world.replicas(made.id))[0]
    return found


async def return_gpus(world: World, made: Workload) -> None:
    world.agent.return_gpus(world.program(made))
    await world.settle()


async def use_or_return(world: World, made: Workload) -> None:
    """Use CUDA in a lazy session, or return the GPUs that it has."""
    if made.limits.lazy:
        has = world.agent.programs[world.program(made)].spec.gpu_epoch
        await (return_gpus if has else use_cuda)(world, made)


def held(world: World) -> list[tuple[int, int]]:
    """Return index and thousandths of each unreleased lease."""
    return world.rows("select replica_index, permille from leases where released_at is null order by epoch")


def gpu_seconds(world: World) -> float:
    """Return the GPU time of all leases."""
    ((thousandths,),) = world.rows("select sum((released_at - granted_at) * permille) from leases")
    return float(thousandths) / 1000


def test_session_starts_in_a_full_pool_and_gets_gpus_when_it_uses_cuda(world: World) -> None:
    async def story() -> None:
        full = await world.submit(BOB, gpus={"count": 2})
        made = await lazy(world)
        assert await world.state(made.id) is WorkloadState.RUNNING
        assert held(world) == [(0, 2000), (0, 0)], "no GPU is counted before the first use of CUDA"
        why = await world.services.workloads.why(ANN, made.id)
        assert "has not used CUDA" in why.sentence
        await use_cuda(world, made)
        assert (await row_of(world, made)).waits_for_gpus
        why = await world.services.workloads.why(ANN, made.id)
        assert (why.code, why.position) == ("WAITING_FOR_GPU", 1)
        (entry,) = (await world.services.workloads.queue.queue()).waiting
        assert (entry.workload.id, entry.position, entry.pending) == (made.id, 1, 1)
        assert world.agent.programs[world.program(made)].spec.gpus == ()
        await world.end(full)
        assert held(world) == [(0, 0), (LAZY_GPUS, 500)]
        (share,) = world.agent.programs[world.program(made)].spec.gpus
        assert share.permille == 500
        assert (await world.reasons(made.id))[1:] == ["GRANTED", "STARTED", "GPUS_WANTED", "GRANTED"]
        world.check_always()
        await world.check_at_rest()
        await world.end(made)
        assert held(world) == []
        await world.check_at_rest()

    world.do(story())


def test_use_is_metered_and_limited_only_after_the_grant(world: World) -> None:
    async def story() -> None:
        made = await lazy(world, idle_timeout="60s")
        await world.pass_time(600)
        assert world.is_running(made), "a session without GPUs is not idle on them"
        await use_cuda(world, made)
        await world.pass_time(30)
        await world.end(made)
        assert gpu_seconds(world) == pytest.approx(15, abs=2)

    world.do(story())


def test_session_with_required_nodes_starts_there(world: World) -> None:
    async def story() -> None:
        made = await lazy(world, gpus={**HALF, "labels": {"node": "here"}})
        await use_cuda(world, made)
        assert held(world) == [(0, 0), (LAZY_GPUS, 500)]
        away = await lazy(world, gpus={"count": 1, "models": ["t4"]})
        assert world.is_running(away)

    world.do(story())


def test_second_session_waits_for_the_node_of_its_program(world: World) -> None:
    async def story() -> None:
        first, second = await lazy(world, gpus={"count": 2}), await lazy(world, gpus={"count": 2})
        await use_cuda(world, first)
        await use_cuda(world, second)
        assert held(world) == [(0, 0), (0, 0), (LAZY_GPUS, 2000)]
        await world.end(first)
        assert held(world) == [(0, 0), (LAZY_GPUS, 2000)]
        world.check_always()

    world.do(story())


@pytest.mark.parametrize("state", ["unused", "waiting", "held"])
@pytest.mark.parametrize("end", ["program", "stop", "suspend", "restart", "crash", "agent"])
def test_every_end_in_every_state_leaves_no_lease(world: World, state: str, end: str) -> None:
    async def story() -> None:
        others = [await world.submit(BOB, gpus={"count": 2})] if state == "waiting" else []
        made = await lazy(world)
        if state != "unused":
            await use_cuda(world, made)
        workloads = world.services.workloads
        if end == "program":
            await world.end(made, code=1)
            assert await world.state(made.id) is WorkloadState.FAILED
        elif end == "stop":
            await workloads.stop(ANN, made.id)
            await world.pass_time(11)
            assert await world.state(made.id) is WorkloadState.STOPPED
        elif end == "suspend":
            await workloads.suspend(ANN, made.id)
            await world.pass_time(11)
            assert await world.state(made.id) is WorkloadState.SUSPENDED
        elif end == "restart":
            await workloads.restart(ANN, made.id)
            await world.settle()
            await world.pass_time(11)
            row = await row_of(world, made)
            assert (row.attempt, row.gpu_wanted_at, row.gpu_lease) == (2, None, None), "it is lazy again"
        else:
            await (world.reboot() if end == "crash" else world.settle())
            row = await row_of(world, made)
            assert (row.gpu_wanted_at is not None, row.gpu_lease is not None) == {
                "unused": (False, False),
                "waiting": (True, False),
                "held": (True, True),
            }[state]
        world.check_always()
        await world.check_at_rest()
        if end in {"restart", "crash", "agent"}:
            for other in others:
                await world.end(other)
            if (await row_of(world, made)).gpu_wanted_at is None:
                await use_cuda(world, made)
            assert (LAZY_GPUS, 500) in held(world)
            await world.end(made)
        assert [lease for lease in held(world) if lease[0] == LAZY_GPUS] == []
        await world.check_at_rest()

    world.do(story())


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commits", [0, 1])
def test_crash_at_the_grant_neither_loses_nor_doubles_it(world: World, moment: str, commits: int) -> None:
    async def story() -> None:
        made = await lazy(world)
        assert world.store is not None
        world.store.die = (commits, moment)
        world.agent.use_cuda(world.program(made))
        await world.settle()
        await world.reboot()
        assert held(world) == [(0, 0), (LAZY_GPUS, 500)]
        assert world.agent.programs[world.program(made)].spec.gpu_epoch
        world.check_always()

    world.do(story())


def test_preempted_session_is_queued_and_starts_lazily_again(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(min_runtime_s=1.0)))
        made = await lazy(world, gpus={"count": 2}, preemptible=True, project="red")
        await use_cuda(world, made)
        await world.pass_time(5)
        urgent = await world.submit(BOB, gpus={"count": 2}, priority="high", preemptible=False, project="red")
        await world.pass_time(11)
        assert world.is_running(urgent)
        row = await row_of(world, made)
        assert (row.state, row.attempt, row.interruptions) == (ReplicaState.RUNNING, 2, 1)
        assert row.gpu_lease is None
        world.check_always()

    world.do(story())


@pytest.mark.parametrize("seed", range(12))
def test_no_gpu_is_given_twice_in_any_order_of_events(world: World, seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        made: list[Workload] = []
        for _ in range(30):
            live = [each for each in made if world.is_running(each)]
            act = rng.choice(["lazy", "lazy", "plain", "use", "use", "use", "end", "crash", "stop"])
            if act == "lazy":
                made.append(await lazy(world, gpus={"count": 1, "fraction": rng.choice([0.3, 0.5, 0.7])}))
            elif act == "plain":
                made.append(await world.submit(BOB, gpus={"count": 1}))
            elif act == "crash":
                await world.reboot()
            elif live:
                one = rng.choice(live)
                if act == "use":
                    await use_or_return(world, one)
                elif act == "end":
                    await world.end(one)
                elif act == "stop":
                    await world.services.workloads.stop(ANN if one.user == ANN.user else BOB, one.id)
                    await world.pass_time(11)
            world.check_always()
        await world.check_at_rest()

    world.do(story())


@pytest.mark.parametrize(
    "body",
    [
        {"gpus": {"count": 0}},
        {"gpus": {"count": 1, "fraction": 0.5, "sharing": "mps"}},
        {"gpus": {"count": 1, "models": ["a100 mig"]}},
        {"image": "x"},
        {"kind": "training", "completions": 2},
        {"kind": "lease", "command": []},
    ],
)
def test_request_that_cannot_be_lazy_is_refused(world: World, body: dict[str, object]) -> None:
    with pytest.raises(GpupoolError) as refused:
        world.do(lazy(world, **body) if "kind" not in body else world.submit(lazy=True, **body))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_session_ends_with_a_reason_if_its_node_cannot_give_it_gpus(world: World) -> None:
    async def story() -> None:
        world.agent.attach_error = GpupoolError(ErrorCode.INTERNAL, "The node cannot create the pages.", "Free space.")
        made = await lazy(world)
        await use_cuda(world, made)
        await world.pass_time(11)
        row = await row_of(world, made)
        assert (row.state, row.reason.value) == (ReplicaState.FAILED, "START_FAILED")
        assert row.message == "its node could not give it GPUs: The node cannot create the pages."
        assert held(world) == []
        await world.check_at_rest()

    world.do(story())


def test_returned_gpus_go_to_others_and_the_next_use_waits_again(world: World) -> None:
    async def story() -> None:
        made = await lazy(world, gpus={"count": 2})
        await use_cuda(world, made)
        other = await world.submit(BOB, gpus={"count": 2})
        assert await world.state(other.id) is WorkloadState.QUEUED
        await return_gpus(world, made)
        assert world.is_running(made)
        assert world.is_running(other)
        assert held(world) == [(0, 0), (0, 2000)]
        row = await row_of(world, made)
        assert (row.attempt, row.gpu_lease, row.gpu_wanted_at, row.lost_gpu_s) == (1, None, None, 0.0)
        assert (await world.reasons(made.id))[-1] == "GPUS_RETURNED"
        await use_cuda(world, made)
        assert (await row_of(world, made)).waits_for_gpus
        await world.end(other)
        assert held(world) == [(0, 0), (LAZY_GPUS, 2000)]
        world.check_always()
        await world.end(made)
        await world.check_at_rest()

    world.do(story())


@pytest.mark.parametrize("crash", ["before", "after"])
def test_return_is_recorded_once_over_a_crash_of_the_control_plane(world: World, crash: str) -> None:
    """Before: the report is lost, and the comparison with the node finds the return."""

    async def story() -> None:
        made = await lazy(world, gpus={"count": 2})
        await use_cuda(world, made)
        if crash == "before":
            world.agent.tell = lambda _status: None
        await return_gpus(world, made)
        await world.reboot()
        assert held(world) == [(0, 0)]
        assert (await world.reasons(made.id)).count("GPUS_RETURNED") == 1
        assert world.is_running(made)
        await world.check_at_rest()

    world.do(story())


def test_return_while_the_list_of_the_node_is_on_the_way_ends_nothing(world: World) -> None:
    """The list that the comparison works with still names GPUs which the program has returned since."""

    async def story() -> None:
        made = await lazy(world, gpus={"count": 2})
        await use_cuda(world, made)
        report, listed = asyncio.Event(), asyncio.Event()
        world.agent.holding = report
        world.agent.hiccup()
        await world.settle()
        world.agent.holding = listed
        report.set()
        await world.settle()
        world.agent.return_gpus(world.program(made))
        for _ in range(1000):  # the world does not settle while answers are held back
            await asyncio.sleep(0.001)
            if held(world) == [(0, 0)]:
                break
        assert held(world) == [(0, 0)]
        world.agent.holding = None
        listed.set()
        await world.settle()
        assert world.is_running(made)
        assert not (await row_of(world, made)).waits_for_gpus
        assert held(world) == [(0, 0)]
        await use_cuda(world, made)
        assert held(world) == [(0, 0), (LAZY_GPUS, 2000)]
        await world.check_at_rest()

    world.do(story())


def test_use_is_metered_until_the_return(world: World) -> None:
    async def story() -> None:
        made = await lazy(world)
        await use_cuda(world, made)
        await world.pass_time(30)
        await return_gpus(world, made)
        await world.pass_time(600)
        await world.end(made)
        assert gpu_seconds(world) == pytest.approx(15, abs=2)

    world.do(story())


def test_adopted_session_returns_its_gpus(world: World) -> None:
    async def story() -> None:
        made = await lazy(world, gpus={"count": 2})
        await use_cuda(world, made)
        await lose_database(world)
        await return_gpus(world, made)
        assert held(world) == [(0, 0)]
        assert world.is_running(made)
        await use_cuda(world, made)
        assert held(world) == [(0, 0), (LAZY_GPUS, 2000)]
        world.check_always()

    world.do(story())


def test_database_older_than_a_return_and_the_next_grant_ends_the_session(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        made = await lazy(world, gpus={"count": 2})
        await use_cuda(world, made)
        copy = await copied(world, tmp_path / "copy.db")
        await return_gpus(world, made)
        await use_cuda(world, made)
        await go_back(world, copy)
        after = await world.submit(BOB, gpus={"count": 2})
        assert not world.is_running(made)
        assert world.is_running(after)
        world.check_always()

    world.do(story())


def shares_held(world: World) -> list[tuple[str, int]]:
    return world.rows("select gpu_uuid, permille from lease_shares where released_at is null order by gpu_uuid")


def test_new_database_adopts_a_session_with_the_gpus_that_it_got(world: World) -> None:
    async def story() -> None:
        made = await lazy(world, gpus={"count": 2})
        await use_cuda(world, made)
        before = shares_held(world)
        await lose_database(world)
        assert shares_held(world) == before
        row = await row_of(world, made)
        assert row.state is ReplicaState.RUNNING
        assert row.gpu_lease == world.agent.programs[world.program(made)].spec.gpu_epoch
        assert held(world) == [(0, 0), (LAZY_GPUS, 2000)]
        waiting = await world.submit(BOB, gpus={"count": 1})
        assert await world.state(waiting.id) is WorkloadState.QUEUED
        await world.reboot()
        assert world.is_running(made), "a later comparison with the node leaves it alone"
        await world.end(await world.get(made.id))
        assert world.is_running(waiting)
        await world.check_at_rest()

    world.do(story())


def test_database_older_than_the_grant_ends_the_session_before_its_gpus_are_given_out(
    world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        made = await lazy(world, gpus={"count": 2})
        copy = await copied(world, tmp_path / "copy.db")
        await use_cuda(world, made)
        await go_back(world, copy)
        after = await world.submit(BOB, gpus={"count": 2})
        assert not world.is_running(made)
        assert world.is_running(after)
        world.check_always()

    world.do(story())
