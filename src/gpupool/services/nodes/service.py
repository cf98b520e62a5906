"""Node service: read nodes and their leases, cordon and drain nodes, set sharing modes and labels, remove nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.nodes.gpu import NODE_POLICY, Gpu, GpuShare, Node, NodeState
from gpupool.domain.nodes.sharing import Sharing, traits_of, usable_policies
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.protocol.fencing import certain_after_s
from gpupool.domain.units import format_duration
from gpupool.domain.work.workload import GpuLease, Replica, ReplicaState, Workload
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.lifecycle import transitions
from gpupool.services.nodes.monitoring import LostNodes
from gpupool.services.state.mirror import Draft
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.state.workspace_registry import WorkspaceRegistry

MAX_LABELS = 64
MAX_NAMED_HOMES = 5  # in a message


@dataclass(frozen=True, slots=True)
class Occupant:
    """A replica that is placed on a node; ``drained``: a drain would queue it again."""

    workload: Workload
    replica: Replica
    lease: GpuLease | None
    drained: bool


class NodeService:
    """Reads and changes nodes; asks the node itself for fresh numbers."""

    def __init__(
        self, engine: Engine, nodes: NodeRegistry, permissions: Permissions, workspaces: WorkspaceRegistry
    ) -> None:
        self._engine = engine
        self._nodes = nodes
        self._permissions = permissions
        self._workspaces = workspaces
        self._held: dict[str, list[tuple[GpuLease, GpuShare]]] = {}
        self._held_at = (-1, -1)
        self.lost = LostNodes(engine, nodes)

    async def nodes(self) -> Sequence[Node]:
        """Return all nodes, sorted by name."""
        return self._nodes.all()

    @property
    def emulated(self) -> bool:
        """Return True if a node has emulated GPUs."""
        return any(node.report.emulated for node in self._nodes.all())

    async def node(self, name: str) -> Node:
        """Return a node; raises UNKNOWN_NODE."""
        return self._nodes.get(name)

    async def holders(self, gpu_uuid: str) -> Sequence[tuple[GpuLease, GpuShare]]:
        """Return the leases of a GPU and their slices, oldest first."""
        mirror = self._engine.mirror
        moment = (len(mirror.leases), mirror.last_epoch)  # unique: each grant raises the epoch
        if moment != self._held_at:
            self._held, self._held_at = _by_gpu(mirror.leases.values()), moment
        return self._held.get(gpu_uuid, ())

    def leases_on(self, name: str) -> list[GpuLease]:
        """Return all leases on a node, also those without GPUs."""
        mirror = self._engine.mirror
        rows = (mirror.replica(*key) for key in mirror.placed.get(name, ()))
        epochs = {epoch for row in rows if row is not None for epoch in row.leases}
        return [mirror.leases[epoch] for epoch in sorted(epochs) if epoch in mirror.leases]

    def silent_s(self, name: str) -> float | None:
        """Return for how many seconds a node has not answered; None while it answers."""
        return self._nodes.silent(self._engine.ports.clock.monotonic()).get(name)

    def with_silence(self, replica: Replica) -> Replica:
        """Return the replica; if its node does not answer, with a note about what happens to it."""
        silent_s = self.silent_s(replica.node or "") if replica.state.placed else None
        if silent_s is None:
            return replica
        lease = self._engine.mirror.lease_of(replica)
        fence_s = None if lease is None else lease.fence_after_s
        then = "the replica waits for it"
        if fence_s is not None:
            then = f"after {format_duration(certain_after_s(fence_s))} the replica is retried on another node"
        note = f"{replica.node} has not answered for {format_duration(silent_s)}; {then}"
        return replace(replica, notes=(*replica.notes, note))

    async def occupants(self, name: str) -> Sequence[Occupant]:
        """Return the replicas on a node, oldest first; raises UNKNOWN_NODE."""
        mirror, found = self._engine.mirror, []
        for workload_id, index in mirror.placed.get(self._nodes.get(name).name, ()):
            workload, replica = mirror.workloads.get(workload_id), mirror.replica(workload_id, index)
            if workload is not None and replica is not None:
                drained = workload.preemptible and replica.state is not ReplicaState.STOPPING
                found.append(Occupant(workload, replica, mirror.lease_of(replica), drained))
        return sorted(found, key=lambda o: (o.replica.started_at or inf, o.workload.id, o.replica.index))

    async def refresh(self, name: str) -> Node:
        """Return a node with new GPU readings; a node that is down has its last report."""
        node = self._nodes.get(name)
        if node.state is NodeState.DOWN:
            return node
        gpus = tuple(await self._engine.ports.fabric.link(name).gpus())
        if self._nodes.gpus_read(name, gpus):
            self._engine.feed.node_changed(self._nodes.get(name))
        return self._nodes.get(name)

    async def cordon(self, actor: Actor, name: str, reason: str, *, drain: bool = False) -> Node:
        """Place nothing new on a node, for administrators.

        Running programs continue. ``drain`` preempts its preemptible workloads, with notice and grace period, and lets
        replicas of services leave when others have replaced them.
        """
        node = await self._change(actor, name, NodeState.CORDONED, reason or "cordoned", Reason.CORDONED)
        if drain:
            sentence = f"{name} is drained" + (f" ({reason})" if reason else "")
            self._nodes.drained.add(name)
            await self._stop_work(name, Reason.PREEMPTED, sentence, _ends_in_a_drain)
        return node

    async def end_work(self, name: str, why: str) -> None:
        """Stop all replicas on a node that leaves, as lost with it, so that they can be retried on other nodes."""
        await self._stop_work(name, Reason.NODE_LOST, why, lambda _, row: row.state is not ReplicaState.STOPPING)

    async def _stop_work(
        self, name: str, reason: Reason, sentence: str, applies: Callable[[Workload, Replica], bool]
    ) -> None:
        """Stop the replicas on a node to which ``applies`` applies."""

        def build(draft: Draft) -> None:
            for workload_id, index in sorted(self._engine.mirror.placed.get(name, ())):
                workload, replica = draft.workload(workload_id), draft.replica(workload_id, index)
                if workload is not None and replica is not None and applies(workload, replica):
                    transitions.stop(draft, workload, replica, reason, sentence=sentence)

        await self._engine.transact(build)

    async def uncordon(self, actor: Actor, name: str) -> Node:
        """Allow new work on a node again, for administrators."""
        node = await self._change(actor, name, NodeState.UP, "", Reason.UNCORDONED)
        self._nodes.drained.discard(name)
        return node

    async def cordon_gpu(self, actor: Actor, name: str, gpu: int, reason: str) -> Node:
        """Place nothing new on one GPU, by its index, for administrators; raises UNKNOWN_NODE or NOT_FOUND.

        Running programs continue. A MIG instance is cordoned with its whole card.
        """
        return await self._set_gpu_cordon(actor, name, gpu, reason or "cordoned")

    async def uncordon_gpu(self, actor: Actor, name: str, gpu: int) -> Node:
        """Allow new work on a GPU again, for administrators; raises UNKNOWN_NODE or NOT_FOUND."""
        return await self._set_gpu_cordon(actor, name, gpu, "")

    async def _set_gpu_cordon(self, actor: Actor, name: str, gpu: int, reason: str) -> Node:
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._nodes.get(name)
        found = _find_gpu(node, gpu)
        card = found.parent_uuid or found.uuid
        kept = {uuid: why for uuid, why in node.cordoned_gpus.items() if uuid != card}
        changed = replace(node, cordoned_gpus=kept | {card: reason} if reason else kept)
        code, what = (Reason.CORDONED, f"cordoned: {reason}") if reason else (Reason.UNCORDONED, "accepts work")
        await self._save(actor, changed, code, f"GPU {gpu} {what}")
        return changed

    async def declare_lost(self, actor: Actor, name: str, reason: str = "") -> int:
        """End all replicas on a node that is known to be off, for administrators; return their number.

        They may be retried on other nodes. If the node is not off, its programs run twice until it connects again.
        Raises UNKNOWN_NODE, and WRONG_STATE while the node answers.
        """
        await self._require_silent(actor, name, "Stop its work or drain it; the node can be reached.")
        why = f"{name} was declared lost by {actor.user}" + (f" ({reason})" if reason else "")
        count = await self.lost.give_up(name, why)
        await self._note(
            actor, name, f"declared lost, with {count} of its replicas" + (f": {reason}" if reason else "")
        )
        return count

    async def remove(self, actor: Actor, name: str, *, keep_homes: bool = True) -> None:
        """Remove a node that has left, for administrators.

        Raises UNKNOWN_NODE, and WRONG_STATE while it answers, has replicas or, with ``keep_homes``, stores homes of
        workspaces.
        """
        await self._require_silent(actor, name, "Run 'gpupool leave' on that machine first.")
        if self._engine.mirror.placed.get(name):
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{name} still has {len(self._engine.mirror.placed[name])} replicas.",
                f"If the machine is permanently off, run 'gpupool node lost {name}', then remove it.",
            )
        if keep_homes:
            self.require_no_homes(
                name,
                "Start the machine again to keep them. If their files are lost, run "
                "'gpupool workspace delete ID --forget' for each, then remove the node.",
            )
        event = self._engine.change_event(actor.user, "removed", f"node {name}")
        await self._engine.run_exclusive(lambda: self._engine.ports.store.delete_node(name, event))
        self._nodes.remove(name)
        self._engine.feed.invalidate()
        self._engine.work.set()

    def require_no_homes(self, name: str, hint: str) -> None:
        """Raise WRONG_STATE if a node stores homes of workspaces."""
        rows = self._workspaces.rows.values()
        homes = sorted(f"{row.name} of {row.user} ({row.id})" for row in rows if row.node == name)
        if homes:
            more = f" and {len(homes) - MAX_NAMED_HOMES} more" if len(homes) > MAX_NAMED_HOMES else ""
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{name} stores homes of workspaces ({len(homes)}): {', '.join(homes[:MAX_NAMED_HOMES])}{more}.",
                hint,
            )

    async def _require_silent(self, actor: Actor, name: str, hint: str) -> None:
        self._permissions.need_role(actor, Role.ADMIN)
        self._nodes.get(name)
        if name not in self._nodes.silent(0.0):
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{name} answers.", hint)

    async def _note(self, actor: Actor, name: str, what: str) -> None:
        event = self._engine.change_event(actor.user, what, f"node {name}")
        await self._engine.transact(lambda draft: draft.note(event))

    async def set_sharing(self, actor: Actor, name: str, gpu: int | None, mode: Sharing | None) -> Node:
        """Set the sharing mode for slices of one GPU (by index) or of all GPUs without their own; None: the default.

        For administrators. Running slices keep their mode, and a GPU never has slices of two modes. Raises
        UNKNOWN_NODE, NOT_FOUND for an unknown GPU, UNSUPPORTED for a mode that the node does not have.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._nodes.get(name)
        key = NODE_POLICY if gpu is None else _find_gpu(node, gpu).uuid
        if mode is not None:
            _check_policy(node, mode)
        kept = {uuid: chosen for uuid, chosen in node.sharing.items() if uuid != key}
        changed = replace(node, sharing=kept if mode is None else kept | {key: mode})
        which = "slices of GPUs" if gpu is None else f"slices of GPU {gpu}"
        await self._save(actor, changed, Reason.CHANGED, f"{which}: sharing mode {mode or 'as the node reports it'}")
        return changed

    async def set_labels(self, actor: Actor, name: str, put: Mapping[str, str], remove: Collection[str]) -> Node:
        """Set labels on a node, which override those that it reports, and remove labels that were set.

        For administrators. Raises UNKNOWN_NODE, and TOO_LARGE for too many labels.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._nodes.get(name)
        labels = {key: value for key, value in node.labels.items() if key not in remove} | dict(put)
        if len(labels) > MAX_LABELS:
            raise GpupoolError(ErrorCode.TOO_LARGE, f"A node has at most {MAX_LABELS} labels.", "Remove some.")
        changed = replace(node, labels=labels)
        what = [*(f"{key}={value}" for key, value in put.items()), *(f"without {key}" for key in remove)]
        await self._save(actor, changed, Reason.CHANGED, f"labels: {', '.join(what)}")
        return changed

    async def _change(self, actor: Actor, name: str, state: NodeState, why: str, reason: Reason) -> Node:
        self._permissions.need_role(actor, Role.ADMIN)
        node = self._nodes.get(name)
        kept = NodeState.DOWN if node.state is NodeState.DOWN else state
        changed = replace(node, state=kept, cordon_reason=why)
        await self._save(actor, changed, reason, why or "accepts work")
        return changed

    async def _save(self, actor: Actor, node: Node, reason: Reason, what: str) -> None:
        event = self._engine.change_event(actor.user, what, f"node {node.name}", reason)
        await self._engine.run_exclusive(lambda: self._engine.ports.store.save_nodes([node], [event]))
        self._nodes.put(node)
        self._engine.feed.node_changed(node)
        self._engine.work.set()


def _ends_in_a_drain(workload: Workload, _replica: Replica) -> bool:
    return workload.preemptible and workload.program.serving is None


def _by_gpu(leases: Iterable[GpuLease]) -> dict[str, list[tuple[GpuLease, GpuShare]]]:
    """Return the leases and slices by GPU, oldest first."""
    found: dict[str, list[tuple[GpuLease, GpuShare]]] = defaultdict(list)
    for lease in sorted(leases, key=lambda lease: lease.epoch):
        for share in lease.shares:
            found[share.gpu_uuid].append((lease, share))
    return found


def _find_gpu(node: Node, index: int) -> Gpu:
    found = next((gpu for gpu in node.report.gpus if gpu.index == index), None)
    if found is None:
        known = ", ".join(str(gpu.index) for gpu in node.report.gpus) or "none"
        raise GpupoolError(ErrorCode.NOT_FOUND, f"{node.name} has no GPU {index}.", f"It has: {known}.")
    return found


def _check_policy(node: Node, mode: Sharing) -> None:
    usable = usable_policies(node.report.sharing)
    if mode not in usable:
        why = "exists only on partitioned GPUs" if traits_of(mode).partitioned else f"is not available on {node.name}"
        raise GpupoolError(
            ErrorCode.UNSUPPORTED, f"The sharing mode {mode} {why}.", f"Choose one of: {', '.join(usable)}."
        )
