"""Reservations over real services: created, refused, started, ended, cancelled, and kept over a restart."""

from __future__ import annotations

from typing import Any

import pytest
from pool_world import ADMIN, ANN, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.people.access import Project
from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.scheduling.explain.wait_reason import WaitCode
from gpupool.services.nodes.reservations import CreatedReservation, ReservationRequest
from gpupool.services.ports.store import EventFilter

QUEUED, RUNNING = WorkloadState.QUEUED, WorkloadState.RUNNING


def request(world: World, begin: float = 100, end: float = 200, **changes: Any) -> ReservationRequest:
    now = world.clock.now()
    plain: dict[str, Any] = {"nodes": ("here",), "projects": ("default",)}
    return ReservationRequest("class", now + begin, now + end, **plain | changes)


async def reserve(world: World, begin: float = 100, end: float = 200, **changes: Any) -> CreatedReservation:
    made = await world.services.reservations.make(ADMIN, request(world, begin, end, **changes))
    await world.settle()
    return made


async def about(world: World, made: CreatedReservation) -> list[str]:
    found = await world.services.history.events(ADMIN, EventFilter(limit=1000))
    return [event.message for event in found if event.target == f"reservation {made.reservation.id}"]


def test_reservation_frees_its_node_and_training_resumes_after_it(world: World) -> None:
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
        assert "reserved (class)" in row.message
        assert (await world.services.workloads.why(ADMIN, training.id)).code is WaitCode.BOOKED
        await world.reboot()
        await world.pass_time(30)
        student = await world.submit(project="cs101", kind="interactive", gpus={"fraction": 0.5})
        assert student.state is RUNNING
        assert await world.state(training.id) is QUEUED
        await world.end(student)
        await world.pass_time(100)
        assert await world.state(training.id) is RUNNING
        assert not await world.services.reservations.list_all()
        told = await about(world, made)
        assert "begins" in told[1]
        assert "over" in told[2]

    world.do(story())


def test_begin_is_recorded_after_full_disk(world: World) -> None:
    async def story() -> None:
        made = await reserve(world)
        assert world.store is not None
        world.clock.at += 101
        world.store.refuse = 1
        await refused(world.services.reservations.look, ErrorCode.DATABASE_UNWRITABLE)
        await world.services.reservations.look()
        await world.services.reservations.look()
        assert sum("begins" in text for text in await about(world, made)) == 1

    world.do(story())


def test_reservation_reports_protected_work_and_does_not_evict_it(world: World) -> None:
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


def test_no_placement_during_maintenance_until_it_is_cancelled(world: World) -> None:
    async def story() -> None:
        made = await reserve(world, begin=-1, projects=(), maintenance=True)
        waiting = await world.submit()
        assert waiting.state is QUEUED
        await world.services.reservations.cancel(ADMIN, made.reservation.id)
        await world.settle()
        assert await world.state(waiting.id) is RUNNING
        await refused(lambda: world.services.reservations.cancel(ADMIN, made.reservation.id), ErrorCode.UNKNOWN_BOOKING)

    world.do(story())


def test_nodes_are_chosen_for_a_number_of_gpus(world: World) -> None:
    async def story() -> None:
        made = await reserve(world, nodes=(), gpus=2, models=("t4",))
        assert made.reservation.nodes == ("here",)
        again = request(world, nodes=(), gpus=1)
        told = await refused(lambda: world.services.reservations.make(ADMIN, again), ErrorCode.NO_CAPACITY)
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
def test_invalid_reservation_is_refused(world: World, changes: dict[str, Any], code: ErrorCode) -> None:
    async def story() -> None:
        await reserve(world)
        asked = request(world, **{"begin": 1000, "end": 1100} | changes)
        if changes.get("begin") is None and "end" in changes:
            asked = request(world, 1000, changes["end"])
        await refused(lambda: world.services.reservations.make(ADMIN, asked), code)
        await reserve(world, 200, 300)  # consecutive reservations do not overlap

    world.do(story())


def test_only_administrators_create_reservations(world: World) -> None:
    async def story() -> None:
        await refused(lambda: world.services.reservations.make(ANN, request(world)), ErrorCode.FORBIDDEN)
        made = await reserve(world)
        await refused(lambda: world.services.reservations.cancel(ANN, made.reservation.id), ErrorCode.FORBIDDEN)

    world.do(story())
