"""Programs that the database does not know: adopted with their GPUs, or not touched, with a reason."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pool_world import ANN, World

from gpupool.domain.ids import split_attempt_key
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.domain.work.workload import ReplicaState, WorkloadState
from gpupool.store.database_copy import write_copy

RUNNING = WorkloadState.RUNNING


async def lose_database(world: World) -> None:
    """Kill the control plane, and start one with an empty database that has the id of the old pool."""
    assert world.store is not None
    pool_id = world.store.pool_id
    await world.crash()
    for name in ("pool.db", "pool.db-wal", "pool.db-shm"):
        world.database.with_name(name).unlink(missing_ok=True)
    world.pool_id = pool_id
    await world.boot()


async def go_back(world: World, copy: Path) -> None:
    """Kill the control plane, and start one with an older copy of its database, restored manually."""
    await world.crash()
    for name in ("pool.db-wal", "pool.db-shm"):
        world.database.with_name(name).unlink(missing_ok=True)
    shutil.copyfile(copy, world.database)
    await world.boot()


async def copied(world: World, copy: Path) -> Path:
    assert world.store is not None
    await world.store._database.read(partial(write_copy, path=copy))
    return copy


def change_spec(world: World, key: str, **changes: object) -> ProcessSpec:
    program = world.agent.programs[key]
    program.spec = replace(program.spec, **changes)  # type: ignore[arg-type]
    return program.spec


def cordon(world: World) -> tuple[NodeState, str]:
    (node,) = world.now._nodes.all()
    return node.state, node.cordon_reason


def test_new_database_adopts_job_with_lease_and_end(world: World) -> None:
    async def story() -> None:
        job = await world.submit(name="night", restart="never", gpus={"fraction": 0.4}, priority=7)
        await lose_database(world)
        adopted = await world.get("night")
        assert (adopted.id, adopted.state, adopted.priority, adopted.user) == (job.id, RUNNING, 7, "ann")
        assert adopted.program == job.program
        (row,) = await world.replicas("night")
        (lease,) = world.now.engine.mirror.leases.values()
        assert (row.state, row.lease, lease.shares) == (
            ReplicaState.RUNNING,
            lease.epoch,
            world.agent.programs[row.key].spec.gpus,
        )
        assert "ADOPTED" in await world.reasons("night")
        later = await world.submit(gpus={"fraction": 0.7})
        (its,) = await world.replicas(later.id)
        assert its.lease is not None
        assert its.lease > lease.epoch
        world.check_always()
        await world.end(adopted, 3)
        (row,) = await world.replicas("night")
        assert (row.state, row.exit_status) == (ReplicaState.FAILED, 3)
        await world.check_at_rest()

    world.do(story())


def test_adopted_job_follows_its_restart_policy(world: World) -> None:
    async def story() -> None:
        await world.submit(name="tries", restart="on-failure", backoff_limit=3)
        await lose_database(world)
        await world.end(await world.get("tries"), 1)
        await world.pass_time(5)
        (row,) = await world.replicas("tries")
        assert (row.attempt, row.state) == (2, ReplicaState.RUNNING)
        await world.check_at_rest()

    world.do(story())


def test_sweep_members_that_do_not_run_are_not_restarted(world: World) -> None:
    async def story() -> None:
        job = await world.submit(
            name="sweep", sweep={"grid": {"lr": [1, 2, 3]}}, parallelism=2, command=["work", "{lr}"], restart="never"
        )
        await world.end(job, 0, index=0)
        assert sorted(split_attempt_key(p.spec.key)[1] for p in world.agent.running()) == [1, 2]
        await lose_database(world)
        rows = await world.replicas("sweep")
        assert [row.state for row in rows] == [ReplicaState.STOPPED, ReplicaState.RUNNING, ReplicaState.RUNNING]
        assert [p["lr"] for p in (await world.get("sweep")).parameters[1:]] == [2, 3]
        assert "no record of its end" in rows[0].message
        assert len(world.agent.starts) == 3
        await world.check_at_rest()

    world.do(story())


def test_program_on_a_lease_restores_the_lease(world: World) -> None:
    async def story() -> None:
        lease = await world.submit(kind="lease", name="held", gpus={"fraction": 0.5})
        await world.submit(kind="exec", name="on-it", on="held")
        await lose_database(world)
        assert await world.state("held") is RUNNING
        assert await world.state("on-it") is RUNNING
        await world.end(await world.get("on-it"))
        assert await world.state("held") is RUNNING
        await world.services.workloads.stop(ANN, lease.id)
        await world.settle()
        assert not world.now.engine.mirror.leases
        await world.check_at_rest()

    world.do(story())


def test_older_copy_adopts_newer_attempts_and_started_workloads(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        tries = await world.submit(name="tries", restart="on-failure", backoff_limit=3)
        first = await world.submit(name="first", gpus={"count": 1})
        waits = await world.submit(name="waits", gpus={"count": 2})
        assert waits.state is WorkloadState.QUEUED
        copy = await copied(world, tmp_path / "copy.db")
        await world.end(tries, 1)
        await world.end(first)
        await world.services.workloads.stop(ANN, tries.id)
        await world.settle()
        assert world.is_running(waits)
        await world.end(waits, 1)
        await world.pass_time(10)
        assert world.program(waits).endswith(".2")
        starts = dict(world.agent.starts)
        await go_back(world, copy)
        assert await world.state("waits") is RUNNING
        (row,) = await world.replicas("waits")
        assert row.attempt == 2
        assert {key: n for key, n in world.agent.starts.items() if key.startswith(waits.id)} == {
            key: n for key, n in starts.items() if key.startswith(waits.id)
        }
        world.check_always()

    world.do(story())


@pytest.mark.parametrize("how", ["no record", "another pool", "no such GPU"])
def test_program_that_cannot_be_adopted_runs_on_and_blocks_its_gpus(world: World, how: str) -> None:
    async def story() -> None:
        job = await world.submit(name="odd")
        key = world.program(job)
        record = world.agent.programs[key].spec.record
        (share,) = world.agent.programs[key].spec.gpus
        change_spec(
            world,
            key,
            **{
                "no record": {"record": {}},
                "another pool": {"record": {**record, "pool_id": "0" * 32}},
                "no such GPU": {"gpus": (replace(share, gpu_uuid="GPU-9"),)},
            }[how],
        )
        await lose_database(world)
        assert world.agent.programs[key].running
        state, reason = cordon(world)
        assert state is NodeState.CORDONED
        assert key in reason
        waiting = await world.submit(name="waiting")
        assert waiting.state is WorkloadState.QUEUED
        world.agent.end(key)
        world.now._observer._reconciler.again("here")
        await world.settle()
        assert cordon(world) == (NodeState.UP, "")
        assert world.is_running(waiting)

    world.do(story())


def test_gpu_granted_meanwhile_is_not_granted_twice(world: World) -> None:
    async def story() -> None:
        job = await world.submit(name="old", gpus={"count": 1})
        key = world.program(job)
        program = world.agent.programs.pop(key)
        await lose_database(world)
        for name in ("new1", "new2"):
            await world.submit(name=name, gpus={"fraction": 0.6})
        world.agent.programs[key] = program
        world.agent.hiccup()
        await asyncio.sleep(0)
        await world.settle()
        assert program.running
        assert "belongs to new" in cordon(world)[1]
        assert await world.state("new1") is RUNNING

    world.do(story())


def test_restored_copy_grants_no_epoch_that_a_node_has_seen(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        first = await world.submit(name="first")
        copy = await copied(world, tmp_path / "copy.db")
        for _ in range(5):
            await world.end(await world.submit())
        seen = world.agent.last_epoch
        await go_back(world, copy)
        await world.submit(name="next")
        (row,) = await world.replicas("next")
        assert row.lease is not None
        assert row.lease > seen
        assert await world.state(first.id) is RUNNING

    world.do(story())
