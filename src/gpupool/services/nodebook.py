"""What the control plane knows of nodes now: the last report of each, fresh GPU readings, and who may be placed."""

from __future__ import annotations

from dataclasses import replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Gpu, Node, NodeReport, NodeState


class NodeBook:
    """Nodes by name; the services change it, the scheduler's demand reads it."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def put(self, node: Node) -> None:
        """Insert or replace a node."""
        self._nodes[node.name] = node

    def all(self) -> tuple[Node, ...]:
        """Every node, by name."""
        return tuple(self._nodes[name] for name in sorted(self._nodes))

    def find(self, name: str) -> Node | None:
        """One node or None."""
        return self._nodes.get(name)

    def get(self, name: str) -> Node:
        """One node; raises ``GpupoolError(UNKNOWN_NODE)``."""
        node = self._nodes.get(name)
        if node is None:
            known = ", ".join(sorted(self._nodes)[:5]) or "none"
            raise GpupoolError(ErrorCode.UNKNOWN_NODE, f"There is no node '{name[:80]}'.", f"Nodes: {known}.")
        return node

    def emulated(self, name: str | None) -> bool:
        """Whether a node's GPUs are emulated."""
        node = self._nodes.get(name or "")
        return node is not None and node.report.emulated

    def seen(self, report: NodeReport) -> tuple[Node, bool]:
        """A node has reported: the node as it is to be ``put``, and whether anything lasting changed."""
        old = self._nodes.get(report.name)
        if old is None:
            node = Node(report)
        else:
            state = NodeState.UP if old.state is NodeState.DOWN else old.state
            node = replace(old, report=report, state=NodeState.CORDONED if old.cordon_reason else state)
        return node, old is None or lasting(old) != lasting(node)

    def lost(self, name: str) -> Node | None:
        """A node does not answer: it takes nothing new; returns it when that is news."""
        old = self._nodes.get(name)
        if old is None or old.state is NodeState.DOWN:
            return None
        self._nodes[name] = replace(old, state=NodeState.DOWN)
        return self._nodes[name]

    def gpus_read(self, name: str, gpus: tuple[Gpu, ...]) -> bool:
        """Fresh readings of a node's GPUs; returns whether any became (un)available or went missing."""
        old = self._nodes.get(name)
        if old is None:
            return False
        self._nodes[name] = replace(old, report=replace(old.report, gpus=gpus))
        return lasting(old) != lasting(self._nodes[name])

    def find_gpu(self, uuid: str) -> tuple[Node, Gpu] | None:
        """The GPU with this UUID and its node."""
        for node in self._nodes.values():
            for gpu in node.report.gpus:
                if gpu.uuid == uuid:
                    return node, gpu
        return None


def lasting(node: Node) -> Node:
    """A node without its momentary readings (use, foreign processes' memory): what is worth writing down."""
    gpus = tuple(
        replace(
            gpu, memory_used_mib=0, utilisation_percent=0, foreign=tuple(replace(f, memory_mib=0) for f in gpu.foreign)
        )
        for gpu in node.report.gpus
    )
    return replace(node, report=replace(node.report, gpus=gpus, warnings=()))
