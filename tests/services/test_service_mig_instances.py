"""MIG instances on demand: for which requests they are created, when they are removed, and what errors do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_fabric import NODE
from fake_mig import FakeMig
from pool_world import ADMIN, ANN, BOB, World

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Project
from gpupool.domain.work.workload import WorkloadState
from gpupool.services.nodes.mig_instances import KEEP_S, MAX_RETRY_DELAY_S, MIN_RETRY_DELAY_S, READ_INTERVAL_S
from gpupool.services.ports.store import EventFilter

DENIED = GpupoolError(ErrorCode.FORBIDDEN, "Cannot create it: only root may.", "Run the agent as root.")


@pytest.fixture
def mig(world: World) -> FakeMig:
    """Return the card of a node that allows instances on demand."""
    world.agent.mig = FakeMig()

    async def allow() -> None:
        world.agent.hiccup()
        await world.settle()
        await world.services.nodes.set_labels(ADMIN, NODE, {"mig": "on-demand"}, ())

    world.do(allow())
    return world.agent.mig


async def ask(world: World, profile: str, actor: object = ANN, **body: object) -> str:
    """Submit a request for an instance; return its id."""
    gpus = {"count": 1, "models": [profile], "sharing": "mig"}
    return str((await world.submit(actor, command=["true"], gpus=gpus, **body)).id)


async def seconds(world: World, count: float) -> None:
    for _ in range(round(count)):
        await world.pass_time(1.05)


async def why(world: World, workload: str) -> tuple[str, str]:
    found = await world.services.workloads.why(ADMIN, workload, foretell=False)
    return str(found.code), found.sentence


def test_instance_is_created_for_a_request_and_removed_some_time_after(world: World, mig: FakeMig) -> None:
    async def story() -> None:
        job = await ask(world, "3g.40gb")
        code, sentence = await why(world, job)
        assert code == "MIG_INSTANCE"
        assert f"{NODE} creates a MIG instance 3g.40gb on GPU 8" in sentence
        await seconds(world, 2)
        assert await world.state(job) is WorkloadState.RUNNING
        await world.end(await world.get(job))
        await seconds(world, 3)
        again = await ask(world, "3g.40gb")
        await world.settle()
        assert await world.state(again) is WorkloadState.RUNNING, "an unused instance serves the next request at once"
        await world.end(await world.get(again))
        await seconds(world, 3)
        await world.pass_time(KEEP_S - 20)
        assert list(mig.instances.values()) == ["3g.40gb"]
        await world.pass_time(30)
        await seconds(world, 3)
        assert mig.asked == ["create 3g.40gb", "remove 3g.40gb"]
        assert len((await world.services.nodes.node(NODE)).report.gpus) == world.agent.gpus

    world.do(story())


def test_two_profiles_share_the_card_and_a_third_waits_for_room(world: World, mig: FakeMig) -> None:
    async def story() -> None:
        jobs = [await ask(world, profile) for profile in ("3g.40gb", "2g.20gb", "3g.40gb")]
        await seconds(world, 5)
        states = [await world.state(job) for job in jobs]
        assert states == [WorkloadState.RUNNING, WorkloadState.RUNNING, WorkloadState.QUEUED]
        code, sentence = await why(world, jobs[2])
        assert code == "WAITING_FOR_GPU", "for the end of the first"
        assert "no card has room for another MIG instance 3g.40gb" in sentence
        large = await ask(world, "7g.80gb")
        for job in jobs[:2]:
            await world.end(await world.get(job))
        await seconds(world, 3)
        assert await world.state(jobs[2]) is WorkloadState.RUNNING, "on the instance that became free"
        await world.end(await world.get(jobs[2]))
        await seconds(world, 5)
        assert await world.state(large) is WorkloadState.RUNNING, "unused instances made room"
        assert sorted(mig.asked[2:4]) == ["remove 2g.20gb", "remove 3g.40gb"]

    world.do(story())


@pytest.mark.parametrize("obstacle", ["suspended", "quota", "window", "dependency", "start later"])
def test_no_instance_for_work_that_may_not_start(world: World, mig: FakeMig, obstacle: str) -> None:
    async def story() -> None:
        if obstacle == "quota":
            await world.services.access.create_project(ADMIN, Project("small", quota_permille=1000, over_quota=False))
            await world.submit(command=["true"], gpus={"count": 1}, project="small")
            await ask(world, "3g.40gb", project="small")
        elif obstacle == "dependency":
            first = await world.submit(command=["true"], gpus={"count": 1})
            await ask(world, "3g.40gb", after=[str(first.id)])
        elif obstacle == "window":
            await ask(world, "3g.40gb", windows=["mon 00:00-00:01"])
        elif obstacle == "start later":
            await ask(world, "3g.40gb", begin="2h")
        else:
            job = await ask(world, "3g.40gb")
            await world.services.workloads.suspend(ADMIN, job)
        await seconds(world, 4)
        assert mig.asked == []

    world.do(story())


def test_without_the_label_nothing_is_created_and_the_reason_says_so(world: World, mig: FakeMig) -> None:
    async def story() -> None:
        await world.services.nodes.set_labels(ADMIN, NODE, {}, ("mig",))
        job = await ask(world, "3g.40gb")
        await seconds(world, 3)
        found = await world.services.workloads.why(ADMIN, job, foretell=False)
        assert str(found.code) == "MIG_INSTANCE"
        assert "the pool may not create instances there" in found.sentence
        assert f"gpupool node label {NODE} mig=on-demand" in found.would_help[0]
        assert mig.asked == []
        await world.services.nodes.set_labels(ADMIN, NODE, {"mig": "on-demand"}, ())
        await seconds(world, 2)
        assert await world.state(job) is WorkloadState.RUNNING
        await world.services.nodes.set_labels(ADMIN, NODE, {}, ("mig",))
        await world.end(await world.get(job))
        await seconds(world, 3)
        assert mig.instances == {}, "an unused instance that is no longer allowed goes at once"

    world.do(story())


def test_cordoned_node_creates_nothing(world: World, mig: FakeMig) -> None:
    async def story() -> None:
        await world.services.nodes.cordon(ADMIN, NODE, "repair")
        job = await ask(world, "3g.40gb")
        await seconds(world, 3)
        assert mig.asked == []
        assert "no card has room" in (await why(world, job))[1]

    world.do(story())


def test_instances_of_administrators_stay(world: World, mig: FakeMig) -> None:
    mig.instances["MIG-theirs"] = "3g.40gb"

    async def story() -> None:
        world.agent.hiccup()
        await world.settle()
        job = await ask(world, "3g.40gb")
        await world.settle()
        assert await world.state(job) is WorkloadState.RUNNING, "an existing instance is used"
        await world.end(await world.get(job))
        large = await ask(world, "7g.80gb")
        await seconds(world, 3)
        await world.pass_time(KEEP_S)
        await seconds(world, 3)
        assert await world.state(large) is WorkloadState.QUEUED
        assert mig.asked == []

    world.do(story())


def test_errors_are_recorded_once_and_tried_again_later_each_time(world: World, mig: FakeMig) -> None:
    mig.error = DENIED

    async def story() -> None:
        job = await ask(world, "3g.40gb")
        await seconds(world, 3)
        assert mig.asked == ["create 3g.40gb"]
        sentence = (await why(world, job))[1]
        assert "the last try failed: Cannot create it: only root may; tried again in" in sentence
        await seconds(world, MIN_RETRY_DELAY_S)
        assert len(mig.asked) == 2
        await seconds(world, MIN_RETRY_DELAY_S)
        assert len(mig.asked) == 2, "the delay has doubled"
        events = await world.services.history.events(ADMIN, EventFilter(reasons=(Reason.NODE_WARNING,), limit=10))
        assert [event.message for event in events] == [DENIED.message]
        mig.error = None
        await world.pass_time(MAX_RETRY_DELAY_S)
        await seconds(world, 3)
        assert await world.state(job) is WorkloadState.RUNNING
        assert world.now._mig_instances.problem(NODE) == ""

    world.do(story())


def test_scheduling_order_decides_who_gets_the_last_room(world: World, mig: FakeMig) -> None:
    mig.instances["MIG-theirs"] = "2g.20gb"

    async def story() -> None:
        world.agent.hiccup()
        await world.settle()
        await world.allow_priorities()
        low = await ask(world, "3g.40gb")
        high = await ask(world, "3g.40gb", BOB, priority=10)
        await seconds(world, 3)
        assert [await world.state(job) for job in (high, low)] == [WorkloadState.RUNNING, WorkloadState.QUEUED]

    world.do(story())


def test_lost_answer_creates_no_second_instance(world: World, mig: FakeMig) -> None:
    async def story() -> None:
        job = await ask(world, "3g.40gb")
        world.agent.losses = ["after"]
        await seconds(world, 5)
        assert await world.state(job) is WorkloadState.RUNNING
        assert mig.asked == ["create 3g.40gb"]

    world.do(story())


def test_new_control_plane_removes_what_its_predecessor_created(world: World, mig: FakeMig, tmp_path: Path) -> None:
    async def story() -> None:
        job = await ask(world, "3g.40gb")
        await seconds(world, 2)
        await world.end(await world.get(job))
        await world.settle()
        await world.reboot()
        await world.settle()
        await seconds(world, 2)
        await world.pass_time(KEEP_S)
        await seconds(world, 3)
        assert mig.instances == {}

    world.do(story())


def test_instance_that_is_being_removed_is_granted_to_nobody(world: World, mig: FakeMig) -> None:
    async def story() -> None:
        first = await ask(world, "3g.40gb")
        await seconds(world, 2)
        await world.end(await world.get(first))
        await seconds(world, 2)
        world.clock.at += KEEP_S
        world.agent.holding = asyncio.Event()  # the node destroys it, and its answer is on the way
        await world.services.nodes.set_labels(ADMIN, NODE, {"rack": "1"}, ())
        world.loop.skew += 1.1
        for _ in range(50):
            await asyncio.sleep(0)
        assert mig.instances == {}
        second = await ask(world, "3g.40gb")
        for _ in range(50):
            await asyncio.sleep(0)
        assert await world.state(second) is WorkloadState.QUEUED
        assert world.now.engine.mirror.leases == {}
        world.agent.holding.set()
        world.agent.holding = None
        await seconds(world, 3)
        assert await world.state(second) is WorkloadState.RUNNING
        assert mig.asked == ["create 3g.40gb", "remove 3g.40gb", "create 3g.40gb"]

    world.do(story())


def test_room_that_an_administrator_makes_is_noticed(world: World, mig: FakeMig) -> None:
    mig.instances["MIG-theirs"] = "7g.80gb"

    async def story() -> None:
        world.agent.hiccup()
        await world.settle()
        job = await ask(world, "3g.40gb")
        await seconds(world, 3)
        assert await world.state(job) is WorkloadState.QUEUED
        mig.instances.clear()
        await seconds(world, READ_INTERVAL_S + 3)
        assert await world.state(job) is WorkloadState.RUNNING

    world.do(story())
