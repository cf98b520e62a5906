"""The mode ``mig`` is offered by nodes with MIG instances, so that requests with ``--sharing mig`` can start there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeCard, FakeMig, FakeNvml

from gpupool.domain.nodes.gpu import GpuRequest, Node, NodeReport
from gpupool.domain.nodes.sharing import Sharing
from gpupool.domain.people.access import Project
from gpupool.domain.work.sharing_policy import resolve_request
from gpupool.node.agent.agent import Agent, Backends
from gpupool.node.host.paths import RunFolder, StateFolder
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.inventory.nvml import NvmlInventory
from gpupool.node.ports import Inventory
from gpupool.node.runners.process.runner import ProcessRunner
from gpupool.scheduling.placement.node_filter import fitting_rows
from gpupool.scheduling.state.cluster import ClusterState, Shapes

A100 = "NVIDIA A100-SXM4-40GB"
INSTANCES = [FakeMig("MIG-1", f"{A100} MIG 1g.5gb", 4864), FakeMig("MIG-2", f"{A100} MIG 3g.20gb", 19968)]


def report_of(inventory: Inventory, folder: Path) -> NodeReport:
    """Return the report of an agent on a node with this inventory."""

    async def report() -> NodeReport:
        runner = ProcessRunner()
        nothing: Any = None
        backends = Backends(inventory, runner, nothing, nothing)
        agent = Agent(StateFolder(folder / "state"), RunFolder(folder / "run"), backends)
        try:
            return await agent.report()
        finally:
            await agent.close()

    return asyncio.run(report())


@pytest.mark.parametrize(
    ("inventory", "offers"),
    [
        (NvmlInventory("n1", FakeNvml(FakeCard("GPU-a", A100, mig=INSTANCES), FakeCard("GPU-b"))), True),
        (EmulatedInventory.open("n1", "A100-80GB[3g.40gb,2g.20gb]"), True),
        (NvmlInventory("n1", FakeNvml(FakeCard("GPU-a", A100, mig=[]), FakeCard("GPU-b"))), False),
        (NvmlInventory("n1", FakeNvml(FakeCard("GPU-a", A100))), False),
    ],
    ids=["instances", "emulated instances", "no instances", "MIG is off"],
)
def test_only_node_with_mig_instances_offers_the_mode_mig(inventory: Inventory, offers: bool, tmp_path: Path) -> None:
    report = report_of(inventory, tmp_path)
    assert ("mig" in report.sharing) is offers
    assert report.sharing[0] != "mig"  # the default is for parts of GPUs
    cluster = ClusterState()
    cluster.set_node(Node(report))
    request = resolve_request(GpuRequest(sharing=Sharing.MIG), Project("p"))
    assert len(fitting_rows(cluster, Shapes().get(request, 0, 0))) == offers
