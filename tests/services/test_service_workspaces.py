"""Workspaces over real services: sessions, copies, limits and rights, and control planes that die at any step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Actor, Project, ProjectRules, Role
from gpupool.domain.work.workload import WorkloadKind, WorkloadState
from gpupool.domain.work.workspace import (
    IMPORT_COMMAND,
    IMPORT_GRACE_S,
    UNUSED_AFTER_S,
    TaskKind,
    Workspace,
    WorkspaceState,
)
from gpupool.services.ports.store import EventFilter
from gpupool.services.workspaces.service import NewWorkspace, WorkspaceService

HALF, NONE = GpuRequest(permille=500), GpuRequest(count=0)
S = WorkspaceState


def service(world: World) -> WorkspaceService:
    return world.services.workspaces


async def done(world: World, work: Awaitable[Workspace | None]) -> Workspace:
    """Wait until the task of a change has ended; return the workspace then."""
    row = await work
    assert row is not None
    after = await service(world).settled(row, 30)
    assert after is not None
    assert after.task is None
    return after


async def new(world: World, name: str = "lab", actor: Actor = ANN, **wanted: Any) -> Workspace:
    return await done(world, service(world).create(actor, NewWorkspace(name, **wanted)))


def state(world: World, ref: str = "lab", actor: Actor = ANN) -> WorkspaceState:
    return service(world).state(service(world).get(actor, ref))


def test_session_runs_in_the_home_with_the_size_of_each_start(world: World) -> None:
    async def story() -> None:
        made = await new(world, gpus=HALF)
        assert (made.node, state(world)) == ("here", S.STOPPED)
        session = await service(world).start(ANN, "lab")
        await world.settle()
        assert (session.kind, session.name, session.user) == (WorkloadKind.INTERACTIVE, "lab", "ann")
        [program] = world.agent.running()
        assert program.spec.workspace == made.id
        assert sum(share.permille for share in program.spec.gpus) == 500
        assert state(world) is S.RUNNING
        await service(world).stop(ANN, "lab")
        await world.settle()
        assert state(world) is S.STOPPED
        assert not world.now.engine.mirror.leases
        bigger = await service(world).start(ANN, "lab", GpuRequest(count=2))
        await world.settle()
        assert len(world.agent.running()[0].spec.gpus) == 2
        assert service(world).get(ANN, "lab").gpus.count == 2
        shell = await world.submit(kind="exec", on=bigger.id, command=["sh"])
        [theirs] = [p.spec for p in world.agent.running() if p.spec.key.startswith(shell.id)]
        assert theirs.workspace == made.id
        await world.check_at_rest()

    world.do(story())


def test_workspace_without_gpus_runs_on_the_cpu(world: World) -> None:
    async def story() -> None:
        await new(world, gpus=NONE)
        session = await service(world).start(ANN, "lab")
        await world.settle()
        assert await world.state(session.id) is WorkloadState.RUNNING
        assert world.agent.running()[0].spec.gpus == ()

    world.do(story())


def test_home_is_used_by_one_workload_at_a_time(world: World) -> None:
    async def story() -> None:
        await new(world, gpus=HALF)
        await service(world).start(ANN, "lab")
        for work in (
            lambda: service(world).start(ANN, "lab"),
            lambda: world.submit(workspace="lab", gpus={"count": 0}),
            lambda: service(world).snapshot(ANN, "lab", "one"),
            lambda: service(world).clone(ANN, "lab", "copy"),
            lambda: service(world).assign(ANN, "lab", NONE),
            lambda: service(world).delete(ANN, "lab"),
        ):
            found = await refused(work, ErrorCode.WRONG_STATE)
            assert "must be stopped" in found.message
        assert "gpupool workspace stop lab" in found.hint

    world.do(story())


def test_simultaneous_starts_make_one_session(world: World) -> None:
    async def story() -> None:
        await new(world, gpus=HALF)
        found = await asyncio.gather(*(service(world).start(ANN, "lab") for _ in range(4)), return_exceptions=True)
        errors = [each for each in found if isinstance(each, GpupoolError)]
        assert [error.code for error in errors] == [ErrorCode.WRONG_STATE] * 3
        await world.settle()
        assert len(world.agent.running()) == 1

    world.do(story())


def test_job_with_the_field_runs_in_the_home(world: World) -> None:
    async def story() -> None:
        made = await new(world)
        job = await world.submit(workspace="lab", gpus={"count": 0}, workdir="src")
        assert world.agent.running()[0].spec.workspace == made.id
        assert world.agent.running()[0].spec.cwd == "src"
        assert state(world) is S.RUNNING
        await world.end(job)
        assert state(world) is S.STOPPED
        await refused(lambda: world.submit(BOB, workspace="lab", gpus={"count": 0}), ErrorCode.UNKNOWN_WORKSPACE)
        await refused(lambda: world.submit(ADMIN, workspace=made.id, gpus={"count": 0}), ErrorCode.FORBIDDEN)

    world.do(story())


def test_waiting_session_names_the_node_of_its_home(world: World) -> None:
    async def story() -> None:
        await world.submit(gpus={"count": 2}, kind="interactive")
        await new(world)
        session = await service(world).start(ANN, "lab")
        await world.settle()
        assert state(world) is S.STARTING
        why = await world.services.workloads.why(ANN, session.id)
        assert "its workspace is stored on here" in why.sentence

    world.do(story())


def test_others_do_not_see_a_workspace(world: World) -> None:
    async def story() -> None:
        for name in ("ann", "bob", "meg"):
            await world.services.access.put_user(ADMIN, name, {})
        await world.services.access.create_project(ADMIN, Project("cs101", members=("ann", "meg")))
        made = await new(world, project="cs101")
        meg = Actor("meg", Role.MANAGER, "uid 1003", 1003)
        for actor, sees in ((ANN, True), (BOB, False), (meg, True), (ADMIN, True)):
            assert [row.id for row in service(world).all(actor)] == ([made.id] if sees else [])
        for ref in ("lab", made.id):
            await refused(lambda ref=ref: service(world).start(BOB, ref), ErrorCode.UNKNOWN_WORKSPACE)
            await refused(lambda ref=ref: service(world).delete(BOB, ref), ErrorCode.UNKNOWN_WORKSPACE)
        session = await service(world).start(meg, "lab")
        assert (session.user, session.project) == ("ann", "cs101")
        await service(world).stop(meg, "lab")
        await new(world, actor=BOB)
        assert service(world).get(BOB, "lab").user == "bob"
        found = await refused(lambda: service(world).stop(ADMIN, "lab"), ErrorCode.INVALID_NAME)
        assert made.id in found.hint
        await refused(lambda: new(world), ErrorCode.NAME_TAKEN)

    world.do(story())


def test_snapshots_and_clones_have_the_files_of_their_time(world: World) -> None:
    async def story() -> None:
        made = await new(world)
        home = world.agent.homes[made.id]
        home.copies[""] = 10
        saved = await done(world, service(world).snapshot(ANN, "lab", "ten"))
        assert [each.name for each in saved.snapshots] == ["ten"]
        await refused(lambda: service(world).snapshot(ANN, "lab", "ten"), ErrorCode.NAME_TAKEN)
        home.copies[""] = 20
        now = await done(world, service(world).clone(ANN, "lab", "now"))
        then = await done(world, service(world).clone(ANN, "lab", "then", "ten"))
        assert [world.agent.homes[row.id].copies[""] for row in (now, then)] == [20, 10]
        await done(world, service(world).restore(ANN, "lab", "ten"))
        assert home.copies[""] == 10
        left = await done(world, service(world).drop_snapshot(ANN, "lab", "ten"))
        assert (left.snapshots, list(home.copies)) == ((), [""])
        await refused(lambda: service(world).restore(ANN, "lab", "ten"), ErrorCode.NOT_FOUND)

    world.do(story())


def test_failed_copy_is_reported_and_changes_nothing(world: World) -> None:
    async def story() -> None:
        made = await new(world)
        world.agent.home_error = GpupoolError(ErrorCode.DISK_FULL, "The disk is full.", "Delete files.")
        row = await service(world).snapshot(ANN, "lab", "one")
        await refused(lambda: service(world).settled(row, 30), ErrorCode.DISK_FULL)
        left = service(world).get(ANN, "lab")
        assert (left.snapshots, left.task) == ((), None)
        assert row.task is not None
        await refused(lambda: service(world).wait(ANN, "lab", row.task.id, 1), ErrorCode.DISK_FULL)  # type: ignore[union-attr]
        clone = await service(world).clone(ANN, "lab", "copy")
        await refused(lambda: service(world).settled(clone, 30), ErrorCode.DISK_FULL)
        assert [row.id for row in service(world).all(ANN)] == [made.id]
        await world.reboot()
        assert service(world).get(ANN, "lab").failure == left.failure

    world.do(story())


@pytest.mark.parametrize(
    "kind", [TaskKind.CREATE, TaskKind.CLONE, TaskKind.SNAPSHOT, TaskKind.RESTORE, TaskKind.DELETE]
)
@pytest.mark.parametrize("fate", ["before", "after", "slow"])
def test_task_survives_the_control_plane(world: World, kind: TaskKind, fate: str) -> None:
    """The message or the answer is lost, or the change is in progress, when the control plane is killed."""

    async def story() -> None:
        made = await new(world, "first")
        world.agent.homes[made.id].copies[""] = 7
        await done(world, service(world).snapshot(ANN, "first", "kept"))
        world.agent.homes[made.id].copies[""] = 8
        world.agent.slow_homes = fate == "slow"
        world.agent.losses = [] if fate == "slow" else [fate]
        calls: dict[TaskKind, Any] = {
            TaskKind.CREATE: lambda: service(world).create(ANN, NewWorkspace("second")),
            TaskKind.CLONE: lambda: service(world).clone(ANN, "first", "second"),
            TaskKind.SNAPSHOT: lambda: service(world).snapshot(ANN, "first", "new"),
            TaskKind.RESTORE: lambda: service(world).restore(ANN, "first", "kept"),
            TaskKind.DELETE: lambda: service(world).delete(ANN, "first"),
        }
        row = await calls[kind]()
        await world.settle()
        await world.crash()
        world.agent.slow_homes, world.agent.losses = False, []
        await world.boot()
        found = service(world)._registry.rows.get(row.id)
        if found is not None and found.task is not None:
            await service(world).settled(found, 30)
        rows = {each.name: each for each in service(world).all(ANN)}
        sizes = {name: world.agent.homes[each.id].copies[""] for name, each in rows.items()}
        assert all(each.task is None for each in rows.values())
        assert (
            sizes
            == {
                TaskKind.CREATE: {"first": 8, "second": 0},
                TaskKind.CLONE: {"first": 8, "second": 8},
                TaskKind.SNAPSHOT: {"first": 8},
                TaskKind.RESTORE: {"first": 7},
                TaskKind.DELETE: {},
            }[kind]
        )
        if kind is TaskKind.SNAPSHOT:
            assert [each.name for each in rows["first"].snapshots] == ["kept", "new"]
        assert set(world.agent.homes) == {each.id for each in rows.values()}

    world.do(story())


def test_stopped_workspace_is_deleted_and_running_one_is_not(world: World) -> None:
    async def story() -> None:
        await new(world, gpus=HALF)
        await service(world).start(ANN, "lab")
        await refused(lambda: service(world).delete(ANN, "lab"), ErrorCode.WRONG_STATE)
        await service(world).stop(ANN, "lab")
        await world.settle()
        row = await service(world).delete(ANN, "lab")
        assert row is not None
        assert await service(world).settled(row, 30) is None
        await refused(lambda: service(world).start(ANN, "lab"), ErrorCode.UNKNOWN_WORKSPACE)
        assert not world.agent.homes

    world.do(story())


def test_workspace_of_a_lost_node_can_be_forgotten(world: World) -> None:
    async def story() -> None:
        await new(world)
        await refused(lambda: service(world).delete(ANN, "lab", forget=True), ErrorCode.WRONG_STATE)
        world.agent.go(up=False)
        await world.settle()
        assert await service(world).delete(ANN, "lab", forget=True) is None
        assert service(world).all(ANN) == []

    world.do(story())


def test_node_that_stores_homes_is_not_removed(world: World) -> None:
    """The removal names the workspaces; it is possible once each is forgotten."""

    async def story() -> None:
        made = await new(world)
        await refused(lambda: world.services.nodes.remove(ADMIN, "here"), ErrorCode.WRONG_STATE)
        world.agent.go(up=False)
        await world.settle()
        with pytest.raises(GpupoolError) as error:
            await world.services.nodes.remove(ADMIN, "here")
        assert error.value.code is ErrorCode.WRONG_STATE
        assert f"lab of ann ({made.id})" in error.value.message
        assert "--forget" in error.value.hint
        assert [node.name for node in await world.services.nodes.nodes()] == ["here"]
        await service(world).delete(ADMIN, made.id, forget=True)
        await world.services.nodes.remove(ADMIN, "here")
        assert await world.services.nodes.nodes() == ()

    world.do(story())


def test_workspace_of_a_node_that_left_by_force_can_be_forgotten(world: World) -> None:
    async def story() -> None:
        made = await new(world)
        with pytest.raises(GpupoolError, match=f"lab of ann .{made.id}"):
            world.services.nodes.require_no_homes("here", "")
        world.agent.go(up=False)
        await world.settle()
        await world.services.nodes.remove(ADMIN, "here", keep_homes=False)
        assert service(world).all(ANN) == [made]
        assert await service(world).delete(ANN, "lab", forget=True) is None

    world.do(story())


def test_disk_limits_refuse_starts_and_copies(world: World) -> None:
    async def story() -> None:
        rules = ProjectRules(workspace_mib=100, user_workspace_mib=50)
        await world.services.access.create_project(ADMIN, Project("small", rules=rules))
        made = await new(world, project="small", gpus=NONE)
        world.agent.homes[made.id].copies[""] = 30 << 20
        session = await service(world).start(ANN, "lab")
        await world.settle()
        await service(world).stop(ANN, "lab")
        await world.settle()
        await world.pass_time(5)
        await world.pass_time(5)
        measured = service(world).get(ANN, "lab")
        assert measured.disk_bytes == 30 << 20
        assert measured.used_at > made.used_at
        found = await refused(lambda: service(world).clone(ANN, "lab", "two"), ErrorCode.OVER_LIMIT)
        assert "ann in small use 30 MiB of disk; 30 MiB more would be over the limit of 50 MiB" in found.message
        assert "gpupool project set small --user-workspace-disk" in found.hint
        world.agent.homes[made.id].copies[""] = 60 << 20
        service(world)._registry.rows[made.id] = replace(measured, disk_bytes=60 << 20)
        await refused(lambda: service(world).start(ANN, "lab"), ErrorCode.OVER_LIMIT)
        assert session.id not in world.now.engine.mirror.workloads

    world.do(story())


def test_control_plane_killed_while_a_session_starts(world: World) -> None:
    async def story() -> None:
        await new(world, gpus=HALF)
        assert world.store is not None
        world.store.die = (0, "after")
        assert await world.attempt(service(world).start(ANN, "lab")) is None
        await world.reboot()
        await world.settle()
        assert state(world) is S.RUNNING
        await refused(lambda: service(world).start(ANN, "lab"), ErrorCode.WRONG_STATE)
        world.check_always()
        await world.check_at_rest()

    world.do(story())


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("act", ["start", "stop"])
def test_control_plane_killed_at_each_step_of_start_and_stop(world: World, act: str, moment: str) -> None:
    """Each step is a commit. Afterwards the session runs or has ended, the files are there, and nothing is held."""

    async def killed_at(step: int) -> bool:
        name = f"lab-{step}"
        made = await new(world, name, gpus=HALF)
        world.agent.homes[made.id].copies[""] = 7
        if act == "stop":
            await service(world).start(ANN, name)
            await world.settle()
        assert world.store is not None
        world.store.die = (step, moment)
        await world.attempt(getattr(service(world), act)(ANN, name))
        await world.settle()
        died = world.store.dying.is_set()
        await world.reboot()
        await world.settle()
        await world.pass_time(2)
        found = state(world, name)
        lost = died and step == 0 and moment == "before"  # the request had no effect
        assert found is (S.RUNNING if (act == "start") is not lost else S.STOPPED), step
        if found is S.RUNNING:
            await refused(lambda: service(world).start(ANN, name), ErrorCode.WRONG_STATE)
            await service(world).stop(ANN, name)
            await world.settle()
        world.check_always()
        await world.check_at_rest()
        assert (state(world, name), world.agent.homes[made.id].copies) == (S.STOPPED, {"": 7})
        assert not world.now.engine.mirror.leases, "its GPUs are free"
        await service(world).start(ANN, name)
        await world.settle()
        assert state(world, name) is S.RUNNING
        await service(world).stop(ANN, name)
        await world.settle()
        return died

    async def story() -> None:
        step = 0
        while await killed_at(step):
            step += 1
        assert step >= 2

    world.do(story())


def test_session_above_the_quota_is_refused_and_changes_nothing(world: World) -> None:
    """A start that the quota can never admit is refused; one that it admits later waits with the reason."""

    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("small", quota_permille=500, limit_permille=500))
        await new(world, gpus=HALF, project="small")
        await new(world, "other", gpus=HALF, project="small")
        found = await refused(lambda: service(world).start(ANN, "lab", GpuRequest(count=2)), ErrorCode.OVER_LIMIT)
        assert "small" in found.message
        assert (state(world), service(world).get(ANN, "lab").gpus) == (S.STOPPED, HALF)
        await service(world).start(ANN, "lab")
        await world.settle()
        waiting = await service(world).start(ANN, "other")
        await world.settle()
        why = await world.services.workloads.why(ANN, waiting.id)
        assert "small" in why.sentence
        assert (state(world), state(world, "other")) == (S.RUNNING, S.STARTING)
        await service(world).stop(ANN, "lab")
        await world.settle()
        assert state(world, "other") is S.RUNNING

    world.do(story())


def test_shared_snapshots_can_be_cloned_by_members_of_the_project(world: World) -> None:
    async def story() -> None:
        services = service(world)
        made = await new(world)
        await done(world, services.snapshot(ANN, "lab", "start"))
        await done(world, services.snapshot(ANN, "lab", "secret"))
        await refused(lambda: services.clone(BOB, made.id, "mine", "start"), ErrorCode.UNKNOWN_WORKSPACE)
        await refused(lambda: services.share(ADMIN, made.id, "start"), ErrorCode.FORBIDDEN)
        await refused(lambda: services.share(BOB, made.id, "start"), ErrorCode.UNKNOWN_WORKSPACE)
        await refused(lambda: services.share(ANN, "lab", "nothing"), ErrorCode.NOT_FOUND)
        await services.share(ANN, "lab", "start")
        assert [(row.name, snapshot.name) for row, snapshot in services.shared(BOB)] == [("lab", "start")]
        assert services.shared(ANN) == [], "her own"
        await refused(lambda: services.get(BOB, made.id), ErrorCode.UNKNOWN_WORKSPACE)
        found = await refused(lambda: services.clone(BOB, "lab", "mine", "secret"), ErrorCode.NOT_FOUND)
        assert "ann/lab --snapshot start" in found.hint
        mine = await done(world, services.clone(BOB, "lab", "mine"))  # the only one that is shared
        assert (mine.user, mine.snapshots) == ("bob", ())
        await services.share(ANN, "lab", "secret")
        await refused(lambda: services.clone(BOB, "lab", "two"), ErrorCode.NOT_FOUND)
        await done(world, services.clone(BOB, "lab", "two", "secret", "ann"))
        await refused(lambda: services.clone(BOB, "lab", "three", "secret", "eve"), ErrorCode.UNKNOWN_WORKSPACE)
        await world.reboot()
        assert len(service(world).shared(BOB)) == 2
        await world.services.access.put_user(ADMIN, "ann", {"uid": 1001, "role": Role.MEMBER})
        await world.services.access.change_project(ADMIN, "default", {"members": {"ann": Role.MEMBER}})
        assert service(world).shared(BOB) == [], "not a member"
        await refused(lambda: service(world).clone(BOB, made.id, "four", "start"), ErrorCode.UNKNOWN_WORKSPACE)

    world.do(story())


def test_own_workspace_is_cloned_before_a_shared_one_of_that_name(world: World) -> None:
    async def story() -> None:
        services = service(world)
        await new(world)
        await new(world, actor=BOB)
        await done(world, services.snapshot(ANN, "lab", "start"))
        await services.share(ANN, "lab", "start")
        await refused(lambda: services.clone(BOB, "lab", "mine", "start"), ErrorCode.NOT_FOUND)
        await done(world, services.clone(BOB, "lab", "own"))
        theirs = await done(world, services.clone(BOB, "lab", "theirs", "start", "ann"))
        assert theirs.user == "bob"

    world.do(story())


def test_owner_of_an_unused_workspace_is_warned_once_in_ninety_days(world: World) -> None:
    async def warnings() -> list[tuple[str, str]]:
        await service(world).meter.warn()
        wanted = EventFilter(reasons=(Reason.WORKSPACE_UNUSED,))
        return [(event.target, event.message) for event in await world.services.history.events(ADMIN, wanted)]

    async def story() -> None:
        unused, used = await new(world), await new(world, "used")
        world.clock.at += UNUSED_AFTER_S - 60
        await service(world).start(ANN, "used", NONE)
        await world.settle()
        assert await warnings() == []
        world.clock.at += 120
        sentence = "the workspace has not been used for 90 days and keeps 0 B of disk"
        assert await warnings() == [(f"workspace {unused.id}", sentence)]
        assert len(await warnings()) == 1
        await world.reboot()
        assert len(await warnings()) == 1, "a restarted control plane does not repeat it"
        world.clock.at += UNUSED_AFTER_S + 60
        assert [target for target, _ in await warnings()] == [f"workspace {unused.id}"] * 2, f"{used.id} runs"

    world.do(story())


def test_workspace_of_an_abandoned_import_is_deleted(world: World) -> None:
    reading = {"kind": "run", "gpus": {"count": 0}, "command": list(IMPORT_COMMAND)}

    async def delete_abandoned() -> list[str]:
        await service(world).meter.delete_abandoned()
        await world.settle()
        return [row.name for row in service(world).all(ANN)]

    async def story() -> None:
        await new(world, "never", importing=True)
        for name in ("half", "whole"):
            await new(world, name, importing=True)
            assert state(world, name) is S.IMPORTING
            await refused(lambda name=name: service(world).start(ANN, name, NONE), ErrorCode.WRONG_STATE)
            job = await world.submit(workspace=name, **reading)
            assert state(world, name) is S.IMPORTING
            await refused(lambda name=name: world.submit(workspace=name, **reading), ErrorCode.WRONG_STATE)
            world.clock.at += IMPORT_GRACE_S + 1
            assert name in await delete_abandoned(), "its program runs"
            await world.end(job)
            assert name in await delete_abandoned(), "the end of a session is not recorded yet"
        assert "never" not in await delete_abandoned()
        await service(world).complete_import(ANN, "whole")
        await service(world).complete_import(ANN, "whole")
        await world.reboot()
        assert await delete_abandoned() == ["half", "whole"], "clients have time to complete it"
        world.clock.at += IMPORT_GRACE_S + 1
        assert await delete_abandoned() == ["whole"]
        assert list(world.agent.homes) == [service(world).get(ANN, "whole").id]
        await service(world).start(ANN, "whole", NONE)

    world.do(story())
