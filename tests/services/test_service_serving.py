"""Services over real services and a simulated node: quota, readiness, rights, control planes that die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Project
from gpupool.domain.work.service import Service, ServiceState
from gpupool.domain.work.workload import WorkloadKind
from gpupool.services.ports.store import EventFilter
from gpupool.services.serving.routes import OtherRoutes
from gpupool.services.serving.service import ServiceStatus, ServingService
from gpupool.specs.request import parse_request


def serving(world: World) -> ServingService:
    return world.services.serving


def view(world: World, ref: str = "chat") -> ServiceStatus:
    return serving(world).view(serving(world).get(ADMIN, ref))


async def pass_turns(world: World, seconds: float = 3.0) -> None:
    """Let all replicas listen, and the control loop work."""
    for _ in range(max(1, int(seconds))):
        world.agent.listening = {each.spec.key.partition(".")[0] for each in world.agent.running()}
        await world.pass_time(1.1)


def request(**fields: Any) -> Any:
    body = {"name": "chat", "kind": "service", "command": ["serve", "{port}"], "gpus": {"fraction": 0.25}}
    return parse_request({**body, **fields})


async def new(world: World, actor: Any = ANN, **fields: Any) -> Service:
    made = await serving(world).create(actor, request(**fields))
    await pass_turns(world)
    return made


def test_replicas_are_workloads_with_their_port_in_command_and_environment(world: World) -> None:
    async def story() -> None:
        await new(world, service={"replicas": 2, "port_env": "HTTP_PORT"}, env={"URL": "http://{host}:{port}"})
        found = view(world)
        assert (found.state, found.desired) == (ServiceState.READY, 2)
        assert {each.workload.name for each in found.replicas} == {"chat-r1-0", "chat-r1-1"}
        assert {each.workload.kind for each in found.replicas} == {WorkloadKind.SERVICE}
        for program in world.agent.running():
            port = program.spec.env["HTTP_PORT"]
            assert program.spec.argv == ("serve", port)
            assert program.spec.env["URL"].endswith(f":{port}")
            assert program.spec.ports == (int(port),)

    world.do(story())


def test_loop_waits_for_the_first_service_and_publishes_it_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[list[str]] = []

    async def publish(rows: Sequence[tuple[Service, Any, str, Any]], _others: OtherRoutes) -> bool:
        published.append([row.name for row, *_ in rows])
        return bool(rows)

    async def story() -> None:
        await pass_turns(world)
        monkeypatch.setattr(serving(world).routes, "publish", publish)
        await pass_turns(world)
        assert not published
        await serving(world).create(ANN, request(), stopped=True)
        await world.settle()
        assert published == [["chat"]]
        await pass_turns(world)
        assert len(published) > 1
        await serving(world).delete(ANN, "chat")
        await world.settle()
        assert published[-1] == []

    world.do(story())


def test_replica_that_does_not_listen_is_not_ready_and_is_restarted(world: World) -> None:
    async def story() -> None:
        await serving(world).create(ANN, request(service={"ready": {"within": "20s"}}))
        for _ in range(5):
            await world.pass_time(1.1)
        assert view(world).state is ServiceState.STARTING
        assert "listens" in view(world).replicas[0].readiness.message  # type: ignore[union-attr]
        for _ in range(25):
            await world.pass_time(1.1)
        assert view(world).replicas[0].replica.attempt >= 2
        wanted = EventFilter(reasons=(Reason.SERVICE_NOT_READY,))
        [event, *_] = await world.now.engine.ports.store.list_events(wanted)
        assert "not ready for 20s" in event.message

    world.do(story())


def test_command_decides_if_a_replica_is_ready(world: World) -> None:
    async def story() -> None:
        ready = {"command": ["check", "--url", "http://{host}:{port}"], "timeout": "7s"}
        await serving(world).create(ANN, request(service={"ready": ready}))
        await world.pass_time(1.1)
        await world.pass_time(1.1)
        assert view(world).state is ServiceState.STARTING
        assert view(world).replicas[0].readiness.message == "the command ended with status 1: loading"  # type: ignore[union-attr]
        await pass_turns(world)
        assert view(world).state is ServiceState.READY
        seat = view(world).replicas[0].seat
        assert seat is not None
        assert set(world.agent.checks) == {(("check", "--url", f"http://{seat.endpoint}"), 7.0)}

    world.do(story())


def test_replicas_above_the_minimum_or_the_quota_are_preemptible(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("lab", quota_permille=200))
        await new(world, service={"replicas": "1..2"})
        await serving(world).scale(ANN, "chat", 1, 2)
        world.now.services.serving.controller.status(serving(world).get(ANN, "chat")).scaler = _scaled(2)
        await pass_turns(world)
        assert [each.workload.preemptible for each in view(world).replicas] == [False, True]
        await new(world, name="big", project="lab")
        assert [each.workload.preemptible for each in view(world, "big").replicas] == [True]

    world.do(story())


def _scaled(number: int) -> Any:
    from gpupool.services.serving.autoscaler import Scaler

    return Scaler(number)


def test_members_of_the_project_see_a_service_and_only_managers_change_it(world: World) -> None:
    async def story() -> None:
        await world.services.access.put_user(ADMIN, "ann", {})
        await world.services.access.create_project(ADMIN, Project("lab", members=("ann",)))
        await new(world)
        await new(world, name="closed", project="lab")
        assert [row.name for row in serving(world).all(BOB)] == ["chat"]
        await refused(lambda: serving(world).stop(BOB, "chat"), ErrorCode.FORBIDDEN)
        await refused(lambda: serving(world).stop(BOB, "closed"), ErrorCode.UNKNOWN_SERVICE)
        await refused(lambda: serving(world).create(BOB, request(name="x", project="lab")), ErrorCode.FORBIDDEN)
        await refused(lambda: serving(world).create(BOB, request()), ErrorCode.NAME_TAKEN)
        await serving(world).stop(ADMIN, "chat")
        await pass_turns(world, 6)
        assert view(world).state is ServiceState.STOPPED

    world.do(story())


def test_host_and_model_belong_to_one_service(world: World) -> None:
    async def story() -> None:
        await new(world, ADMIN, service={"model": "qwen", "hosts": ["chat.example.org"]})
        for actor, fields in ((BOB, {"model": ["a", "qwen"]}), (ADMIN, {"hosts": ["chat.example.org"]})):
            taken = lambda a=actor, f=fields: serving(world).create(a, request(name="two", service=f))  # noqa: E731
            await refused(taken, ErrorCode.NAME_TAKEN)

    world.do(story())


def test_only_administrators_give_a_service_a_host_name(world: World) -> None:
    async def story() -> None:
        named = request(service={"hosts": ["head.example.org"]})
        await refused(lambda: serving(world).create(ANN, named), ErrorCode.FORBIDDEN)
        await refused(lambda: serving(world).check(ANN, named, None), ErrorCode.FORBIDDEN)
        await new(world)
        await refused(lambda: serving(world).update(ANN, "chat", named), ErrorCode.FORBIDDEN)
        await serving(world).update(ADMIN, "chat", named)
        assert (await serving(world).update(ANN, "chat", named)).routing.hosts == ("head.example.org",)
        port = request(service={"hosts": ["w3k9x2m4qp7-0-8888.example.org"]})
        await refused(lambda: serving(world).update(ADMIN, "chat", port), ErrorCode.INVALID_REQUEST)

    world.do(story())


def test_services_continue_after_a_crash_of_the_control_plane(world: World) -> None:
    async def story() -> None:
        await new(world, service={"replicas": 2})
        before = {each.workload.id for each in view(world).replicas}
        await world.reboot()
        await pass_turns(world)
        assert {each.workload.id for each in view(world).replicas} == before
        assert view(world).state is ServiceState.READY
        await serving(world).update(ANN, "chat", request(service={"replicas": 2}, env={"A": "1"}))
        await world.reboot()
        await pass_turns(world, 400)
        assert (view(world).service.current, view(world).state) == (2, ServiceState.READY)
        assert not {each.workload.id for each in view(world).replicas} & before

    world.do(story())


def test_deleted_service_needs_to_be_stopped(world: World) -> None:
    async def story() -> None:
        await new(world)
        with pytest.raises(GpupoolError) as not_stopped:
            await serving(world).delete(ANN, "chat")
        assert "gpupool service stop chat" in not_stopped.value.hint
        await refused(lambda: world.services.access.delete_project(ADMIN, "none"), ErrorCode.UNKNOWN_PROJECT)
        await serving(world).stop(ANN, "chat")
        with pytest.raises(GpupoolError) as still_ends:
            await serving(world).delete(ANN, "chat")
        assert still_ends.value.code is ErrorCode.WRONG_STATE
        assert still_ends.value.hint.startswith("Wait until")
        await pass_turns(world, 130)
        await serving(world).delete(ANN, "chat")
        await refused(lambda: serving(world).scale(ANN, "chat", 1, 1), ErrorCode.UNKNOWN_SERVICE)
        await world.reboot()
        assert serving(world).all(ADMIN) == []

    world.do(story())


def test_update_without_room_for_both_ends_with_the_advice(world: World) -> None:
    async def story() -> None:
        whole = {"gpus": {"count": 2}, "service": {"ready": {"within": "30s"}}}
        await new(world, **whole)
        await serving(world).update(ANN, "chat", request(**whole, env={"A": "1"}))
        await pass_turns(world, 2)
        assert "surge 0" not in view(world).service.failure
        await pass_turns(world, 40)
        found = view(world)
        assert (found.service.target, found.state) == (1, ServiceState.READY)
        assert "it waits for GPUs; `--surge 0`" in found.service.failure
        without = {**whole, "service": {**whole["service"], "update": {"surge": 0, "drain": "3s"}}}
        await serving(world).update(ANN, "chat", request(**without, env={"A": "1"}))
        await pass_turns(world, 40)
        assert (view(world).service.current, view(world).state) == (3, ServiceState.READY)

    world.do(story())
