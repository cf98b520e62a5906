"""Permissions: roles for each action, projects, users, tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor, Project, ProjectRules, Role
from gpupool.domain.work.workload import WorkloadState
from gpupool.services.ports.store import EventFilter, WorkloadFilter
from gpupool.specs.request import parse_request

VIEWER = Actor("vic", Role.VIEWER, "token 1")
MEMBER = BOB
MANAGER = Actor("mia", Role.MANAGER, "token 2")  # member of the project red
STRANGER_MANAGER = Actor("max", Role.MANAGER, "token 3")
OWNER = ANN
OWNER_WATCHING = replace(ANN, role=Role.VIEWER, via="token 4")

WORK = {"project": "red", "gpus": {"fraction": 0.1}}


async def furnish(world: World) -> None:
    access = world.services.access
    for name in ("vic", "mia", "max", "ann", "bob"):
        await access.put_user(ADMIN, name, {})
    await access.create_project(ADMIN, Project("red", members=("ann", "bob", "mia")))


async def allowed(call: Callable[[], Awaitable[Any]]) -> bool:
    try:
        await call()
    except GpupoolError as error:
        refused = error.code is ErrorCode.FORBIDDEN and bool(error.hint)
        if not refused:
            raise
        return False
    return True


MANAGE = {
    VIEWER: False,
    MEMBER: False,
    MANAGER: True,
    STRANGER_MANAGER: False,
    OWNER: True,
    OWNER_WATCHING: False,
    ADMIN: True,
}
ADMINISTER = {actor: actor is ADMIN for actor in MANAGE}
READ = dict.fromkeys(MANAGE, True)


@pytest.mark.parametrize("actor", MANAGE, ids=lambda actor: f"{actor.user}-{actor.role}")
@pytest.mark.parametrize("action", ["stop", "suspend", "signal", "extend", "delete", "exec"])
def test_roles_may_change_work_of_another_user(world: World, actor: Actor, action: str) -> None:
    async def story() -> None:
        await furnish(world)
        calls = world.services.workloads
        job = await world.submit(**WORK)
        lease = await world.submit(kind="lease", lifetime=100, **WORK)
        ended = await world.submit(**WORK)
        await world.end(ended)
        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "stop": lambda: calls.stop(actor, job.id),
            "suspend": lambda: calls.suspend(actor, job.id),
            "signal": lambda: calls.signal(actor, job.id, 10),
            "extend": lambda: calls.extend(actor, lease.id, 10),
            "delete": lambda: calls.delete(actor, ended.id),
            "exec": lambda: world.submit(actor, kind="exec", on=lease.id, project="red"),
        }
        assert await allowed(acts[action]) is MANAGE[actor]
        if not MANAGE[actor]:
            assert await world.state(job.id) is WorkloadState.RUNNING
            assert world.agent.signals == []

    world.do(story())


@pytest.mark.parametrize("actor", MANAGE, ids=lambda actor: f"{actor.user}-{actor.role}")
def test_roles_may_submit(world: World, actor: Actor) -> None:
    async def story() -> None:
        await furnish(world)
        may = actor.role is not Role.VIEWER
        assert await allowed(lambda: world.submit(actor, gpus={"fraction": 0.1})) is may
        member = actor is ADMIN or (may and actor.user in {"ann", "bob", "mia"})
        assert await allowed(lambda: world.submit(actor, **WORK)) is member

    world.do(story())


@pytest.mark.parametrize("actor", MANAGE, ids=lambda actor: f"{actor.user}-{actor.role}")
def test_only_administrators_administer(world: World, actor: Actor) -> None:
    async def story() -> None:
        await furnish(world)
        access, nodes = world.services.access, world.services.nodes
        for call in (
            lambda: access.put_user(actor, "new", {}),
            lambda: access.create_project(actor, Project("blue")),
            lambda: access.change_project(actor, "red", {"quota_permille": 500}),
            lambda: nodes.cordon(actor, "here", "cleaning"),
            lambda: nodes.uncordon(actor, "here"),
            lambda: access.create_token(
                actor, user="bob" if actor.user != "bob" else "ann", role=None, expires_in_s=60
            ),
            lambda: access.delete_project(actor, "red"),
        ):
            assert await allowed(call) is ADMINISTER[actor]

    world.do(story())


@pytest.mark.parametrize("actor", [MANAGER, STRANGER_MANAGER, MEMBER])
def test_manager_changes_members_of_own_project(world: World, actor: Actor) -> None:
    async def story() -> None:
        await furnish(world)
        members = {"members": ("ann", "mia")}
        assert await allowed(lambda: world.services.access.change_project(actor, "red", members)) is (actor is MANAGER)

    world.do(story())


@pytest.mark.parametrize("actor", MANAGE, ids=lambda actor: f"{actor.user}-{actor.role}")
def test_every_role_may_read(world: World, actor: Actor) -> None:
    async def story() -> None:
        await furnish(world)
        job = await world.submit(**WORK)
        services = world.services
        assert [w.id for w in await services.workloads.list(actor, WorkloadFilter())] == [job.id]
        assert (await services.workloads.why(actor, job.id)).sentence
        may = MANAGE[actor] or actor.user == "ann"
        assert bool(await services.history.events(actor, EventFilter(workload=job.id))) is may
        assert services.workloads.can_see(actor, job) is may
        assert await allowed(lambda: _see(world, actor, job.id)) is may

    world.do(story())


async def _see(world: World, actor: Actor, ref: str) -> None:
    """Check that reading the output reaches the node or is refused before."""
    try:
        await world.services.workloads.output.read(actor, ref, index=0, attempt=None, cursor="", limit=10)
    except NotImplementedError:
        return


def test_user_of_machine_is_created_at_first_use_and_can_be_disabled(world: World) -> None:
    async def story() -> None:
        access = world.services.access
        actor = await access.actor_for_uid(54321)
        assert (actor.role, actor.uid) == (Role.MEMBER, 54321)
        assert (await access.actor_for_uid(54321)).user == actor.user
        assert (await access.actor_for_uid(0)).role is Role.ADMIN
        await access.put_user(ADMIN, actor.user, {"disabled": True})
        await refused(lambda: access.actor_for_uid(54321), ErrorCode.FORBIDDEN)
        await world.reboot()
        await refused(lambda: world.services.access.actor_for_uid(54321), ErrorCode.FORBIDDEN)

    world.do(story())


def test_simultaneous_first_use_of_an_account_creates_one_user(world: World) -> None:
    import asyncio

    async def story() -> None:
        access = world.services.access
        actors = await asyncio.gather(*(access.actor_for_uid(54321) for _ in range(10)))
        assert len({actor.user for actor in actors}) == 1
        assert [u.uid for u in await access.users()].count(54321) == 1

    world.do(story())


def test_account_belongs_to_one_user(world: World) -> None:
    async def story() -> None:
        access = world.services.access
        await access.put_user(ADMIN, "ann", {"uid": 1001})
        await refused(lambda: access.put_user(ADMIN, "eve", {"uid": 1001}), ErrorCode.NAME_TAKEN)
        await refused(lambda: access.put_user(ADMIN, "no name", {}), ErrorCode.INVALID_NAME)
        await refused(lambda: access.put_user(ADMIN, "ann", {"gpu_limit_permille": -1}), ErrorCode.INVALID_COUNT)

    world.do(story())


def test_mail_address_is_validated_and_users_change_their_own(world: World) -> None:
    async def story() -> None:
        access = world.services.access
        await furnish(world)
        assert (await access.put_user(ADMIN, "bob", {"email": "bob@example.org"})).email == "bob@example.org"
        assert (await access.put_user(ANN, "ann", {"email": "ann+gpu@lab.example.org"})).role is Role.MEMBER
        await refused(lambda: access.put_user(ANN, "bob", {"email": "ann@example.org"}), ErrorCode.FORBIDDEN)
        await refused(lambda: access.put_user(ANN, "ann", {"email": "", "role": Role.ADMIN}), ErrorCode.FORBIDDEN)
        for wrong in ("ann", "a b@example.org", "ann@example.org\nBcc: x@y.z", "<a@b.c>", "ann@", f"{'a' * 251}@b.c"):
            await refused(lambda wrong=wrong: access.put_user(ANN, "ann", {"email": wrong}), ErrorCode.INVALID_REQUEST)
        said = await world.services.history.events(ADMIN, EventFilter(newest=True, limit=1))
        assert said[0].message == "role member, e-mail address changed"
        await world.reboot()
        users = {user.name: user.email for user in await world.services.access.users()}
        assert (users["ann"], users["bob"]) == ("ann+gpu@lab.example.org", "bob@example.org")

    world.do(story())


def test_token_is_created_used_and_revoked(world: World) -> None:
    async def story() -> None:
        access = world.services.access
        await furnish(world)
        token, secret = await access.create_token(ADMIN, user="ann", role=None, expires_in_s=100)
        assert secret not in str(await access.tokens(ADMIN))
        actor = await access.actor_for_token(secret)
        assert (actor.user, actor.role) == ("ann", Role.MEMBER)
        await refused(lambda: access.actor_for_token(secret + "x"), ErrorCode.UNAUTHENTICATED)
        await refused(lambda: access.actor_for_token(""), ErrorCode.UNAUTHENTICATED)
        await refused(lambda: access.revoke_token(BOB, token.id), ErrorCode.UNKNOWN_TOKEN)
        assert (await access.actor_for_token(secret)).user == "ann"
        assert [t.id for t in await access.tokens(ANN)] == [token.id]
        assert list(await access.tokens(BOB)) == []
        await access.revoke_token(ANN, token.id)
        await access.revoke_token(ANN, token.id)
        await refused(lambda: access.actor_for_token(secret), ErrorCode.UNAUTHENTICATED)
        await world.reboot()
        await refused(lambda: world.services.access.actor_for_token(secret), ErrorCode.UNAUTHENTICATED)

    world.do(story())


def test_expired_token_is_refused(world: World) -> None:
    async def story() -> None:
        await furnish(world)
        access = world.services.access
        _, secret = await access.create_token(ANN, user="ann", role=Role.VIEWER, expires_in_s=100)
        world.clock.at += 99
        assert (await access.actor_for_token(secret)).role is Role.VIEWER
        world.clock.at += 1
        await refused(lambda: access.actor_for_token(secret), ErrorCode.UNAUTHENTICATED)

    world.do(story())


@pytest.mark.parametrize("seconds", [0, -1, 400 * 86400.0, float("nan")])
def test_token_lifetime_is_limited(world: World, seconds: float) -> None:
    async def story() -> None:
        await furnish(world)
        await refused(
            lambda: world.services.access.create_token(ANN, user="ann", role=None, expires_in_s=seconds),
            ErrorCode.INVALID_DURATION,
        )

    world.do(story())


def test_token_grants_no_more_than_its_user_has(world: World) -> None:
    async def story() -> None:
        await furnish(world)
        access = world.services.access
        await refused(
            lambda: access.create_token(ANN, user="ann", role=Role.ADMIN, expires_in_s=60), ErrorCode.FORBIDDEN
        )
        await access.put_user(ADMIN, "mia", {"role": Role.MANAGER})
        _, secret = await access.create_token(ADMIN, user="mia", role=Role.MANAGER, expires_in_s=60)
        await access.put_user(ADMIN, "mia", {"role": Role.VIEWER})
        assert (await access.actor_for_token(secret)).role is Role.VIEWER, "a lower role counts at once"
        await access.put_user(ADMIN, "mia", {"disabled": True})
        await refused(lambda: access.actor_for_token(secret), ErrorCode.FORBIDDEN)

    world.do(story())


def test_projects_are_created_changed_and_removed(world: World) -> None:
    async def story() -> None:
        await furnish(world)
        access = world.services.access
        await refused(lambda: access.create_project(ADMIN, Project("red")), ErrorCode.NAME_TAKEN)
        await refused(lambda: access.create_project(ADMIN, Project("a b")), ErrorCode.INVALID_NAME)
        await refused(lambda: access.change_project(ADMIN, "red", {"members": ("nobody",)}), ErrorCode.UNKNOWN_USER)
        await refused(lambda: access.change_project(ADMIN, "red", {"quota_permille": -5}), ErrorCode.INVALID_COUNT)
        await refused(lambda: access.change_project(ADMIN, "nothing", {}), ErrorCode.UNKNOWN_PROJECT)
        await refused(lambda: access.delete_project(ADMIN, "default"), ErrorCode.WRONG_STATE)
        job = await world.submit(**WORK)
        await refused(lambda: access.delete_project(ADMIN, "red"), ErrorCode.WRONG_STATE)
        await world.end(job)
        await access.delete_project(ADMIN, "red")
        await world.reboot()
        assert [p.name for p in await world.services.access.projects()] == ["default"]

    world.do(story())


def test_project_limits_run_time_of_its_work(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", max_time_s=60, idle_timeout_s=30))
        plain = await world.submit(project="red", gpus={"fraction": 0.1})
        longer = await world.submit(project="red", max_time=600, idle_timeout=10, gpus={"fraction": 0.1})
        assert (plain.limits.max_time_s, plain.limits.idle_timeout_s) == (60, 30)
        assert (longer.limits.max_time_s, longer.limits.idle_timeout_s) == (60, 10)

    world.do(story())


def test_cordoned_node_keeps_running_work_and_stays_cordoned(world: World) -> None:
    async def story() -> None:
        running = await world.submit(gpus={"fraction": 0.1})
        await world.services.nodes.cordon(ADMIN, "here", "new fans")
        waiting = await world.submit(gpus={"fraction": 0.1})
        assert world.is_running(running)
        assert not world.is_running(waiting)
        why = await world.services.workloads.why(ANN, waiting.id)
        assert why.code == "NODE_CORDONED"
        world.agent.hiccup()
        await world.reboot()
        assert not world.is_running(waiting)
        node = await world.services.nodes.node("here")
        assert (node.state, node.cordon_reason) == ("cordoned", "new fans")
        await world.services.nodes.uncordon(ADMIN, "here")
        await world.settle()
        assert world.is_running(waiting)
        await refused(lambda: world.services.nodes.cordon(ADMIN, "there", ""), ErrorCode.UNKNOWN_NODE)

    world.do(story())


def test_audit_log_names_the_user_of_each_action(world: World) -> None:
    async def story() -> None:
        await furnish(world)
        job = await world.submit(**WORK)
        await world.services.workloads.stop(ADMIN, job.id)
        await world.settle()
        events = await world.services.history.events(ANN, EventFilter(limit=500))
        assert ("root", "user ann") in {(e.actor, e.target) for e in events}
        mine = [(e.actor, str(e.reason)) for e in events if e.workload == job.id]
        assert mine[0] == ("ann", "SUBMITTED")
        assert ("root", "STOPPED_BY_USER") in mine
        assert ("pool", "GRANTED") in mine

    world.do(story())


def test_queue_length_of_a_user_is_limited(world: World) -> None:
    async def story() -> None:
        await furnish(world)
        services = world.services
        await services.policy.change(ADMIN, {"max_queued_per_user": 5})
        whole = parse_request({"command": ["work"], "gpus": {"count": 2}})
        three = parse_request({"command": ["work"], "gpus": {"count": 2}, "completions": 3})
        await services.workloads.submit(ADMIN, whole)
        await world.settle()
        await services.workloads.submit(ANN, three)
        with pytest.raises(GpupoolError) as error:
            await services.workloads.submit(ANN, three)
        assert error.value.code is ErrorCode.QUEUE_LIMIT
        assert "3 replicas" in error.value.message
        assert "limit of 5" in error.value.message
        results = await asyncio.gather(
            *(services.workloads.submit(ANN, whole) for _ in range(4)), return_exceptions=True
        )
        refusals = [result.code for result in results if isinstance(result, GpupoolError)]
        assert refusals == [ErrorCode.QUEUE_LIMIT] * 2
        await services.workloads.submit(BOB, three)
        await services.workloads.submit(ADMIN, parse_request({"command": ["work"], "completions": 9}))

    world.do(story())


def test_queue_length_of_a_project_is_limited_for_all_users(world: World) -> None:
    async def story() -> None:
        await furnish(world)
        services = world.services
        await services.access.change_project(ADMIN, "red", {"rules": {"max_queued": 3}})
        await services.access.change_project(ADMIN, "default", {"rules": {"max_queued": 2}})
        two = {"command": ["work"], "gpus": {"count": 2}, "completions": 2}
        await services.workloads.submit(ADMIN, parse_request(two))
        await world.settle()
        await services.workloads.submit(ANN, parse_request(two | {"project": "red"}))
        with pytest.raises(GpupoolError) as error:
            await services.workloads.submit(BOB, parse_request(two | {"project": "red"}))
        assert error.value.code is ErrorCode.QUEUE_LIMIT
        assert (
            error.value.message == "The project red has 2 replicas in the queue; 2 more would be over the limit of 3."
        )
        assert "gpupool project set red --max-queued" in error.value.hint
        await services.workloads.submit(ADMIN, parse_request(two | {"project": "red"}))
        await services.access.change_project(ADMIN, "red", {"rules": {"max_queued": None}})
        await services.workloads.submit(BOB, parse_request(two | {"project": "red"}))

    world.do(story())


@pytest.mark.parametrize("limit", [0, -1, 200_001])
def test_invalid_queue_limit_is_refused(world: World, limit: int) -> None:
    async def story() -> None:
        with pytest.raises(GpupoolError) as error:
            await world.services.access.create_project(ADMIN, Project("red", rules=ProjectRules(max_queued=limit)))
        assert error.value.code is ErrorCode.INVALID_COUNT

    world.do(story())
