"""Queueing: wait limits, order, quotas, dependencies, parallelism, retries."""

from __future__ import annotations

import asyncio

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Project
from gpupool.domain.work.program.supervision import ExitReason
from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.scheduling.explain.wait_reason import WaitCode

WHOLE_BOTH = {"gpus": {"count": 2}}
QUEUED, RUNNING = WorkloadState.QUEUED, WorkloadState.RUNNING
SUCCEEDED, FAILED, STOPPED = WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED


def test_program_runs_and_its_gpus_are_freed(world: World) -> None:
    async def story() -> None:
        first = await world.submit(gpus={"count": 2})
        assert first.state is RUNNING
        second = await world.submit(gpus={"fraction": 0.5})
        assert second.state is QUEUED
        await world.end(first)
        assert (await world.state(first.id), await world.state(second.id)) == (SUCCEEDED, RUNNING)
        await world.end(second, code=3)
        await world.check_at_rest()

    world.do(story())


def test_earlier_submission_starts_first(world: World) -> None:
    async def story() -> None:
        running = await world.submit(**WHOLE_BOTH)
        waiting = []
        for _ in range(4):
            await world.pass_time(1)
            waiting.append(await world.submit(**WHOLE_BOTH))
        ended = running
        for following in waiting:
            await world.end(ended)
            assert world.is_running(following)
            ended = following

    world.do(story())


def test_queue_time_limit_stops_waiting_workload(world: World) -> None:
    async def story() -> None:
        await world.submit(**WHOLE_BOTH)
        late = await world.submit(wait=30)
        await world.pass_time(29)
        assert await world.state(late.id) is QUEUED
        await world.pass_time(2)
        assert await world.state(late.id) is FAILED
        (row,) = await world.replicas(late.id)
        assert row.reason is Reason.WAIT_EXPIRED
        await world.check_at_rest()

    world.do(story())


def test_queue_time_limit_does_not_affect_started_workload(world: World) -> None:
    async def story() -> None:
        quick = await world.submit(wait=5)
        await world.pass_time(60)
        assert await world.state(quick.id) is RUNNING

    world.do(story())


def test_zero_wait_starts_or_fails_at_once(world: World) -> None:
    async def story() -> None:
        lucky = await world.submit(wait=0, **WHOLE_BOTH)
        unlucky = await world.submit(wait=0)
        assert (lucky.state, unlucky.state) == (RUNNING, FAILED)

    world.do(story())


def test_zero_wait_applies_despite_full_disk(world: World) -> None:
    async def story() -> None:
        await world.submit(**WHOLE_BOTH)
        unlucky, _ = await world.services.workloads.submit(ANN, parse(wait=0))
        assert world.store is not None
        world.store.refuse = 1
        await world.settle()
        await world.pass_time(2)
        await world.pass_time(2)
        assert await world.state(unlucky.id) is FAILED

    world.do(story())


def test_zero_wait_applies_despite_crash(world: World) -> None:
    async def story() -> None:
        await world.submit(**WHOLE_BOTH)
        assert world.store is not None
        world.store.die = (0, "after")
        await world.attempt(world.services.workloads.submit(ANN, parse(wait=0, name="hasty")))
        await world.reboot()
        await world.pass_time(2)
        assert await world.state("hasty") is FAILED

    world.do(story())


def parse(**body: object) -> object:
    from gpupool.specs.request import parse_request

    return parse_request({"command": ["work"], **body})


def test_workload_is_removed_from_queue_when_its_client_is_gone(world: World) -> None:
    async def story() -> None:
        await world.submit(**WHOLE_BOTH)
        bound = await world.submit(kind="run", client_bound=True)
        wait = asyncio.create_task(
            world.services.workloads.wait(ANN, bound.id, until="started", timeout_s=3600, bound=True)  # type: ignore[arg-type]
        )
        await world.pass_time(60)
        assert await world.state(bound.id) is QUEUED
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        await world.pass_time(10)
        assert await world.state(bound.id) is QUEUED
        await world.pass_time(10)
        assert await world.state(bound.id) is STOPPED
        assert "CLIENT_GONE" in await world.reasons(bound.id)

    world.do(story())


def test_other_user_cannot_send_heartbeats_for_a_client(world: World) -> None:
    async def story() -> None:
        await world.submit(**WHOLE_BOTH)
        bound = await world.submit(kind="run", client_bound=True)
        wait = asyncio.create_task(
            world.services.workloads.wait(BOB, bound.id, until="started", timeout_s=3600, bound=True)  # type: ignore[arg-type]
        )
        await world.pass_time(5)
        await world.pass_time(20)
        assert await world.state(bound.id) is STOPPED
        await asyncio.gather(wait, return_exceptions=True)

    world.do(story())


@pytest.mark.parametrize(
    ("code", "condition", "state", "reason"),
    [
        (0, "success", RUNNING, Reason.STARTED),
        (3, "success", FAILED, Reason.DEPENDENCY_FAILED),
        (3, "any", RUNNING, Reason.STARTED),
        (3, "failure", RUNNING, Reason.STARTED),
        (0, "failure", FAILED, Reason.DEPENDENCY_FAILED),
    ],
)
@pytest.mark.parametrize("when", ["before", "after", "crash"])
def test_dependency_is_applied_by_condition_and_exit_code(
    world: World, code: int, condition: str, state: WorkloadState, reason: Reason, when: str
) -> None:
    async def story() -> None:
        first = await world.submit(name="first", restart="never", gpus={"fraction": 0.1})
        after = [{"workload": "first", "condition": condition}]
        if when == "before":
            await world.end(first, code)
            second = await world.submit(after=after)
        else:
            second = await world.submit(after=after)
            assert second.state is QUEUED
            why = await world.services.workloads.why(ANN, second.id)
            assert why.code == "DEPENDENCY"
            if when == "crash":
                await world.crash()
                world.agent.end(world.program(first), code)
                await world.boot()
            else:
                await world.end(first, code)
        (row,) = await world.replicas(second.id)
        assert (await world.state(second.id), row.reason) == (state, reason)

    world.do(story())


def test_unknown_dependency_is_refused(world: World) -> None:
    world.do(refused(lambda: world.submit(after=["nothing"]), ErrorCode.UNKNOWN_WORKLOAD))


def test_parallelism_limits_running_and_completions_limit_successes(world: World) -> None:
    async def story() -> None:
        sweep = await world.submit(
            command=["train", "--lr={lr}"],
            gpus={"fraction": 0.1},
            parallelism=2,
            sweep={"grid": {"lr": [1, 2, 3, 4, 5]}},
        )
        seen = []
        for left in range(5, 0, -1):
            running = world.agent.running()
            assert len(running) == min(2, left)
            seen.append(running[0].spec.argv[1])
            assert running[0].spec.env["GPUPOOL_INDEX"] == running[0].spec.key.split(".")[1]
            world.agent.end(running[0].spec.key)
            await world.settle()
        assert sorted(seen) == [f"--lr={n}" for n in range(1, 6)]
        assert await world.state(sweep.id) is SUCCEEDED
        await world.check_at_rest()

    world.do(story())


def test_retried_replica_backs_off_longer_and_then_fails(world: World) -> None:
    async def story() -> None:
        job = await world.submit(backoff_limit=2)
        for delay in (2, 4):
            await world.end(job, 1)
            assert await world.state(job.id) is QUEUED
            await world.pass_time(delay - 0.5)
            if delay > 2:
                assert not world.is_running(job)
            await world.pass_time(2)
            assert world.is_running(job)
        await world.end(job, 1)
        assert await world.state(job.id) is FAILED
        assert [r.attempt for r in await world.replicas(job.id)] == [3]

    world.do(story())


def test_restart_policy_always_retries_until_stopped(world: World) -> None:
    async def story() -> None:
        job = await world.submit(kind="interactive", restart="always")
        for _ in range(3):
            await world.end(job, 0)
            await world.pass_time(3)
            assert world.is_running(job)
        await world.services.workloads.stop(ANN, job.id)
        await world.settle()
        assert await world.state(job.id) is STOPPED

    world.do(story())


def test_replica_with_lost_shepherd_is_retried(world: World) -> None:
    async def story() -> None:
        job = await world.submit(restart="on-failure", backoff_limit=1)
        world.agent.end(world.program(job), None, 9, ExitReason.SHEPHERD_LOST)
        await world.settle()
        assert world.is_running(job)
        (row,) = await world.replicas(job.id)
        assert (row.attempt, row.failures, row.interruptions) == (2, 0, 1)

    world.do(story())


def test_suspended_work_waits_until_resumed(world: World) -> None:
    async def story() -> None:
        job = await world.submit(**WHOLE_BOTH)
        waiting = await world.submit(**WHOLE_BOTH)
        await world.services.workloads.suspend(ANN, job.id)
        await world.services.workloads.suspend(ANN, waiting.id)
        await world.settle()
        await world.pass_time(100)
        for each in (job, waiting):
            assert await world.state(each.id) is WorkloadState.SUSPENDED
            assert not world.is_running(each)
            why = await world.services.workloads.why(ANN, each.id)
            assert why.code == "SUSPENDED"
        await world.reboot()
        assert not world.agent.running()
        await world.services.workloads.resume(ANN, job.id)
        await world.settle()
        assert world.is_running(job)
        await refused(lambda: world.services.workloads.resume(ANN, job.id), ErrorCode.WRONG_STATE)
        await world.services.workloads.stop(ANN, waiting.id)
        assert await world.state(waiting.id) is STOPPED

    world.do(story())


def test_quota_limits_protected_work_and_training_may_exceed_it(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", quota_permille=1000))
        held = await world.submit(kind="interactive", project="red", gpus={"fraction": 0.6})
        over = await world.submit(kind="interactive", project="red", gpus={"fraction": 0.6})
        train = await world.submit(project="red", gpus={"fraction": 0.6})
        assert (held.state, over.state, train.state) == (RUNNING, QUEUED, RUNNING)
        why = await world.services.workloads.why(ANN, over.id)
        assert "quota" in why.sentence.lower()
        await refused(lambda: world.submit(kind="interactive", project="red", **WHOLE_BOTH), ErrorCode.OVER_LIMIT)

    world.do(story())


def test_training_over_quota_is_reclaimed_by_quota_owner(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", quota_permille=0))
        await world.services.access.create_project(ADMIN, Project("blue", quota_permille=2000))
        guest = await world.submit(project="red", **WHOLE_BOTH)
        owner = await world.submit(BOB, kind="interactive", project="blue", **WHOLE_BOTH)
        await world.pass_time(30)
        assert world.is_running(guest), "nobody is evicted in the first minute"
        await world.pass_time(40)
        assert await world.state(owner.id) is RUNNING
        assert await world.state(guest.id) is QUEUED
        (row,) = await world.replicas(guest.id)
        assert (row.reason, row.interruptions, row.failures) == (Reason.PREEMPTED, 1, 0)
        await world.end(owner)
        assert world.is_running(guest), "and comes back when the owner has gone"
        await world.end(guest)
        await world.check_at_rest()

    world.do(story())


def test_min_runtime_grows_with_evictions_without_quota_claim(world: World) -> None:
    async def story() -> None:
        await world.services.policy.change(ADMIN, {"unsaved_after_s": 600.0})
        await world.services.access.create_project(ADMIN, Project("red"))
        await world.services.access.create_project(ADMIN, Project("blue"))
        jobs = [await world.submit(project="red", gpus={"count": 1}) for _ in range(2)]
        await world.pass_time(70)
        rival = await world.submit(BOB, project="blue", gpus={"count": 1})
        await world.pass_time(20)
        (victim,) = [job for job in jobs if not world.is_running(job)]
        await world.end(rival)
        assert world.is_running(victim)
        await world.pass_time(70)
        rival = await world.submit(BOB, project="blue", gpus={"count": 1})
        await world.pass_time(20)
        assert world.is_running(rival)
        assert world.is_running(victim), "started last, but it is the other's time to go"
        for job in (rival, *jobs):
            await world.end(job)
        await world.check_at_rest()

    world.do(story())


def test_protected_work_is_never_evicted(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", quota_permille=2000))
        await world.services.access.create_project(ADMIN, Project("blue", quota_permille=2000))
        session = await world.submit(kind="interactive", project="red", **WHOLE_BOTH)
        await world.submit(BOB, kind="interactive", project="blue", priority=1000, **WHOLE_BOTH)
        for _ in range(5):
            await world.pass_time(400)
        assert world.is_running(session)

    world.do(story())


def test_user_limit_applies_to_all_projects(world: World) -> None:
    async def story() -> None:
        await world.services.access.put_user(ADMIN, "ann", {"gpu_limit_permille": 500})
        first = await world.submit(gpus={"fraction": 0.4})
        second = await world.submit(gpus={"fraction": 0.4})
        others = await world.submit(BOB, gpus={"fraction": 0.4})
        assert (first.state, second.state, others.state) == (RUNNING, QUEUED, RUNNING)
        await refused(lambda: world.submit(gpus={"fraction": 0.6}), ErrorCode.OVER_LIMIT)
        await world.services.access.put_user(ADMIN, "ann", {"gpu_limit_permille": None})
        await world.settle()
        assert world.is_running(second)

    world.do(story())


def test_higher_priority_is_first_within_a_project(world: World) -> None:
    async def story() -> None:
        running = await world.submit(kind="interactive", **WHOLE_BOTH)
        plain = await world.submit(**WHOLE_BOTH)
        urgent = await world.submit(priority="high", **WHOLE_BOTH)
        await world.end(running)
        assert (await world.state(plain.id), await world.state(urgent.id)) == (QUEUED, RUNNING)

    world.do(story())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"gpus": {"count": 3}}, ErrorCode.IMPOSSIBLE_REQUEST),
        ({"gpus": {"memory_mib": 99_000}}, ErrorCode.IMPOSSIBLE_REQUEST),
        ({"gpus": {"models": ["h100"]}}, ErrorCode.UNKNOWN_MODEL),
        ({"project": "nobody"}, ErrorCode.UNKNOWN_PROJECT),
        ({"cpus": 1000}, ErrorCode.IMPOSSIBLE_REQUEST),
        ({"kind": "exec", "on": "nothing"}, ErrorCode.UNKNOWN_WORKLOAD),
    ],
)
def test_request_that_can_never_start_is_refused_and_not_stored(
    world: World, body: dict[str, object], code: ErrorCode
) -> None:
    world.do(refused(lambda: world.submit(**body), code))
    assert world.rows("select count(*) from workloads") == [(0,)]


def test_why_shows_position_in_queue(world: World) -> None:
    async def story() -> None:
        await world.submit(max_time=600, **WHOLE_BOTH)
        await world.submit(**WHOLE_BOTH)
        third = await world.submit(**WHOLE_BOTH)
        why = await world.services.workloads.why(ANN, third.id)
        assert why.position == 2
        assert why.sentence

    world.do(story())


def test_why_explains_one_replica(world: World) -> None:
    async def story() -> None:
        why = world.services.workloads.why
        job = await world.submit(completions=3, **WHOLE_BOTH)
        assert (await why(ANN, job.id, 0)).code is WaitCode.NOT_WAITING
        first, second = await why(ANN, job.id, 1), await why(ANN, job.id, 2)
        assert (first.position, second.position) == (1, 2)
        assert (await why(ANN, job.id)).position == 1
        await refused(lambda: why(ANN, job.id, 9), ErrorCode.NOT_FOUND)

    world.do(story())


def test_single_replica_can_be_stopped(world: World) -> None:
    async def story() -> None:
        job = await world.submit(completions=3, gpus={"fraction": 0.1})
        await world.services.workloads.stop(ANN, job.id, index=1)
        await world.settle()
        assert [r.state for r in await world.replicas(job.id)] == [
            ReplicaState.RUNNING,
            ReplicaState.STOPPED,
            ReplicaState.RUNNING,
        ]
        await refused(lambda: world.services.workloads.stop(ANN, job.id, index=9), ErrorCode.NOT_FOUND)

    world.do(story())


def test_work_without_gpu_uses_cpus_and_no_quota(world: World) -> None:
    async def story() -> None:
        await world.submit(ANN, name="whole", gpus={"count": 2})
        plain = await world.submit(ANN, name="plain", gpus={"count": 0})
        assert await world.state(plain.id) is WorkloadState.RUNNING
        lease = (await world.services.workloads.leases_of(plain))[0]
        assert (lease.shares, lease.cpus) == ((), 1.0)
        await world.end(plain)
        await world.check_at_rest()
        world.check_counts()

    world.do(story())
