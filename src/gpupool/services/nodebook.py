"""What the control plane knows of nodes now: the last report of each, fresh GPU readings, and who may be placed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Gpu, Node, NodeReport, NodeState
from gpupool.domain.lifecycle import runs_elsewhere
from gpupool.domain.workload import Workload


class NodeBook:
    """Nodes by name; the services change it, the scheduler's demand reads it.

    ``own`` is the node on the control plane's own machine (empty: none), ``lost_after_s`` after how long a silent node
    counts as lost (None: never).
    """

    def __init__(self, own: str = "") -> None:
        self.own = own
        self.lost_after_s: float | None = None
        self._nodes: dict[str, Node] = {}
        self._silent_since: dict[str, float] = {}

    def load(self, nodes: Iterable[Node], now: float) -> None:
        """Begin with what was known of nodes: none has been heard yet. ``now`` is monotonic, here as everywhere."""
        for node in nodes:
            self._nodes[node.name] = replace(node, state=NodeState.DOWN)
            self._silent_since[node.name] = now

    def put(self, node: Node) -> None:
        """Insert or replace a node."""
        self._nodes[node.name] = node

    def remove(self, name: str) -> None:
        """Forget a node."""
        self._nodes.pop(name, None)
        self._silent_since.pop(name, None)

    def in_contact(self, name: str) -> None:
        """A node's agent answers; whether the node may be used is another matter."""
        self._silent_since.pop(name, None)

    def silent(self, now: float) -> dict[str, float]:
        """The nodes that do not answer, and for how many seconds."""
        return {name: now - since for name, since in self._silent_since.items()}

    def fence_after_s(self, workload: Workload, node: str) -> float | None:
        """After which silence of a node what it runs of this workload is to be ended there; None: never.

        The control plane's own machine is not fenced: while it is gone, nobody gives its work to others.
        """
        fences = node != self.own and node in self._nodes and self._nodes[node].report.fences
        return self.lost_after_s if fences and runs_elsewhere(workload) else None

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

    def lost(self, name: str, now: float) -> Node | None:
        """A node does not answer: it takes nothing new; returns it when that is news."""
        old = self._nodes.get(name)
        if old is not None:
            self._silent_since.setdefault(name, now)
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
