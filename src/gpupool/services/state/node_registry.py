"""The nodes in memory: the last report of each, its GPU readings, and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, Node, NodeReport, NodeState
from gpupool.domain.work.lifecycle import restarts_after_loss
from gpupool.domain.work.workload import Workload


class NodeRegistry:
    """Nodes by name; each change sets ``changed``.

    ``own`` is the node on the control plane's own machine (empty: none). A node that is silent for ``lost_after_s``
    counts as lost (None: never). ``drained`` has the nodes that replicas of services leave, since this control plane
    started. ``hidden`` are the UUIDs of GPUs that are left out of all reports: MIG instances that are being removed.
    """

    def __init__(self, own: str = "") -> None:
        self.own = own
        self.lost_after_s: float | None = None
        self.changed = asyncio.Event()
        self.drained: set[str] = set()
        self.hidden: set[str] = set()
        self._nodes: dict[str, Node] = {}
        self._silent_since: dict[str, float] = {}

    def load(self, nodes: Iterable[Node], now: float) -> None:
        """Load the stored nodes as down until they connect. ``now`` is monotonic in all methods."""
        for node in nodes:
            self._nodes[node.name] = replace(node, state=NodeState.DOWN)
            self._silent_since[node.name] = now

    def put(self, node: Node) -> None:
        """Insert or replace a node."""
        self._nodes[node.name] = node
        self.changed.set()

    def remove(self, name: str) -> None:
        """Remove a node."""
        self._nodes.pop(name, None)
        self._silent_since.pop(name, None)
        self.changed.set()

    def in_contact(self, name: str) -> None:
        """Record that a node's agent answers; that alone does not make the node usable."""
        self._silent_since.pop(name, None)

    def silent(self, now: float) -> dict[str, float]:
        """Return the nodes that do not answer, with the seconds since their last answer."""
        return {name: now - since for name, since in self._silent_since.items()}

    def fence_after_s(self, workload: Workload, node: str) -> float | None:
        """Return after how many silent seconds a node must end programs of this workload itself; None: never.

        The control plane's own machine is not fenced: while it is gone, nothing can give its work to other nodes.
        """
        fences = node != self.own and node in self._nodes and self._nodes[node].report.fences
        return self.lost_after_s if fences and restarts_after_loss(workload) else None

    def all(self) -> tuple[Node, ...]:
        """Return all nodes, sorted by name."""
        return tuple(self._nodes[name] for name in sorted(self._nodes))

    def find(self, name: str) -> Node | None:
        """Return a node or None."""
        return self._nodes.get(name)

    def get(self, name: str) -> Node:
        """Return a node; raises ``GpupoolError(UNKNOWN_NODE)``."""
        node = self._nodes.get(name)
        if node is None:
            known = ", ".join(sorted(self._nodes)[:5]) or "none"
            raise GpupoolError(ErrorCode.UNKNOWN_NODE, f"There is no node '{name[:80]}'.", f"Nodes: {known}.")
        return node

    def emulated(self, name: str | None) -> bool:
        """Return True if a node's GPUs are emulated."""
        node = self._nodes.get(name or "")
        return node is not None and node.report.emulated

    def seen(self, report: NodeReport) -> tuple[Node, bool]:
        """Return the node with a new report, to ``put`` it, and True if more than readings has changed."""
        old = self._nodes.get(report.name)
        report = replace(report, gpus=self._shown(report.gpus)) if self.hidden else report
        if old is None:
            node = Node(report)
        else:
            state = NodeState.UP if old.state is NodeState.DOWN else old.state
            node = replace(old, report=report, state=NodeState.CORDONED if old.cordon_reason else state)
        return node, old is None or without_readings(old) != without_readings(node)

    def lost(self, name: str, now: float) -> Node | None:
        """Mark a node as down; return it if it was not down before."""
        old = self._nodes.get(name)
        if old is not None:
            self._silent_since.setdefault(name, now)
        if old is None or old.state is NodeState.DOWN:
            return None
        self._nodes[name] = replace(old, state=NodeState.DOWN)
        self.changed.set()
        return self._nodes[name]

    def gpus_read(self, name: str, gpus: tuple[Gpu, ...]) -> bool:
        """Store readings of a node's GPUs; return True if a GPU appeared, disappeared, or changed its availability."""
        old = self._nodes.get(name)
        if old is None:
            return False
        self._nodes[name] = replace(old, report=replace(old.report, gpus=self._shown(gpus)))
        news = without_readings(old) != without_readings(self._nodes[name])
        if news:
            self.changed.set()
        return news

    def _shown(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in gpus if gpu.uuid not in self.hidden)

    def find_gpu(self, uuid: str) -> tuple[Node, Gpu] | None:
        """Return the GPU with this UUID and its node."""
        for node in self._nodes.values():
            for gpu in node.report.gpus:
                if gpu.uuid == uuid:
                    return node, gpu
        return None


def without_readings(node: Node) -> Node:
    """Return a node without its readings (use, memory of foreign processes), for comparison before a write."""
    gpus = tuple(
        replace(
            gpu, memory_used_mib=0, utilisation_percent=0, foreign=tuple(replace(f, memory_mib=0) for f in gpu.foreign)
        )
        for gpu in node.report.gpus
    )
    return replace(node, report=replace(node.report, gpus=gpus, warnings=(), last_epoch=0))
