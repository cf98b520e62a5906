"""Machines and their GPUs: looking, cordoning, and how parts of GPUs are shared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import NODE_POLICY, GpuShare, Node, NodeState, Sharing
from gpupool.domain.sharing import POLICIES
from gpupool.domain.workload import Event, Lease, Reason
from gpupool.services import transitions
from gpupool.services.engine import Engine
from gpupool.services.mirror import Draft
from gpupool.services.nodebook import NodeBook
from gpupool.services.permissions import Permissions

MOST_LABELS = 64


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

    async def cordon(self, actor: Actor, name: str, reason: str, *, drain: bool = False) -> Node:
        """Let a machine take nothing new. For administrators.

        What runs there runs on, but ``drain`` sends its training back to the queue, with its notice and grace.
        """
        node = await self._change(actor, name, NodeState.CORDONED, reason or "cordoned", Reason.CORDONED)
        if drain:
            because = f"{name} is drained" + (f" ({reason})" if reason else "")
            await self._engine.transact(lambda draft: self._send_away(draft, name, because))
        return node

    def _send_away(self, draft: Draft, name: str, because: str) -> None:
        for workload_id, index in sorted(self._engine.mirror.placed.get(name, ())):
            workload, replica = draft.workload(workload_id), draft.replica(workload_id, index)
            if workload is not None and replica is not None and workload.preemptible:
                transitions.stop(draft, workload, replica, Reason.PREEMPTED, sentence=because)

    async def uncordon(self, actor: Actor, name: str) -> Node:
        """Let a machine take work again. For administrators."""
        return await self._change(actor, name, NodeState.UP, "", Reason.UNCORDONED)

    async def set_sharing(self, actor: Actor, name: str, gpu: int | None, mode: Sharing | None) -> Node:
        """Choose the mode for parts of one GPU (by index) or of all that have none of their own; None: the node's.

        What runs keeps its mode, and nobody joins it in another. For administrators. Raises UNKNOWN_NODE, NOT_FOUND for
        a GPU that is not there, UNSUPPORTED for a mode that the node does not have.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._book.get(name)
        key = NODE_POLICY if gpu is None else _gpu_uuid(node, gpu)
        if mode is not None:
            _check_policy(node, mode)
        kept = {uuid: chosen for uuid, chosen in node.sharing.items() if uuid != key}
        changed = replace(node, sharing=kept if mode is None else kept | {key: mode})
        which = "parts of GPUs" if gpu is None else f"parts of GPU {gpu}"
        await self._save(actor, changed, Reason.CHANGED, f"{which}: sharing mode {mode or 'as the node has it'}")
        return changed

    async def set_labels(self, actor: Actor, name: str, put: Mapping[str, str], remove: Collection[str]) -> Node:
        """Put labels on a machine, over those that it reports, and take away others that were put there.

        For administrators. Raises UNKNOWN_NODE, TOO_LARGE for too many.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._book.get(name)
        labels = {key: value for key, value in node.labels.items() if key not in remove} | dict(put)
        if len(labels) > MOST_LABELS:
            raise GpupoolError(ErrorCode.TOO_LARGE, f"A node has at most {MOST_LABELS} labels.", "Remove some.")
        changed = replace(node, labels=labels)
        what = [*(f"{key}={value}" for key, value in put.items()), *(f"without {key}" for key in remove)]
        await self._save(actor, changed, Reason.CHANGED, f"labels: {', '.join(what)}")
        return changed

    async def _change(self, actor: Actor, name: str, state: NodeState, why: str, reason: Reason) -> Node:
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._book.get(name)
        kept = NodeState.DOWN if node.state is NodeState.DOWN else state
        changed = replace(node, state=kept, cordon_reason=why)
        await self._save(actor, changed, reason, why or "takes work")
        return changed

    async def _save(self, actor: Actor, node: Node, reason: Reason, what: str) -> None:
        event = Event(self._engine.ports.clock.now(), actor.user, reason, what, target=f"node {node.name}")
        await self._engine.alone(lambda: self._engine.ports.store.save_node(node, event))
        self._book.put(node)
        self._engine.demand.node_changed(node)
        self._engine.work.set()


def _gpu_uuid(node: Node, index: int) -> str:
    found = next((gpu.uuid for gpu in node.report.gpus if gpu.index == index), None)
    if found is None:
        known = ", ".join(str(gpu.index) for gpu in node.report.gpus) or "none"
        raise GpupoolError(ErrorCode.NOT_FOUND, f"{node.name} has no GPU {index}.", f"It has: {known}.")
    return found


def _check_policy(node: Node, mode: Sharing) -> None:
    offered = node.report.sharing
    usable = [m for m in POLICIES if not offered or m is Sharing.WHOLE or m in offered]
    if mode not in usable:
        why = "is made by whoever partitions the card" if mode is Sharing.MIG else f"is not available on {node.name}"
        raise GpupoolError(
            ErrorCode.UNSUPPORTED, f"The sharing mode {mode} {why}.", f"Choose one of: {', '.join(usable)}."
        )
