"""Checks of idle GPUs: when they run, that other work never waits for them, and what happens to a GPU that fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_fabric import NODE
from pool_world import ADMIN, ANN, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Project
from gpupool.domain.work.workload import Workload, WorkloadState
from gpupool.services.ports.store import EventFilter
from gpupool.specs.request import parse_request
from gpupool.verify.results import Check, CheckOutcome, Subject, VerifyReport
from gpupool.verify.workload import IDLE_LABEL, LABEL, PROJECT

HOUR, IDLE_S = 3600.0, 300.0
FAULT = Check("memory", CheckOutcome.FAIL, "1 word of memory changed")


def report(*failed: int, gpus: int = 2, rates: tuple[float, ...] = ()) -> bytes:
    """Return the output of a check in which these GPUs failed."""
    cards = [
        Subject(
            index,
            f"GPU-{index}",
            "Tesla T4",
            (
                FAULT if index in failed else Check("memory"),
                *([Check("copies", values={"memory_gib_s": rates[index]})] if rates else ()),
            ),
        )
        for index in range(gpus)
    ]
    return (
        json.dumps(
            VerifyReport(NODE, 1, emulated=True, driver_version="570", checks=(), gpus=tuple(cards)).to_dict()
        ).encode()
        + b"\n"
    )


async def enable(world: World, **changes: object) -> None:
    await world.services.policy.change(ADMIN, {"verify_idle_s": 24 * HOUR, **changes})


def checks(world: World) -> list[Workload]:
    """Return the checks that run."""
    return [each for each in world.now.engine.mirror.workloads.values() if IDLE_LABEL in each.labels]


async def idle(world: World) -> None:
    """Let the GPUs become idle."""
    await world.pass_time(1.1)  # seen in use, or for the first time
    await world.pass_time(IDLE_S)
    await world.pass_time(1.1)


async def end_check(world: World, output: bytes) -> Workload:
    """End the check that runs with an output."""
    (check,) = checks(world)
    world.agent.output[world.program(check)] = output
    await world.end(check)
    await world.pass_time(1.1)
    return await world.get(check.id)


async def messages(world: World, reason: Reason) -> list[str]:
    found = await world.services.history.events(ADMIN, EventFilter(reasons=(reason,), limit=100))
    return [event.message for event in found]


def cordons(world: World) -> dict[str, str]:
    return dict(world.now._nodes.get(NODE).cordoned_gpus)


def test_nothing_is_checked_by_default(world: World) -> None:
    async def story() -> None:
        await idle(world)
        assert checks(world) == []
        assert PROJECT not in {each.name for each in await world.services.access.projects()}

    world.do(story())


def test_idle_gpus_are_checked_by_a_preemptible_workload_of_the_maintenance_project(world: World) -> None:
    async def story() -> None:
        await enable(world, verify_level=2)
        await world.pass_time(1.1)
        await world.pass_time(IDLE_S - 10)
        assert checks(world) == []
        await world.pass_time(11)
        (check,) = checks(world)
        assert (check.project, check.preemptible, check.labels[LABEL]) == (PROJECT, True, NODE)
        assert check.program.argv[-4:] == ("--level", "2", "--burn", "60")
        work = parse_request({"kind": "run", "command": ["work"], "project": PROJECT})
        await refused(lambda: world.services.workloads.submit(ANN, work), ErrorCode.FORBIDDEN)
        (program,) = world.agent.running()
        assert [share.gpu_uuid for share in program.spec.gpus] == ["GPU-0", "GPU-1"]
        done = await end_check(world, report())
        assert done.state is WorkloadState.SUCCEEDED
        assert {uuid: each.outcome for uuid, each in world.services.gpu_checks.latest.items()} == {
            "GPU-0": "ok",
            "GPU-1": "ok",
        }
        assert await messages(world, Reason.GPU_CHECKED) == ["verified 2 GPUs at level 1: ok"]
        await world.check_at_rest()

    world.do(story())


def test_gpus_are_checked_again_after_the_interval(world: World) -> None:
    async def story() -> None:
        await enable(world)
        await idle(world)
        await end_check(world, report())
        await world.pass_time(23 * HOUR)
        await idle(world)
        assert checks(world) == []
        await world.reboot()  # the results are stored
        await idle(world)
        assert checks(world) == []
        await world.pass_time(HOUR)
        await idle(world)
        assert len(checks(world)) == 1

    world.do(story())


def test_only_the_gpu_that_fails_is_cordoned_and_its_result_is_kept(world: World) -> None:
    async def story() -> None:
        await enable(world)
        await idle(world)
        check = await end_check(world, report(1))
        assert cordons(world) == {"GPU-1": "verify: memory: 1 word of memory changed"}
        (told,) = await messages(world, Reason.GPU_CHECKED)
        assert told == "verified 2 GPUs at level 1: fail; GPU 1 fail: memory: 1 word of memory changed"
        await world.reboot()
        kept = world.services.gpu_checks.latest["GPU-1"]
        assert (kept.outcome, kept.note, kept.workload) == ("fail", "memory: 1 word of memory changed", check.id)
        await world.pass_time(25 * HOUR)
        await idle(world)  # the cordoned GPU is not checked again
        (program,) = world.agent.running()
        assert [share.gpu_uuid for share in program.spec.gpus] == ["GPU-0"]

    world.do(story())


def test_gpus_in_use_are_not_checked(world: World) -> None:
    async def story() -> None:
        await enable(world)
        await world.submit(gpus={"count": 1, "fraction": 0.5})
        await idle(world)
        (program,) = [each for each in world.agent.running() if each.spec.argv[0] != "work"]
        assert [share.gpu_uuid for share in program.spec.gpus] == ["GPU-1"]

    world.do(story())


@pytest.mark.parametrize("wait", [None, 0.0], ids=["waits", "does not wait"])
def test_work_gets_the_gpus_of_a_check_at_once(world: World, wait: float | None) -> None:
    async def story() -> None:
        world.agent.polite = False  # a grace period would last until time passes
        await enable(world)
        await idle(world)
        (check,) = checks(world)
        work = await world.submit(gpus={"count": 2}, **({} if wait is None else {"wait": wait}))
        assert world.is_running(work)  # no time has passed
        ended = await world.get(check.id)
        assert (ended.state, ended.stop_reason) == (WorkloadState.STOPPED, Reason.PREEMPTED)
        assert world.services.gpu_checks.latest == {}
        world.agent.polite = True
        await world.end(work)
        await idle(world)
        assert len(checks(world)) == 1  # it is repeated
        await world.check_at_rest()

    world.do(story())


def test_nobody_is_evicted_for_work_that_can_have_the_gpu_of_a_check(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("mine", quota_permille=1000))
        running = await world.submit(gpus={"count": 1})
        await enable(world)
        await idle(world)
        assert len(checks(world)) == 1
        work = await world.submit(project="mine", gpus={"count": 1})
        assert world.is_running(work)
        assert world.is_running(running)
        assert "PREEMPTED" not in await world.reasons(running.id)

    world.do(story())


def test_check_without_a_report_is_not_repeated_at_once(world: World) -> None:
    async def story() -> None:
        await enable(world)
        await idle(world)
        await end_check(world, b"Traceback\n")
        await idle(world)
        assert (checks(world), world.services.gpu_checks.latest, cordons(world)) == ([], {}, {})
        await idle(world)
        assert len(checks(world)) == 1

    world.do(story())


def test_check_that_is_refused_is_tried_again_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        tried = []
        submission = world.services.workloads.submission
        prepare = submission.prepare

        async def count(*words: Any) -> Any:
            tried.append(words)
            return await prepare(*words)

        monkeypatch.setattr(submission, "prepare", count)
        await world.services.access.create_project(ADMIN, Project(PROJECT, limit_permille=1000))
        await enable(world)
        await idle(world)
        for _ in range(5):
            await world.pass_time(1.1)
        assert (checks(world), len(tried)) == ([], 1)
        await world.services.access.change_project(ADMIN, PROJECT, {"limit_permille": None})
        await idle(world)
        await idle(world)
        assert (len(checks(world)), len(tried)) == (1, 2)

    world.do(story())


def test_check_of_a_member_with_the_same_labels_changes_nothing(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project(PROJECT))
        labels = {LABEL: NODE, IDLE_LABEL: NODE}
        made = await world.submit(ANN, project=PROJECT, labels=labels, gpus={"count": 1})
        world.agent.output[world.program(made)] = report(0, 1)
        await world.end(made)
        await world.pass_time(1.1)
        assert (world.services.gpu_checks.latest, cordons(world)) == ({}, {})

    world.do(story())


def test_check_of_an_administrator_is_recorded_but_the_command_cordons(world: World) -> None:
    async def story() -> None:
        await world.services.access.actor_for_uid(0)
        await world.services.access.create_project(ADMIN, Project(PROJECT))
        made = await world.submit(ADMIN, project=PROJECT, labels={LABEL: NODE}, gpus={"count": 2})
        world.agent.output[world.program(made)] = report(0)
        await world.end(made)
        await world.pass_time(1.1)
        outcomes = {uuid: each.outcome for uuid, each in world.services.gpu_checks.latest.items()}
        assert (outcomes, cordons(world)) == ({"GPU-0": "fail", "GPU-1": "ok"}, {})

    world.do(story())


def test_rate_below_that_of_other_gpus_of_the_model_is_suspect(world: World) -> None:
    async def story() -> None:
        await enable(world)
        await idle(world)
        await end_check(world, report(gpus=4, rates=(100.0, 101.0, 99.0, 60.0)))
        latest = world.services.gpu_checks.latest
        assert [latest[f"GPU-{index}"].outcome for index in range(4)] == ["ok", "ok", "ok", "suspect"]
        assert "60 % of the median of this model" in latest["GPU-3"].note
        assert cordons(world) == {}

    world.do(story())
