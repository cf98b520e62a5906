"""The parts of the benchmark's pool: 64 nodes of 8 GPUs of five models, 40 projects, 200 users."""

from __future__ import annotations

from gpupool.domain.nodes.gpu import Gpu, GpuShare, Node, NodeReport
from gpupool.node.inventory.models import find_model

NODES = 64
GPUS_PER_NODE = 8
PROJECTS = 40
USERS = 200
DEPARTMENTS = 5
KINDS = ("T4",) * 4 + ("V100-32GB",) * 4 + ("A100-40GB",) * 4 + ("A100-80GB",) * 2 + ("H100-80GB",) * 2
CARDS = tuple(found for i in range(NODES) if (found := find_model(KINDS[i // 4])) is not None)
MODELS = tuple(card.name for card in CARDS)


def node(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number:02d}"


def project(number: int) -> str:
    """Return the name of a project."""
    return f"project-{number:02d}"


def user(number: int) -> str:
    """Return the name of a user."""
    return f"user-{number:03d}"


def gpu(node_number: int, index: int) -> str:
    """Return the UUID of a GPU; UUIDs are ordered by node and index."""
    return f"GPU-{node_number:04x}{index:04x}-0000-4000-8000-000000000000"


def share(node_number: int, index: int, permille: int) -> GpuShare:
    """Return a share of a GPU."""
    return GpuShare(gpu(node_number, index), index, permille, CARDS[node_number].memory_mib * permille // 1000)


def report(number: int) -> NodeReport:
    """Return the inventory report of a node."""
    card = CARDS[number]
    gpus = tuple(
        Gpu(
            gpu(number, index),
            index,
            card.name,
            card.memory_mib,
            emulated=True,
            links={peer: "NV4" for peer in range(GPUS_PER_NODE) if peer != index},
        )
        for index in range(GPUS_PER_NODE)
    )
    return NodeReport(
        node(number),
        cpus=128.0,
        memory_mib=1 << 20,
        gpus=gpus,
        emulated=True,
        boot_id="boot",
        agent_version="0",
        driver_version="550.54",
        cuda_version="12.4",
        sharing=("share", "advisory"),
    )


def nodes() -> list[Node]:
    """Return all nodes."""
    return [Node(report(number)) for number in range(NODES)]
