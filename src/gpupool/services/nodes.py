"""Machines and their GPUs: looking, cordoning, and how parts of GPUs are shared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.gpu import NODE_POLICY, GpuShare, Node, NodeState, Sharing
from gpupool.domain.ids import Epoch
from gpupool.domain.sharing import POLICIES
from gpupool.domain.units import format_duration
from gpupool.domain.workload import Lease, Replica, ReplicaState, Workload
from gpupool.services import transitions
from gpupool.services.engine import Engine
from gpupool.services.lost_nodes import LostNodes, certain_after_s
from gpupool.services.mirror import Draft
from gpupool.services.nodebook import NodeBook
from gpupool.services.permissions import Permissions

MOST_LABELS = 64


@dataclass(frozen=True, slots=True)
class Occupant:
    """A replica that is placed on a node; ``drained``: a drain would send it back to the queue."""

    workload: Workload
    replica: Replica
    lease: Lease | None
    drained: bool


class NodeService:
    """Reads the node book and, for fresh numbers, the node itself."""

    def __init__(self, engine: Engine, book: NodeBook, permissions: Permissions) -> None:
        self._engine = engine
        self._book = book
        self._permissions = permissions
        self._held: dict[str, list[tuple[Lease, GpuShare]]] = {}
        self._held_at = (-1, -1)
        self.lost = LostNodes(engine, book)

    async def nodes(self) -> Sequence[Node]:
        """All machines by name."""
        return self._book.all()

    @property
    def emulated(self) -> bool:
        """Whether some machine's GPUs are not real."""
        return any(node.report.emulated for node in self._book.all())

    async def node(self, name: str) -> Node:
        """One machine; raises UNKNOWN_NODE."""
        return self._book.get(name)

    async def holders(self, gpu_uuid: str) -> Sequence[tuple[Lease, GpuShare]]:
        """Who holds parts of a GPU, oldest lease first."""
        mirror = self._engine.mirror
        moment = (len(mirror.leases), mirror.last_epoch)  # never the same again: a grant raises the epoch
        if moment != self._held_at:
            self._held, self._held_at = _by_gpu(mirror.leases.values()), moment
        return self._held.get(gpu_uuid, ())

    def leases_on(self, name: str) -> list[Lease]:
        """What is held on a machine, work without GPUs included."""
        mirror = self._engine.mirror
        rows = (mirror.replica(*key) for key in mirror.placed.get(name, ()))
        epochs = {row.lease for row in rows if row is not None and row.lease is not None}
        return [mirror.leases[epoch] for epoch in sorted(epochs) if epoch in mirror.leases]

    def silent_s(self, name: str) -> float | None:
        """For how long a machine has not answered; None while it does."""
        return self._book.silent(self._engine.ports.clock.monotonic()).get(name)

    def with_silence(self, replica: Replica) -> Replica:
        """A replica with a note, if its node does not answer, of what becomes of it."""
        silent_s = self.silent_s(replica.node or "") if replica.state.placed else None
        if silent_s is None:
            return replica
        lease = self._engine.mirror.leases.get(replica.lease or Epoch(0))
        fence_s = None if lease is None else lease.fence_after_s
        then = "it is waited for"
        if fence_s is not None:
            then = f"after {format_duration(certain_after_s(fence_s))} it is run elsewhere"
        note = f"{replica.node} has not answered for {format_duration(silent_s)}; {then}"
        return replace(replica, notes=(*replica.notes, note))

    async def occupants(self, name: str) -> Sequence[Occupant]:
        """What is placed on a machine, the oldest first; raises UNKNOWN_NODE."""
        mirror, found = self._engine.mirror, []
        for workload_id, index in mirror.placed.get(self._book.get(name).name, ()):
            workload, replica = mirror.workloads.get(workload_id), mirror.replica(workload_id, index)
            if workload is not None and replica is not None:
                drained = workload.preemptible and replica.state is not ReplicaState.STOPPING
                lease = None if replica.lease is None else mirror.leases.get(replica.lease)
                found.append(Occupant(workload, replica, lease, drained))
        return sorted(found, key=lambda o: (o.replica.started_at or inf, o.workload.id, o.replica.index))

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

    async def end_work(self, name: str, why: str) -> None:
        """Tell what is placed on a machine that leaves to end, as lost with it: what may is run again elsewhere."""
        await self._engine.transact(lambda draft: self._end_work(draft, name, why))

    def _end_work(self, draft: Draft, name: str, why: str) -> None:
        for workload_id, index in sorted(self._engine.mirror.placed.get(name, ())):
            workload, replica = draft.workload(workload_id), draft.replica(workload_id, index)
            if workload is not None and replica is not None and replica.state is not ReplicaState.STOPPING:
                transitions.stop(draft, workload, replica, Reason.NODE_LOST, sentence=why)

    async def uncordon(self, actor: Actor, name: str) -> Node:
        """Let a machine take work again. For administrators."""
        return await self._change(actor, name, NodeState.UP, "", Reason.UNCORDONED)

    async def declare_lost(self, actor: Actor, name: str, reason: str = "") -> int:
        """Somebody knows that a machine is off: all its work is given up at once, and what may runs elsewhere.

        Its programs run twice if that is not so, until the machine is in contact again. For administrators; how many
        replicas that were. Raises UNKNOWN_NODE, WRONG_STATE while the node answers.
        """
        await self._absent(actor, name, "Stop its work, or drain it: it can be asked.")
        why = f"{name} was declared lost by {actor.user}" + (f" ({reason})" if reason else "")
        count = await self.lost.give_up(name, why)
        await self._note(
            actor, name, f"declared lost, with {count} of its replicas" + (f": {reason}" if reason else "")
        )
        return count

    async def remove(self, actor: Actor, name: str) -> None:
        """Forget a machine that has left. For administrators.

        Raises UNKNOWN_NODE, WRONG_STATE while it answers or holds something.
        """
        await self._absent(actor, name, "Take it out of the pool first: 'gpupool leave' there.")
        if self._engine.mirror.placed.get(name):
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{name} still holds {len(self._engine.mirror.placed[name])} replicas.",
                f"If the machine is off for good: 'gpupool node lost {name}', then remove it.",
            )
        event = self._event(actor, name, "removed")
        await self._engine.alone(lambda: self._engine.ports.store.delete_node(name, event))
        self._book.remove(name)
        self._engine.demand.invalidate()
        self._engine.work.set()

    async def _absent(self, actor: Actor, name: str, hint: str) -> None:
        self._permissions.need_role(actor, Role.ADMIN)
        self._book.get(name)
        if name not in self._book.silent(0.0):
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{name} answers.", hint)

    async def _note(self, actor: Actor, name: str, what: str) -> None:
        event = self._event(actor, name, what)
        await self._engine.transact(lambda draft: draft.note(event))

    def _event(self, actor: Actor, name: str, what: str) -> Event:
        return Event(self._engine.ports.clock.now(), actor.user, Reason.CHANGED, what, target=f"node {name}")

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


def _by_gpu(leases: Iterable[Lease]) -> dict[str, list[tuple[Lease, GpuShare]]]:
    """Who holds parts of which GPU, oldest first."""
    found: dict[str, list[tuple[Lease, GpuShare]]] = defaultdict(list)
    for lease in sorted(leases, key=lambda lease: lease.epoch):
        for share in lease.shares:
            found[share.gpu_uuid].append((lease, share))
    return found


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
