"""Rules of projects over real services: node pools, limits on requests, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from pool_world import ADMIN, ANN, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.work.workload import WorkloadState

QUEUED, RUNNING = WorkloadState.QUEUED, WorkloadState.RUNNING


async def project(world: World, name: str = "batch", **rules: Any) -> None:
    await world.services.access.create_project(ADMIN, Project(name, rules=ProjectRules(**rules)))


def test_work_runs_in_node_pools_of_its_project(world: World) -> None:
    async def story() -> None:
        nodes = world.services.nodes
        await nodes.set_labels(ADMIN, "here", {"pool": "old", "rack": "r1"}, ())
        await project(world, node_pools=("new",))
        with pytest.raises(GpupoolError) as caught:
            await world.submit(project="batch")
        assert caught.value.code is ErrorCode.IMPOSSIBLE_REQUEST
        await nodes.set_labels(ADMIN, "here", {"pool": "new"}, ("rack",))
        waiting = await world.submit(project="batch", gpus={"count": 2})
        assert waiting.state is RUNNING
        next_ = await world.submit(project="batch", gpus={"count": 2})
        await world.services.access.change_project(ADMIN, "batch", {"rules": {"node_pools": ("other",)}})
        await world.end(waiting)
        assert await world.state(next_.id) is QUEUED
        await world.services.access.change_project(ADMIN, "batch", {"rules": {"node_pools": ()}})
        await world.settle()
        assert await world.state(next_.id) is RUNNING

    world.do(story())


def test_only_administrators_set_labels_and_labels_survive_restart(world: World) -> None:
    async def story() -> None:
        await refused(lambda: world.services.nodes.set_labels(ANN, "here", {"a": "b"}, ()), ErrorCode.FORBIDDEN)
        await world.services.nodes.set_labels(ADMIN, "here", {"rack": "r1", "old": "x"}, ())
        await world.services.nodes.set_labels(ADMIN, "here", {"rack": "r2"}, ("old", "never"))
        await world.reboot()
        assert (await world.services.nodes.node("here")).labels == {"rack": "r2"}
        many = {f"k{i}": "" for i in range(65)}
        await refused(lambda: world.services.nodes.set_labels(ADMIN, "here", many, ()), ErrorCode.TOO_LARGE)

    world.do(story())


@pytest.mark.parametrize(
    ("rules", "asked", "says"),
    [
        ({"max_time_limit_s": 3600.0}, {"max_time": "2h"}, "1h00m"),
        ({"max_gpus_permille": 1000}, {"gpus": {"count": 2}}, "1.00"),
        ({"max_gpus_permille": 400}, {"gpus": {"memory_mib": 8000}}, "0.40"),
    ],
)
def test_request_beyond_project_rules_is_refused_with_allowed_values(
    world: World, rules: dict[str, Any], asked: dict[str, Any], says: str
) -> None:
    async def story() -> None:
        await project(world, **rules)
        with pytest.raises(GpupoolError) as caught:
            await world.submit(project="batch", **asked)
        assert caught.value.code is ErrorCode.OVER_LIMIT
        assert says in caught.value.message
        assert "batch" in caught.value.message

    world.do(story())


def test_default_time_limit_of_project_is_filled_in(world: World) -> None:
    async def story() -> None:
        await project(world, max_time_limit_s=3600.0, min_runtime_s=600.0)
        made = await world.submit(project="batch")
        assert made.limits.max_time_s == 3600.0
        running = world.now.engine.feed.scheduler.demand.running[made.id, 0]
        assert running.min_runtime_s == 600.0

    world.do(story())


@pytest.mark.parametrize(
    "rules", [{"windows": ("someday",)}, {"windows": ("nights",) * 17}, {"node_pools": ("",)}, {"min_runtime_s": -1.0}]
)
def test_invalid_rules_are_refused(world: World, rules: dict[str, Any]) -> None:
    async def story() -> None:
        with pytest.raises(GpupoolError):
            await project(world, **rules)

    world.do(story())


def test_work_on_forcibly_removed_node_is_lost(world: World) -> None:
    async def story() -> None:
        training = await world.submit(gpus={"count": 1})
        session = await world.submit(kind="interactive", gpus={"count": 1})
        again = await world.submit(kind="interactive", restart="always", gpus={"count": 0})
        await world.services.nodes.cordon(ADMIN, "here", "", drain=True)
        await world.services.nodes.end_work("here", "here left the pool")
        await world.settle()
        states = [await world.state(work.id) for work in (training, session, again)]
        assert states == [QUEUED, WorkloadState.FAILED, QUEUED]
        rows = [(await world.replicas(work.id))[0] for work in (training, session, again)]
        assert [(row.reason, row.message) for row in rows] == [
            (Reason.PREEMPTED, "here is drained"),
            (Reason.NODE_LOST, "here left the pool"),
            (Reason.NODE_LOST, "here left the pool"),
        ]

    world.do(story())


def test_cordoned_gpu_gets_no_work_and_keeps_its_own(world: World) -> None:
    async def story() -> None:
        nodes = world.services.nodes
        count = len((await nodes.node("here")).report.gpus)
        first = await world.submit(gpus={"count": 1})
        await world.settle()
        lease = world.services.nodes.leases_on("here")[0]
        used = lease.shares[0].gpu_index
        await refused(lambda: nodes.cordon_gpu(ANN, "here", used, ""), ErrorCode.FORBIDDEN)
        await refused(lambda: nodes.cordon_gpu(ADMIN, "here", 77, ""), ErrorCode.NOT_FOUND)
        cordoned = await nodes.cordon_gpu(ADMIN, "here", used, "memory errors")
        assert (cordoned.state, list(cordoned.cordoned_gpus.values())) == (NodeState.UP, ["memory errors"])
        await world.settle()
        assert await world.state(first.id) is RUNNING
        whole_node = await world.submit(gpus={"count": count})
        await world.services.workloads.stop(ADMIN, first.id)
        await world.settle()
        assert await world.state(whole_node.id) is QUEUED
        await nodes.uncordon_gpu(ADMIN, "here", used)
        await world.settle()
        assert await world.state(whole_node.id) is RUNNING

    world.do(story())


def test_drain_requeues_training_and_keeps_other_work(world: World) -> None:
    async def story() -> None:
        training = await world.submit(gpus={"count": 1})
        session = await world.submit(kind="interactive", gpus={"count": 1})
        await refused(lambda: world.services.nodes.cordon(ANN, "here", "", drain=True), ErrorCode.FORBIDDEN)
        foretold = {o.workload.id: o.drained for o in await world.services.nodes.occupants("here")}
        assert foretold == {training.id: True, session.id: False}
        await world.services.nodes.cordon(ADMIN, "here", "new fans", drain=True)
        await world.settle()
        [row] = await world.replicas(training.id)
        assert row.message == "here is drained (new fans)"
        assert (await world.state(training.id), await world.state(session.id)) == (QUEUED, RUNNING)
        await world.services.nodes.uncordon(ADMIN, "here")
        await world.settle()
        assert await world.state(training.id) is RUNNING

    world.do(story())
