"""Rules of projects over real services: node pools, limits on requests, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.nodes.gpu import NodeState, Placement, SpreadRule
from gpupool.domain.people.access import Actor, Project, ProjectRules, Role
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


@pytest.mark.parametrize(
    ("pool", "rule", "asked", "default", "placement"),
    [
        (SpreadRule.ALLOW, None, "spread", Placement.PACK, Placement.SPREAD),
        (SpreadRule.ALLOW, None, None, Placement.SPREAD, None),
        (SpreadRule.ALLOW, SpreadRule.REFUSE, "spread", Placement.PACK, "refused"),
        (SpreadRule.ALLOW, SpreadRule.REFUSE, "pack", Placement.PACK, Placement.PACK),
        (SpreadRule.ALLOW, SpreadRule.REFUSE, None, Placement.PACK, None),
        (SpreadRule.ALLOW, SpreadRule.REFUSE, None, Placement.SPREAD, Placement.PACK),
        (SpreadRule.REFUSE, None, "spread", Placement.PACK, "refused"),
        (SpreadRule.REFUSE, None, None, Placement.SPREAD, Placement.PACK),
        (SpreadRule.REFUSE, SpreadRule.ALLOW, "spread", Placement.PACK, Placement.SPREAD),
        (SpreadRule.REFUSE, SpreadRule.REFUSE, "spread", Placement.PACK, "refused"),
    ],
)
def test_spread_is_refused_by_the_rule_of_the_project_else_of_the_pool(
    world: World,
    pool: SpreadRule,
    rule: SpreadRule | None,
    asked: str | None,
    default: Placement,
    placement: Placement | str | None,
) -> None:
    async def story() -> None:
        await world.services.policy.change(ADMIN, {"spread": pool, "placement": default})
        await project(world, spread=rule)
        gpus = {"fraction": 0.5} | ({"placement": asked} if asked else {})
        role = {"name": "worker", "replicas": 2, "gpus": gpus}
        for body in ({"gpus": gpus}, {"roles": [role]}):
            if placement == "refused":
                with pytest.raises(GpupoolError) as caught:
                    await world.submit(project="batch", **body)
                assert caught.value.code is ErrorCode.FORBIDDEN
                assert "spread is not allowed in the project batch" in caught.value.message
                assert "gpupool project set batch --spread allow" in caught.value.hint
            else:
                made = await world.submit(project="batch", **body)
                assert made.gpus_of(0).placement is placement

    world.do(story())


def test_rule_of_spread_survives_a_restart_and_can_be_removed(world: World) -> None:
    async def story() -> None:
        await project(world, spread=SpreadRule.REFUSE)
        await world.reboot()
        spread = {"fraction": 0.5, "placement": "spread"}
        with pytest.raises(GpupoolError):
            await world.submit(project="batch", gpus=spread)
        await world.services.access.change_project(ADMIN, "batch", {"rules": {"spread": None}})
        assert (await world.submit(project="batch", gpus=spread)).gpus.placement is Placement.SPREAD

    world.do(story())


def test_user_limit_of_a_project_bounds_each_of_its_users(world: World) -> None:
    async def story() -> None:
        await world.services.access.create_project(ADMIN, Project("red", user_limit_permille=500))
        half = {"gpus": {"fraction": 0.4}, "project": "red"}
        first, second, others = (
            await world.submit(**half),
            await world.submit(**half),
            await world.submit(BOB, **half),
        )
        assert (first.state, second.state, others.state) == (RUNNING, QUEUED, RUNNING)
        assert (await world.submit(gpus={"fraction": 0.4})).state is RUNNING, "it is a rule of this project only"
        found = await world.services.workloads.why(ADMIN, second.id)
        assert "0.5" in found.sentence
        with pytest.raises(GpupoolError) as caught:
            await world.submit(project="red", gpus={"fraction": 0.6})
        assert caught.value.code is ErrorCode.OVER_LIMIT
        assert "the limit per user in red is 0.50" in caught.value.message
        await world.services.access.change_project(ADMIN, "red", {"user_limit_permille": None})
        await world.settle()
        assert world.is_running(second)

    world.do(story())


def test_quota_of_a_user_is_restored_from_training_of_others(world: World) -> None:
    async def story() -> None:
        await project(world, min_runtime_s=1.0)
        training = {"project": "batch", "kind": "training", "gpus": {"count": 1}, "checkpoint": 0}
        first, second = await world.submit(**training), await world.submit(**training)
        await world.services.access.change_project(ADMIN, "batch", {"rules": {"user_quotas": (("bob", 2000),)}})
        await world.reboot()
        await world.pass_time(5)
        mine = [await world.submit(BOB, **training) for _ in range(2)]
        await world.pass_time(30)
        assert all(world.is_running(each) for each in mine)
        assert not world.is_running(first)
        assert not world.is_running(second)
        third = await world.submit(**training)
        await world.pass_time(300)
        assert all(world.is_running(each) for each in mine), "a user within its quota loses nothing"
        assert await world.state(third.id) is QUEUED

    world.do(story())


@pytest.mark.parametrize(
    ("changes", "managed"),
    [
        ({"rules": {"max_priority": 100}}, True),
        ({"rules": {"user_weights": (("ann", 2.0),), "user_quotas": (("ann", 1000),), "user_gpu_hours": 5.0}}, True),
        ({"note": "mine", "rules": {"max_priority": -5}}, True),
        ({"rules": {"gpu_hours": 500.0}}, False),
        ({"rules": {"max_queued": None}}, False),
        ({"rules": {"max_priority": 100, "node_pools": ()}}, False),
        ({"quota_permille": 9000}, False),
    ],
)
def test_managers_change_rules_among_the_members_of_their_projects(
    world: World, changes: dict[str, Any], *, managed: bool
) -> None:
    async def story() -> None:
        access = world.services.access
        for name in ("ann", "mia"):
            await access.put_user(ADMIN, name, {})
        for name, members in (("red", ("ann", "mia")), ("blue", ("ann",))):
            await access.create_project(ADMIN, Project(name, members=members))
        manager = Actor("mia", Role.MANAGER, "uid 1003", 1003)
        await refused(lambda: access.change_project(ANN, "red", changes), ErrorCode.FORBIDDEN)
        await refused(lambda: access.change_project(manager, "blue", changes), ErrorCode.FORBIDDEN)
        if not managed:
            await refused(lambda: access.change_project(manager, "red", changes), ErrorCode.FORBIDDEN)
            return
        changed = await access.change_project(manager, "red", changes)
        assert all(getattr(changed.rules, rule) == value for rule, value in changes["rules"].items())

    world.do(story())
