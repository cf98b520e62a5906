"""Reservations over real services: made, refused, begun, ended, cancelled, and kept over a restart."""

from __future__ import annotations

from typing import Any

import pytest
from pool_world import ADMIN, ANN, World, refused

from gpupool.domain.access import Project
from gpupool.domain.errors import ErrorCode
from gpupool.domain.workload import ReplicaState, WorkloadState
from gpupool.scheduling.explain import WaitCode
from gpupool.services.bookings import Booked, BookingRequest
from gpupool.services.ports import EventFilter

QUEUED, RUNNING = WorkloadState.QUEUED, WorkloadState.RUNNING


def request(world: World, begin: float = 100, end: float = 200, **changes: Any) -> BookingRequest:
    now = world.clock.now()
    plain: dict[str, Any] = {"nodes": ("here",), "projects": ("default",)}
    return BookingRequest("class", now + begin, now + end, **plain | changes)


async def reserve(world: World, begin: float = 100, end: float = 200, **changes: Any) -> Booked:
    made = await world.services.bookings.make(ADMIN, request(world, begin, end, **changes))
    await world.settle()
    return made


async def about(world: World, made: Booked) -> list[str]:
    found = await world.services.history.events(ADMIN, EventFilter(limit=1000))
    return [event.message for event in found if event.target == f"reservation {made.booking.id}"]


def test_a_class_finds_its_node_free_and_training_comes_back(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("cs101"))
        training = await world.submit(gpus={"count": 2}, grace="20s")
        made = await reserve(world, projects=("cs101",))
        assert (made.evictions, made.warnings) == (1, ())
        await world.pass_time(60)
        assert await world.state(training.id) is RUNNING
        await world.pass_time(20)
        [row] = await world.replicas(training.id)
        assert (row.state, row.interruptions) == (ReplicaState.PENDING, 1)
        assert "booked (class)" in row.message
        assert (await world.services.workloads.why(ADMIN, training.id)).code is WaitCode.BOOKED
        await world.reboot()
        await world.pass_time(30)
        student = await world.submit(project="cs101", kind="interactive", gpus={"fraction": 0.5})
        assert student.state is RUNNING
        assert await world.state(training.id) is QUEUED
        await world.end(student)
        await world.pass_time(100)
        assert await world.state(training.id) is RUNNING
        assert not await world.services.bookings.bookings()
        told = await about(world, made)
        assert "begins" in told[1]
        assert "over" in told[2]

    world.do(story())


def test_protected_work_is_warned_of_and_left_alone(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("cs101"))
        session = await world.submit(kind="interactive", gpus={"fraction": 0.5})
        made = await reserve(world, projects=("cs101",))
        assert made.evictions == 0
        assert session.name in made.warnings[0]
        await world.pass_time(101)
        assert await world.state(session.id) is RUNNING
        assert [session.name in text for text in await about(world, made)] == [True, True]

    world.do(story())


def test_maintenance_is_for_nobody_until_it_is_cancelled(world: World) -> None:
    async def story() -> None:
        made = await reserve(world, begin=-1, projects=(), maintenance=True)
        waiting = await world.submit()
        assert waiting.state is QUEUED
        await world.services.bookings.cancel(ADMIN, made.booking.id)
        await world.settle()
        assert await world.state(waiting.id) is RUNNING
        await refused(lambda: world.services.bookings.cancel(ADMIN, made.booking.id), ErrorCode.UNKNOWN_BOOKING)

    world.do(story())


def test_the_pool_picks_nodes_for_a_number_of_gpus(world: World) -> None:
    async def story() -> None:
        made = await reserve(world, nodes=(), gpus=2, models=("t4",))
        assert made.booking.nodes == ("here",)
        again = request(world, nodes=(), gpus=1)
        told = await refused(lambda: world.services.bookings.make(ADMIN, again), ErrorCode.NO_CAPACITY)
        assert told.message.startswith("0 GPUs")

    world.do(story())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nodes": ("there",)}, ErrorCode.UNKNOWN_NODE),
        ({"projects": ("nobody",)}, ErrorCode.UNKNOWN_PROJECT),
        ({"users": ("nobody",)}, ErrorCode.UNKNOWN_USER),
        ({"nodes": ()}, ErrorCode.INVALID_REQUEST),
        ({"gpus": 2}, ErrorCode.INVALID_REQUEST),
        ({"projects": ()}, ErrorCode.INVALID_REQUEST),
        ({"maintenance": True}, ErrorCode.INVALID_REQUEST),
        ({"end": 50}, ErrorCode.INVALID_DURATION),
        ({"begin": -100, "end": -1}, ErrorCode.INVALID_DURATION),
        ({"end": 100 * 86400}, ErrorCode.INVALID_DURATION),
        ({"begin": 400 * 86400, "end": 401 * 86400}, ErrorCode.INVALID_DURATION),
        ({"begin": 150, "end": 250}, ErrorCode.ALREADY_BOOKED),
    ],
)
def test_what_is_refused(world: World, changes: dict[str, Any], code: ErrorCode) -> None:
    async def story() -> None:
        await reserve(world)
        asked = request(world, **{"begin": 1000, "end": 1100} | changes)
        if changes.get("begin") is None and "end" in changes:
            asked = request(world, 1000, changes["end"])
        await refused(lambda: world.services.bookings.make(ADMIN, asked), code)
        await reserve(world, 200, 300)  # one after another is no overlap

    world.do(story())


def test_only_administrators_reserve(world: World) -> None:
    async def story() -> None:
        await refused(lambda: world.services.bookings.make(ANN, request(world)), ErrorCode.FORBIDDEN)
        made = await reserve(world)
        await refused(lambda: world.services.bookings.cancel(ANN, made.booking.id), ErrorCode.FORBIDDEN)

    world.do(story())
