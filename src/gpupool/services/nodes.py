"""Machines and their GPUs: looking, cordoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpupool.domain.access import Actor, Role
from gpupool.domain.gpu import GpuShare, Node, NodeState
from gpupool.domain.workload import Event, Lease, Reason
from gpupool.services.engine import Engine
from gpupool.services.nodebook import NodeBook
from gpupool.services.permissions import Permissions


class NodeService:
    """Reads the node book and, for fresh numbers, the node itself."""

    def __init__(self, engine: Engine, book: NodeBook, permissions: Permissions) -> None:
        self._engine = engine
        self._book = book
        self._permissions = permissions

    async def nodes(self) -> Sequence[Node]:
        """All machines by name."""
        return self._book.all()

    async def node(self, name: str) -> Node:
        """One machine; raises UNKNOWN_NODE."""
        return self._book.get(name)

    async def holders(self, gpu_uuid: str) -> Sequence[tuple[Lease, GpuShare]]:
        """Who holds parts of a GPU, oldest lease first."""
        leases = sorted(self._engine.mirror.leases.values(), key=lambda lease: lease.epoch)
        return [(lease, share) for lease in leases for share in lease.shares if share.gpu_uuid == gpu_uuid]

    async def refresh(self, name: str) -> Node:
        """One machine with its GPUs looked at anew; a node that is down shows what it reported last."""
        node = self._book.get(name)
        if node.state is NodeState.DOWN:
            return node
        gpus = tuple(await self._engine.ports.fabric.link(name).gpus())
        if self._book.gpus_read(name, gpus):
            self._engine.demand.node_changed(self._book.get(name))
        return self._book.get(name)

    async def cordon(self, actor: Actor, name: str, reason: str) -> Node:
        """Let a machine take nothing new; what runs there runs on. For administrators."""
        return await self._change(actor, name, NodeState.CORDONED, reason or "cordoned", Reason.CORDONED)

    async def uncordon(self, actor: Actor, name: str) -> Node:
        """Let a machine take work again. For administrators."""
        return await self._change(actor, name, NodeState.UP, "", Reason.UNCORDONED)

    async def _change(self, actor: Actor, name: str, state: NodeState, why: str, reason: Reason) -> Node:
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._book.get(name)
        kept = NodeState.DOWN if node.state is NodeState.DOWN else state
        changed = replace(node, state=kept, cordon_reason=why)
        event = Event(self._engine.ports.clock.now(), actor.user, reason, why or "takes work", target=f"node {name}")
        await self._engine.alone(lambda: self._engine.ports.store.save_node(changed, event))
        self._book.put(changed)
        self._engine.demand.node_changed(changed)
        self._engine.work.set()
        return changed
