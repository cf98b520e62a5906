"""GPU sharing from the request to the node's start message and the displayed result."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pool_world import ADMIN, ANN, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.people.access import Actor, Project, Role
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.services.ports.store import EventFilter

MANAGER = Actor("mia", Role.MANAGER, "token 2")


def told(world: World, workload: str) -> ProcessSpec:
    """Return the last start message of a workload."""
    return [p.spec for p in world.agent.programs.values() if p.spec.key.startswith(f"{workload}.")][-1]


def test_start_message_has_lease_policy_and_mode(world: World) -> None:
    async def story() -> None:
        part = await world.submit(gpus={"fraction": 0.25, "compute": "cap", "sharing": "mps"})
        whole = await world.submit(gpus={"count": 1})
        spec = told(world, part.id)
        assert (spec.lease, spec.compute, spec.sharing) == (spec.epoch, ComputePolicy.CAP, "mps")
        assert told(world, whole.id).sharing == "whole"
        (lease,) = await world.services.workloads.leases_of(part)
        assert (lease.sharing, lease.compute) == ("mps", ComputePolicy.CAP)

    world.do(story())


def test_program_on_a_lease_has_its_epoch_mode_and_policy(world: World) -> None:
    async def story() -> None:
        held = await world.submit(kind="lease", lifetime=100, gpus={"fraction": 0.5, "compute": "none"})
        first = await world.submit(kind="exec", on=held.id)
        second = await world.submit(kind="exec", on=held.id)
        specs = [told(world, first.id), told(world, second.id)]
        assert {(s.lease, s.compute, s.sharing) for s in specs} == {(specs[0].lease, ComputePolicy.NONE, "")}
        (lease,) = await world.services.workloads.leases_of(held)
        assert specs[0].lease == lease.epoch

    world.do(story())


def test_project_rules_limit_compute_policy(world: World) -> None:
    async def story() -> None:
        access = world.services.access
        policies = {
            "compute_default": ComputePolicy.CAP,
            "compute_allowed": (ComputePolicy.CAP, ComputePolicy.GUARANTEE),
            "sharing_allowed": (Sharing.SHARE, Sharing.WHOLE),
        }
        await access.create_project(ADMIN, replace(Project("red"), **policies))
        job = await world.submit(project="red", gpus={"fraction": 0.1})
        assert (job.compute, job.gpus.sharing) == (ComputePolicy.CAP, Sharing.SHARE)
        for gpus in ({"fraction": 0.1, "compute": "none"}, {"fraction": 0.1, "sharing": "mps"}):
            await refused(lambda gpus=gpus: world.submit(project="red", gpus=gpus), ErrorCode.FORBIDDEN)
        await refused(
            lambda: access.change_project(ADMIN, "red", {"compute_default": ComputePolicy.NONE}),
            ErrorCode.INVALID_REQUEST,
        )
        await access.change_project(ADMIN, "red", {"compute_allowed": ()})
        assert (await world.submit(project="red", gpus={"fraction": 0.1, "compute": "none"})).compute == "none"
        await world.crash()
        await world.boot()
        (red,) = [p for p in await world.services.access.projects() if p.name == "red"]
        assert (red.compute_default, red.sharing_allowed) == (ComputePolicy.CAP, policies["sharing_allowed"])

    world.do(story())


@pytest.mark.parametrize("actor", [ANN, MANAGER])
def test_only_administrators_set_sharing_modes(world: World, actor: Actor) -> None:
    async def story() -> None:
        await world.services.access.put_user(ADMIN, "mia", {})
        await world.services.access.create_project(ADMIN, Project("red", members=("mia",)))
        await refused(lambda: world.services.nodes.set_sharing(actor, "here", 0, Sharing.MPS), ErrorCode.FORBIDDEN)
        await refused(
            lambda: world.services.access.change_project(actor, "red", {"compute_default": ComputePolicy.NONE}),
            ErrorCode.FORBIDDEN,
        )

    world.do(story())


def test_sharing_policy_is_stored_recorded_and_applied(world: World) -> None:
    async def story() -> None:
        nodes = world.services.nodes
        await nodes.set_sharing(ADMIN, "here", None, Sharing.MPS)
        await nodes.set_sharing(ADMIN, "here", 0, Sharing.WHOLE)
        job = await world.submit(gpus={"fraction": 0.5})
        assert told(world, job.id).sharing == "mps"
        await refused(lambda: world.submit(gpus={"fraction": 0.1, "sharing": "share"}), ErrorCode.IMPOSSIBLE_REQUEST)
        await world.crash()
        await world.boot()
        node = await world.services.nodes.node("here")
        first = min(node.report.gpus, key=lambda gpu: gpu.index)
        assert node.sharing == {"": Sharing.MPS, first.uuid: Sharing.WHOLE}
        nodes = world.services.nodes
        await nodes.set_sharing(ADMIN, "here", 0, None)
        assert (await nodes.node("here")).sharing == {"": Sharing.MPS}
        events = await world.services.history.events(ADMIN, EventFilter())
        said = [event.message for event in events if event.target == "node here"]
        assert "slices of GPU 0: sharing mode whole" in said
        await refused(lambda: nodes.set_sharing(ADMIN, "here", 9, Sharing.MPS), ErrorCode.NOT_FOUND)
        await refused(lambda: nodes.set_sharing(ADMIN, "here", None, Sharing.MIG), ErrorCode.UNSUPPORTED)

    world.do(story())


def test_mode_reported_by_node_is_stored(world: World) -> None:
    async def story() -> None:
        world.agent.mode = ("advisory", "Nothing enforces it: the share library is not built here.")
        job = await world.submit(gpus={"fraction": 0.5})
        await world.crash()
        await world.boot()
        (row,) = await world.replicas(job.id)
        assert (row.sharing, row.guarantee) == world.agent.mode

    world.do(story())
