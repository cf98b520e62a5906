"""Lost messages, full disks, crashes between a commit and its effects, repeated and simultaneous requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.work.program.supervision import ExitReason
from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.services.ports.store import ChangeSet
from gpupool.specs.request import WorkloadRequest, parse_request

RUNNING, QUEUED = WorkloadState.RUNNING, WorkloadState.QUEUED


def request(**body: object) -> WorkloadRequest:
    return parse_request({"command": ["work"], **body})


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_crash_around_any_commit_of_a_start_loses_nothing(world: World, moment: str, commits: int) -> None:
    async def story() -> None:
        assert world.store is not None
        world.store.die = (commits, moment)
        asked = request(request_id="r1", name="job")
        await world.attempt(world.services.workloads.submit(ANN, asked))
        await world.settle()
        await world.reboot()
        job, new = await world.services.workloads.submit(ANN, asked)
        assert new is (commits == 0 and moment == "before"), "what was answered is there, what was not is not"
        await world.settle()
        world.check_always()
        await world.end(job)
        assert await world.state("job") is WorkloadState.SUCCEEDED
        world.check_counts()
        await world.check_at_rest()
        assert [r.attempt for r in await world.replicas("job")] == [1]

    world.do(story())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_crash_around_commit_of_an_end_counts_it_once(world: World, moment: str) -> None:
    async def story() -> None:
        assert world.store is not None
        job = await world.submit(name="job", restart="on-failure", gpus={"count": 2})
        waiting = await world.submit(gpus={"count": 2})
        world.store.die = (0, moment)
        world.agent.end(world.program(job))
        await world.settle()
        await world.reboot()
        assert await world.state("job") is WorkloadState.SUCCEEDED
        assert world.is_running(waiting)
        world.check_always()
        world.check_counts()
        await world.check_at_rest()

    world.do(story())


def test_stored_but_unsent_start_is_sent_later(world: World) -> None:
    async def story() -> None:
        world.agent.losses = ["before"]
        job = await world.submit()
        assert world.is_running(job)
        world.agent.losses = ["after"]
        again = await world.submit()
        assert world.is_running(again)
        assert all(count == 1 for count in world.agent.starts.values())
        await world.check_at_rest()

    world.do(story())


def test_lost_stop_is_sent_again(world: World) -> None:
    async def story() -> None:
        job = await world.submit()
        world.agent.losses = ["before"]
        await world.services.workloads.stop(ANN, job.id)
        await world.settle()
        assert await world.state(job.id) is WorkloadState.STOPPED

    world.do(story())


def test_stop_before_the_answer_to_a_start_ends_the_program(world: World) -> None:
    async def story() -> None:
        world.agent.holding = asyncio.Event()
        job = await world.submit()
        await world.services.workloads.stop(ANN, job.id)
        await world.settle()
        world.agent.holding.set()
        world.agent.holding = None
        await world.settle()
        assert await world.state(job.id) is WorkloadState.STOPPED
        assert not world.agent.running()
        await world.check_at_rest()

    world.do(story())


def test_crash_with_late_answer_of_agent_starts_nothing_twice(world: World) -> None:
    async def story() -> None:
        world.agent.holding = asyncio.Event()
        job = await world.submit()
        await world.crash()
        world.agent.holding = None
        await world.boot()
        assert world.is_running(job)
        world.check_always()
        await world.check_at_rest()

    world.do(story())


def test_end_without_control_plane_is_found_at_next_start(world: World) -> None:
    async def story() -> None:
        job = await world.submit()
        key = world.program(job)
        await world.crash()
        world.agent.end(key, 7)
        await world.boot()
        (row,) = await world.replicas(job.id)
        assert row.exit_status == 7
        assert key in world.agent.forgotten or world.agent.programs == {}

    world.do(story())


def test_program_that_ended_unnoticed_has_a_start_time(world: World) -> None:
    async def story() -> None:
        world.agent.holding = asyncio.Event()
        job = await world.submit()
        key = world.agent.running()[0].spec.key
        await world.crash()
        world.agent.end(key, 0)
        world.agent.holding = None
        await world.boot()
        ended = await world.get(job.id)
        assert ended.state is WorkloadState.SUCCEEDED
        assert ended.started_at is not None
        assert (await world.reasons(job.id))[-2:] == ["STARTED", "EXITED"]

    world.do(story())


def test_unreachable_node_keeps_running_work_and_gets_no_new_work(world: World) -> None:
    async def story() -> None:
        job = await world.submit()
        world.agent.go(up=False)
        await world.settle()
        waiting = await world.submit(gpus={"fraction": 0.1})
        assert (await world.state(job.id), waiting.state) == (RUNNING, QUEUED)
        why = await world.services.workloads.why(ANN, waiting.id)
        assert why.sentence
        stopped = await world.services.workloads.stop(ANN, job.id)
        assert stopped.state is WorkloadState.STOPPING
        await world.pass_time(200)
        assert await world.state(job.id) is WorkloadState.STOPPING, "nobody knows whether it still runs"
        world.agent.go(up=True)
        await world.settle()
        assert await world.state(job.id) is WorkloadState.STOPPED
        assert world.is_running(waiting)
        await world.check_at_rest()

    world.do(story())


def test_restarted_machine_reruns_training_and_fails_sessions(world: World) -> None:
    async def story() -> None:
        job, session = await world.submit(), await world.submit(kind="interactive")
        world.agent.reboot()
        await world.settle()
        assert world.is_running(job)
        assert await world.state(session.id) is WorkloadState.FAILED
        (row,) = await world.replicas(session.id)
        assert row.reason is Reason.NODE_RESTARTED

    world.do(story())


def test_program_unknown_to_node_is_treated_as_lost(world: World) -> None:
    async def story() -> None:
        job = await world.submit(restart="never")
        world.agent.programs.clear()
        world.agent.hiccup()
        await world.settle()
        assert await world.state(job.id) is WorkloadState.FAILED

    world.do(story())


def test_program_of_ended_workload_is_stopped(world: World) -> None:
    async def story() -> None:
        over = await world.submit()
        spec = world.agent.running()[0].spec
        await world.end(over)
        job = await world.submit()
        world.agent.start(replace(spec, key=f"{over.id}.1.1"))
        await world.settle()
        assert [p.spec.key for p in world.agent.running()] == [world.program(job)]

    world.do(story())


def test_failed_start_keeps_message_of_node(world: World) -> None:
    async def story() -> None:
        world.agent.fail_starts = True
        job = await world.submit()
        (row,) = await world.replicas(job.id)
        assert (row.state, row.reason, row.message) == (ReplicaState.FAILED, Reason.START_FAILED, "no such program")
        await world.check_at_rest()

    world.do(story())


def test_full_disk_stops_only_writes(world: World) -> None:
    async def story() -> None:
        assert world.store is not None
        job = await world.submit(name="job", gpus={"count": 2})
        dropped = await world.submit(gpus={"count": 2})
        waiting = await world.submit(gpus={"count": 2})
        world.store.refuse = 1_000_000
        await refused(lambda: world.submit(name="other"), ErrorCode.DATABASE_UNWRITABLE)
        await refused(lambda: world.services.workloads.stop(ANN, dropped.id), ErrorCode.DATABASE_UNWRITABLE)
        assert (await world.get("job")).state is RUNNING, "looking still works"
        world.agent.end(world.program(job))
        await world.settle()
        await world.pass_time(5)
        assert not world.agent.running()
        world.check_always()
        world.store.refuse = 0
        await world.pass_time(3)
        await world.pass_time(3)
        assert await world.state("job") is WorkloadState.SUCCEEDED
        assert await world.state(dropped.id) is WorkloadState.STOPPED, "its stop is recorded once the disk has room"
        assert world.is_running(waiting)
        await refused(lambda: world.get("other"), ErrorCode.UNKNOWN_WORKLOAD)
        await world.check_at_rest()
        world.check_counts()

    world.do(story())


def test_foreign_change_of_database_ends_the_control_plane(world: World) -> None:
    async def story() -> None:
        assert world.store is not None
        job = await world.submit()
        ended = asyncio.create_task(world.now.run(asyncio.Event()))
        await asyncio.sleep(0)
        live = await world.store.load_live()
        row = live.workloads[0]
        await world.store.commit(ChangeSet((replace(row, priority=5, version=row.version + 1),)))
        with pytest.raises(GpupoolError):
            await world.services.workloads.stop(ANN, job.id)
        with pytest.raises(GpupoolError) as caught:
            await ended
        assert caught.value.code is ErrorCode.STALE_WRITE
        await world.reboot()
        assert (await world.get(job.id)).priority == 5
        assert world.is_running(job)
        await world.check_at_rest()

    world.do(story())


def test_repeated_request_creates_one_workload(world: World) -> None:
    async def story() -> None:
        asked = request(request_id="again")
        made = [await world.services.workloads.submit(ANN, asked) for _ in range(2)]
        assert [new for _, new in made] == [True, False]
        assert made[0][0].id == made[1][0].id
        await refused(lambda: world.services.workloads.submit(BOB, asked), ErrorCode.FORBIDDEN)

    world.do(story())


def test_ten_simultaneous_equal_requests_create_one_workload(world: World) -> None:
    async def story() -> None:
        asked = request(request_id="at-once", gpus={"fraction": 0.1})
        made = await asyncio.gather(*(world.services.workloads.submit(ANN, asked) for _ in range(10)))
        assert sum(new for _, new in made) == 1
        assert len({workload.id for workload, _ in made}) == 1
        assert not world.now.engine.broken.done(), "this is no reason to start the control plane again"
        await world.settle()
        assert len(world.agent.running()) == 1

    world.do(story())


def test_name_is_unique_while_its_workload_is_active(world: World) -> None:
    async def story() -> None:
        first = await world.submit(name="night")
        await refused(lambda: world.submit(name="night"), ErrorCode.NAME_TAKEN)
        assert not world.now.engine.broken.done()
        await world.end(first)
        await world.pass_time(1)
        second = await world.submit(name="night")
        assert (await world.get("night")).id == second.id

    world.do(story())


def test_simultaneous_requests_with_one_name_create_one_workload(world: World) -> None:
    async def story() -> None:
        calls = [world.services.workloads.submit(ANN, request(name="night")) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refusals = [r for r in results if isinstance(r, GpupoolError)]
        assert [r.code for r in refusals] == [ErrorCode.NAME_TAKEN] * 4

    world.do(story())


def test_simultaneous_deletes_are_idempotent(world: World) -> None:
    async def story() -> None:
        job = await world.submit()
        await refused(lambda: world.services.workloads.delete(ANN, job.id), ErrorCode.WRONG_STATE)
        await world.end(job)
        calls = [world.services.workloads.delete(ANN, job.id) for _ in range(4)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        codes = {r.code for r in results if isinstance(r, GpupoolError)}
        assert None in results
        assert codes <= {ErrorCode.UNKNOWN_WORKLOAD}
        assert not world.now.engine.broken.done()
        await refused(lambda: world.get(job.id), ErrorCode.UNKNOWN_WORKLOAD)
        assert f"{job.id}.0.1" in world.agent.deleted_logs

    world.do(story())


def test_many_simultaneous_operations_keep_invariants(world: World) -> None:
    async def story() -> None:
        job = await world.submit(gpus={"fraction": 0.2}, completions=3)
        calls = world.services.workloads
        await asyncio.gather(
            *(calls.suspend(ANN, job.id) for _ in range(3)),
            *(calls.stop(ANN, job.id, index=1) for _ in range(3)),
            *(calls.restart(ANN, job.id) for _ in range(3)),
            *(calls.resume(ANN, job.id) for _ in range(3)),
            *(calls.submit(ANN, request(gpus={"fraction": 0.1})) for _ in range(5)),
            return_exceptions=True,
        )
        await world.settle()
        world.check_always()
        assert not world.now.engine.broken.done()
        await calls.stop(ADMIN, job.id)
        await world.settle()
        await world.check_at_rest()

    world.do(story())


def test_program_that_ended_before_its_preemption_is_not_rerun(world: World) -> None:
    async def story() -> None:
        job = await world.submit()
        key = world.program(job)
        world.agent.losses = ["before"]
        world.agent.reachable = False
        await world.services.workloads.suspend(ANN, job.id)
        await world.settle()
        world.agent.end(key, 0)
        world.agent.go(up=True)
        await world.settle()
        assert await world.state(job.id) is WorkloadState.SUCCEEDED
        world.check_counts()

    world.do(story())


def test_pool_answers_with_ten_thousand_waiting_replicas(world: World) -> None:
    async def story() -> None:
        sweep = await world.submit(command=["train"], completions=10_000, parallelism=2, gpus={"fraction": 0.1})
        assert len(world.agent.running()) == 2
        slowest = 0.0
        for _ in range(20):
            world.agent.end(world.agent.running()[0].spec.key)
            began = time.perf_counter()
            other = await world.submit(gpus={"fraction": 0.1})
            slowest = max(slowest, time.perf_counter() - began)
            assert world.is_running(other)
            await world.end(other)
            assert len(world.agent.running()) == 2
        assert slowest < 5.0, "not a timing: thousands of times what it takes"
        counts = world.now.engine.mirror.counts[sweep.id]
        assert (counts[ReplicaState.SUCCEEDED], counts[ReplicaState.PENDING]) == (20, 9978)
        await world.reboot()
        assert len(world.agent.running()) == 2
        await world.services.workloads.stop(ANN, sweep.id)
        await world.settle()
        assert await world.state(sweep.id) is WorkloadState.STOPPED
        await world.check_at_rest()

    world.do(story())


def test_deleted_history_keeps_its_cost(world: World) -> None:
    async def story() -> None:
        job = await world.submit()
        await world.pass_time(100)
        await world.end(job)
        (spent,) = await world.services.accounting.usage(0, world.clock.at)
        assert world.store is not None
        assert await world.store.delete_finished_before(world.clock.at + 1) == [job.id]
        (kept,) = await world.services.accounting.usage(0, world.clock.at)
        assert kept.time.allocated_s == spent.time.allocated_s == pytest.approx(100, abs=2)

    world.do(story())


def test_repeated_losses_count_as_interruptions_and_not_failures(world: World) -> None:
    async def story() -> None:
        job = await world.submit()
        for reason in (ExitReason.SHEPHERD_LOST, ExitReason.NODE_RESTARTED) * 3:
            world.agent.end(world.program(job), None, 9, reason)
            await world.reboot()
        (row,) = await world.replicas(job.id)
        assert (row.attempt, row.interruptions, row.failures) == (7, 6, 0)
        await world.check_at_rest()

    world.do(story())
