"""The nodes and their GPUs as arrays, with the allocation of every replica, and the shapes of requests.

A shape has the properties of a request that decide where it fits; all equal requests share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary
from zlib import crc32

import numpy as np

from gpupool.domain.nodes.gpu import NODE_LABEL, Gpu, GpuHealth, GpuRequest, GpuShare, Node, NodeState
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.state.allocation import Bools, Claim, HeldAllocation, Ints
from gpupool.scheduling.state.gpu_links import link_matrix
from gpupool.scheduling.state.reservations import Guest, Reservations
from gpupool.scheduling.state.sharing_modes import NO_MARK, code_of, common_modes, default_modes, mark_of, open_modes
from gpupool.scheduling.state.undo import UndoLog, grown
from gpupool.scheduling.values import ReplicaKey

MILLI = 1000  # thousandths of a CPU
RowState = tuple[int, int, bytes, bytes, bytes, bytes]
_NO_NODE = -1
_LATEST = 24  # rows; with more changes, a scan of all rows is faster
UNMET = 1_000_000  # thousandths: more than any GPU has
NODE = NODE_LABEL  # it is different on every node
ALONE = -1  # the domain of a node that has no value
_known: WeakKeyDictionary[ClusterState, dict[str, tuple[int, Ints]]] = WeakKeyDictionary()


class ClusterState:
    """All nodes in arrays: N rows (one per node, some spare) by G slots (the GPUs of a node, ordered by index).

    GPU quantities are thousandths and MiB, CPU is thousandths of a processor, memory MiB. ``model`` contains indexes
    into ``models``; 0 means no GPU. A row that is not ``present`` is spare. ``*_free`` can be negative: overlapping
    leases, holds, or a node that returned with fewer resources. Nothing fits there then.

    ``mode_default`` is the sharing mode of a slice that requests none, ``mode_open`` the set of modes that a slice may
    request, ``mode_common`` the most frequent default of the node. ``guests`` encodes the users and modes of the slices
    on each GPU. ``sharing_modes`` defines the codes.

    ``reserved`` marks the rows that have reservations. ``touched[row]`` grows whenever a row changes, so that caches
    know which rows to update (``touched_since``). ``generation`` grows whenever a node is added, removed or reported
    again. ``make`` is equal for nodes with the same hardware and sharing (see ``state_of``). ``topology`` are the node
    labels that describe where nodes are, the largest domains first (``block``, ``rack``).
    """

    def __init__(self, topology: tuple[str, ...] = ()) -> None:
        self.topology = topology
        self.log = UndoLog(self.touch)
        self.tick = self.generation = 0
        self._latest: deque[int] = deque(maxlen=_LATEST)  # rows that were touched last
        self.rows: dict[str, int] = {}
        self.nodes: list[Node | None] = []
        self.gpus: list[tuple[Gpu, ...]] = []
        self.links: list[bytes] = []
        self._slots: list[dict[str, int]] = []  # per row, the slot of each GPU by its UUID
        self.models: list[str] = [""]
        self._makes: dict[object, int] = {}
        self.holdings: dict[ReplicaKey, HeldAllocation] = {}
        self.claims: dict[ReplicaKey, Claim] = {}
        self.claims_changed: set[ReplicaKey] = set()  # since the last ``RunningTable.catch_up``
        self._model_ids: dict[str, int] = {}
        self._on_node: dict[str, set[ReplicaKey]] = {}
        self.reservations = Reservations()
        self._allocate_arrays(0, 1)

    def _allocate_arrays(self, n: int, g: int) -> None:
        self.present, self.up = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.salt, self.touched, self.make = np.zeros(n, np.uint64), np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.cpu_total, self.cpu_free = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.mem_total, self.mem_free = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.gpu_free, self.gmem_free = np.zeros((n, g), np.int64), np.zeros((n, g), np.int64)
        self.gmem_total, self.model = np.zeros((n, g), np.int64), np.zeros((n, g), np.int64)
        self.healthy, self.foreign = np.zeros((n, g), np.bool_), np.zeros((n, g), np.bool_)
        self.cordoned = np.zeros((n, g), np.bool_)
        self.available = np.zeros((n, g), np.bool_)
        self.mode_default, self.mode_open = np.zeros((n, g), np.int64), np.zeros((n, g), np.int64)
        self.reserved = np.zeros(n, np.bool_)
        self.mode_common, self.guests = np.zeros(n, np.int64), np.zeros((n, g), np.int64)

    @property
    def slots(self) -> int:
        """Return G, the number of GPU slots per row."""
        return int(self.gpu_free.shape[1])

    def touch(self, row: int) -> None:
        """Mark a row as changed."""
        self.tick += 1
        self.touched[row] = self.tick
        self._latest.append(row)

    def touched_since(self, tick: int) -> Ints:
        """Return the rows that changed after a tick, in ascending order."""
        steps = self.tick - tick
        if steps > len(self._latest):
            return np.asarray((self.touched > tick).nonzero()[0])
        return np.array(sorted({self._latest[-1 - at] for at in range(steps)}), np.int64)

    def state_of(self, row: int) -> RowState:
        """Return everything in a row that decides the placement score: equal for alike and equally full nodes.

        Left out: the node's state, memory, labels and reservations.
        """
        return (
            int(self.make[row]),
            int(self.cpu_free[row]),
            self.gpu_free[row].tobytes(),
            self.gmem_free[row].tobytes(),
            self.available[row].tobytes(),
            self.guests[row].tobytes(),
        )

    def capacity_permille(self) -> int:
        """Return the thousandths of all GPUs where work can be placed."""
        return int(np.count_nonzero(self.available & self.up[:, None])) * WHOLE_GPU

    # --- nodes

    def set_node(self, node: Node) -> None:
        """Add a node, or update its report and state; its allocations are counted again.

        Raise ``RuntimeError`` during a trial (the undo log is not empty).
        """
        if len(self.log):
            raise RuntimeError("nodes cannot change while the undo log is open")
        self._widen(len(node.report.gpus))
        row = self.rows.get(node.name)
        row = self._new_row(node.name) if row is None else row
        self.nodes[row] = node
        self.gpus[row] = tuple(sorted(node.report.gpus, key=lambda gpu: gpu.index))
        self._slots[row] = {gpu.uuid: slot for slot, gpu in enumerate(self.gpus[row])}
        self.generation += 1
        self._fill_row(row, node)
        self._charge_row(row, node.name)
        self.touch(row)

    def slot_of(self, row: int, uuid: str) -> int | None:
        """Return the position of a GPU on a node; None if it is not there."""
        return self._slots[row].get(uuid) if row < len(self._slots) else None

    def set_gpus(self, name: str, gpus: Iterable[Gpu]) -> None:
        """Update health and foreign processes of GPUs; the list of GPUs may change too. Ignore unknown nodes."""
        row = self.rows.get(name)
        node = None if row is None else self.nodes[row]
        if row is None or node is None:
            return
        fresh = tuple(sorted(gpus, key=lambda gpu: gpu.index))
        if [(g.uuid, g.memory_mib, g.model) for g in fresh] != [
            (g.uuid, g.memory_mib, g.model) for g in self.gpus[row]
        ]:
            from dataclasses import replace

            self.set_node(replace(node, report=replace(node.report, gpus=fresh)))
            return
        self.gpus[row] = fresh
        if self._fill_health(row):
            self.touch(row)

    def set_state(self, name: str, state: NodeState) -> None:
        """Set the state of a node (up, cordoned, lost). Ignore unknown nodes."""
        row = self.rows.get(name)
        if row is not None:
            self.up[row] = state is NodeState.UP
            self.touch(row)

    def remove_node(self, name: str) -> None:
        """Remove a node. Its allocations are remembered and count again if the node returns."""
        row = self.rows.pop(name, None)
        if row is None:
            return
        if len(self.log):
            raise RuntimeError("nodes cannot change while the undo log is open")
        self.nodes[row], self.gpus[row], self.links[row], self._slots[row] = None, (), b"", {}
        self.generation += 1
        self.present[row] = self.up[row] = False
        for grid in (self.model, self.gpu_free, self.gmem_free, self.gmem_total, self.guests):
            grid[row] = 0
        for mask in (self.available, self.healthy, self.foreign, self.cordoned):
            mask[row] = False
        for column in (self.cpu_total, self.cpu_free, self.mem_total, self.mem_free, self.make):
            column[row] = 0
        for key in self._on_node.get(name, ()):
            self.claims[key] = self.claim_of(self.holdings[key])
            self.claims_changed.add(key)
        self.touch(row)

    def _new_row(self, name: str) -> int:
        spare = np.flatnonzero(~self.present[: len(self.nodes)])
        row = int(spare[0]) if len(spare) else len(self.nodes)
        if row == len(self.nodes):
            self.nodes.append(None)
            self.gpus.append(())
            self.links.append(b"")
            self._slots.append({})
            if row >= len(self.present):
                self._resize(max(8, 2 * row), self.slots)
        self.rows[name] = row
        self.present[row] = True
        self.reserved[row] = name in self.reservations.by_node
        return row

    def _widen(self, gpus: int) -> None:
        if gpus > self.slots:
            self._resize(len(self.present), gpus)
            self.claims = {key: self.claim_of(held) for key, held in self.holdings.items()}
            self.claims_changed.update(self.claims)

    def _resize(self, n: int, g: int) -> None:
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(self, name, grown(column, (n,) if column.ndim == 1 else (n, g)))

    def _fill_row(self, row: int, node: Node) -> None:
        gpus, report = self.gpus[row], node.report
        for grid in (self.model, self.gmem_total, self.gpu_free, self.guests):
            grid[row] = 0
        self.model[row, : len(gpus)] = [self._model_id(gpu.model) for gpu in gpus]
        self.gmem_total[row, : len(gpus)] = [gpu.memory_mib for gpu in gpus]
        self.gpu_free[row, : len(gpus)] = WHOLE_GPU
        self.gmem_free[row] = self.gmem_total[row]
        self.cpu_total[row] = self.cpu_free[row] = round(report.cpus * MILLI)
        self.mem_total[row] = self.mem_free[row] = report.memory_mib
        self.up[row] = node.state is NodeState.UP
        self.links[row] = link_matrix(gpus)
        policies = [node.policy_of(gpu.uuid) for gpu in gpus]
        self.mode_default[row, : len(gpus)] = default_modes(policies, report.sharing)
        self.mode_open[row, : len(gpus)] = open_modes(policies, report.sharing)
        self.mode_common[row] = common_modes(self.mode_default[row, : len(gpus)])
        grids = (self.model, self.gmem_total, self.mode_default, self.mode_open)
        make = (*(grid[row].tobytes() for grid in grids), int(self.mode_common[row]), self.links[row], report.sharing)
        self.make[row] = self._makes.setdefault(make, len(self._makes) + 1)
        models = ",".join(gpu.model for gpu in gpus)
        self.salt[row] = crc32(repr((sorted(node.all_labels.items()), models)).encode() + self.links[row])
        self._fill_health(row)

    def _fill_health(self, row: int) -> bool:
        gpus = self.gpus[row]
        before = self.available[row].copy()
        node = self.nodes[row]
        self.healthy[row] = self.foreign[row] = self.cordoned[row] = False
        self.healthy[row, : len(gpus)] = [gpu.health is not GpuHealth.FAILED for gpu in gpus]
        self.foreign[row, : len(gpus)] = [bool(gpu.foreign) for gpu in gpus]
        self.cordoned[row, : len(gpus)] = [node is not None and bool(node.cordon_of(gpu)) for gpu in gpus]
        self.available[row] = self.healthy[row] & ~self.foreign[row] & ~self.cordoned[row]
        return bool((before != self.available[row]).any())

    def _model_id(self, model: str) -> int:
        if model not in self._model_ids:
            self._model_ids[model] = len(self.models)
            self.models.append(model)
        return self._model_ids[model]

    def _charge_row(self, row: int, name: str) -> None:
        for key in self._on_node.get(name, ()):
            claim = self.claims[key] = self.claim_of(self.holdings[key])
            self.claims_changed.add(key)
            self.gpu_free[row] -= claim.gpu
            self.gmem_free[row] -= claim.gmem
            self.guests[row] += marks_of(claim)
            self.cpu_free[row] -= claim.cpu_milli
            self.mem_free[row] -= claim.mem_mib

    # --- reservations

    def mark_reserved(self) -> None:
        """Update the rows of nodes that have reservations now or had them before."""
        for name, row in self.rows.items():
            reserved = name in self.reservations.by_node
            if reserved or self.reserved[row]:
                self.reserved[row] = reserved
                self.touch(row)

    def pass_time(self, now: float) -> None:
        """Set the time to ``now``: reservations begin and end."""
        for name in self.reservations.pass_time(now) if self.reservations.all else ():
            if name in self.rows:
                self.touch(self.rows[name])

    def open_to(self, guest: Guest, rows: Ints) -> Bools:
        """Return a mask of the ``rows`` where reservations allow the guest to be placed now."""
        ok = np.ones(len(rows), np.bool_)
        for at in np.flatnonzero(self.reserved[rows]).tolist():
            ok[at] = self.reservations.in_the_way(guest, self.name_of(int(rows[at]))) is None
        return ok

    def reserved_for(self, guest: Guest, rows: Ints) -> Bools:
        """Return a mask of the ``rows`` that are reserved for the guest now."""
        kept = np.zeros(len(rows), np.bool_)
        for at in np.flatnonzero(self.reserved[rows]).tolist() if guest.admitted else ():
            kept[at] = self.reservations.reserved_for(guest, self.name_of(int(rows[at])))
        return kept

    # --- claims

    def claim_of(self, held: HeldAllocation) -> Claim:
        """Convert a holding to numbers; shares of unknown GPUs count for nothing."""
        row = self.rows.get(held.node, _NO_NODE)
        gpu, gmem = np.zeros(self.slots, np.int64), np.zeros(self.slots, np.int64)
        slot_of = self._slots[row] if row != _NO_NODE else {}
        for share in held.shares:
            slot = slot_of.get(share.gpu_uuid)
            if slot is not None:
                gpu[slot] += share.permille
                gmem[slot] += share.memory_mib
        return Claim(row, gpu, gmem, held.cpu_milli, held.mem_mib, held.mode, held.user)

    def shares_of(self, claim: Claim) -> tuple[GpuShare, ...]:
        """Return a claim as shares of named GPUs."""
        gpus = self.gpus[claim.row]
        slots = np.flatnonzero(claim.gpu).tolist()
        return tuple(GpuShare(gpus[s].uuid, gpus[s].index, int(claim.gpu[s]), int(claim.gmem[s])) for s in slots)

    def name_of(self, row: int) -> str:
        """Return the name of the node in a row."""
        node = self.nodes[row]
        return "" if node is None else node.name

    def take(self, key: ReplicaKey, held: HeldAllocation) -> None:
        """Count the allocation of a replica; a second call for the same replica replaces the first."""
        self.free(key)
        claim = self.claim_of(held)
        self.holdings[key], self.claims[key] = held, claim
        self.claims_changed.add(key)
        self._on_node.setdefault(held.node, set()).add(key)
        self._count(claim, -1)

    def free(self, key: ReplicaKey) -> None:
        """Stop counting the allocation of a replica; unknown replicas are ignored."""
        held = self.holdings.pop(key, None)
        if held is None:
            return
        self._count(self.claims.pop(key), 1)
        self.claims_changed.discard(key)
        self._on_node[held.node].discard(key)
        if not self._on_node[held.node]:
            del self._on_node[held.node]

    def on_node(self, name: str) -> frozenset[ReplicaKey]:
        """Return the replicas with an allocation on a node."""
        return frozenset(self._on_node.get(name, ()))

    def _count(self, claim: Claim, sign: int) -> None:
        """Change the counts as ``_move`` does, but permanently; no trial is open."""
        row = claim.row
        if row == _NO_NODE:
            return
        self.gpu_free[row] += claim.gpu * sign
        self.gmem_free[row] += claim.gmem * sign
        if mark_of(claim.mode, claim.user) != NO_MARK:
            self.guests[row] -= marks_of(claim) * sign
        self.cpu_free[row] += claim.cpu_milli * sign
        self.mem_free[row] += claim.mem_mib * sign
        self.touch(row)

    def charge(self, claim: Claim) -> None:
        """Subtract a claim from the free resources, through the undo log."""
        self._move(claim, -1)

    def discharge(self, claim: Claim) -> None:
        """Return a claim to the free resources, through the undo log."""
        self._move(claim, 1)

    def add_each(self, rows: Ints, amounts: Sequence[Ints]) -> None:
        """Add to what is free on each of ``rows``, through the undo log; a row may occur repeatedly.

        ``amounts`` are thousandths, MiB and guest marks by GPU, then CPU and memory.
        """
        columns = self.gpu_free, self.gmem_free, self.guests, self.cpu_free, self.mem_free
        for column, amount in zip(columns, amounts, strict=True):
            self.log.add_each(column, rows, amount)
        for row in set(rows.tolist()):
            self.log.touch(row)
            self.touch(row)

    def _move(self, claim: Claim, sign: int) -> None:
        if claim.row == _NO_NODE:
            return
        log, row = self.log, claim.row
        log.add(self.gpu_free, row, sign * claim.gpu)
        log.add(self.gmem_free, row, sign * claim.gmem)
        if mark_of(claim.mode, claim.user) != NO_MARK:
            log.add(self.guests, row, -sign * marks_of(claim))
        if claim.cpu_milli:
            log.add(self.cpu_free, row, sign * claim.cpu_milli)
        if claim.mem_mib:
            log.add(self.mem_free, row, sign * claim.mem_mib)
        log.touch(row)
        self.touch(row)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Shape:
    """A request for GPUs with CPU (thousandths) and memory (MiB); compared by identity.

    ``user`` is empty unless it matters: slices of GPUs that serve one user at a time. ``pools``: the allowed values of
    the node label ``pool``; empty: any. ``guest``: the properties that matter on reserved nodes; None without
    reservations. ``model``: the only GPU model of the accepted ones that may be used; empty: all of them.
    """

    request: GpuRequest
    cpu_milli: int
    mem_mib: int
    user: str = ""
    pools: tuple[str, ...] = ()
    guest: Guest | None = None
    model: str = ""

    @property
    def picky(self) -> bool:
        """Return True if it is restricted to some nodes by labels or pools."""
        return bool(self.request.labels or self.pools)

    @property
    def gpuless(self) -> bool:
        """Return True if it requests CPU and memory only."""
        return self.request.count == 0

    @property
    def whole(self) -> bool:
        """Return True if it requests whole GPUs."""
        return self.request.whole

    @property
    def starvable(self) -> bool:
        """Return True if smaller work could delay it for ever: it needs whole GPUs, or several at once."""
        return not self.gpuless and (self.whole or self.request.count > 1)

    @property
    def mode(self) -> int | None:
        """Return the code of the requested sharing mode; None: the GPU's default."""
        return None if self.request.sharing is None else code_of(self.request.sharing)

    @property
    def fixed_permille(self) -> int | None:
        """Return the thousandths over all its GPUs, or None if that depends on the model (a request by memory)."""
        return None if self.request.memory_mib is not None else self.request.permille * self.request.count

    def needs(self, gmem_total: Ints) -> tuple[Ints, Ints]:
        """Return the thousandths and MiB needed of GPUs with that much memory, as ``GpuRequest`` does for one GPU."""
        request = self.request
        if request.memory_mib is None:
            need = np.full(gmem_total.shape, request.permille)
            return need, gmem_total if request.whole else gmem_total * request.permille // WHOLE_GPU
        known = np.maximum(gmem_total, 1)
        need = np.where(gmem_total > 0, -(-request.memory_mib * WHOLE_GPU // known), UNMET)
        return need, np.full_like(gmem_total, request.memory_mib)


ShapeKey = tuple[GpuRequest, int, int, str, tuple[str, ...], Guest | None]


@dataclass(slots=True)
class Shapes:
    """The shapes in use, one object for each, as long as it is referenced."""

    _known: WeakValueDictionary[ShapeKey, Shape] = field(default_factory=WeakValueDictionary)

    def get(
        self,
        request: GpuRequest,
        cpus: float,
        memory_mib: int,
        user: str = "",
        pools: tuple[str, ...] = (),
        guest: Guest | None = None,
    ) -> Shape:
        """Return the shape of a request."""
        key = (request, round(cpus * MILLI), memory_mib, user, pools, guest)
        shape = self._known.get(key)
        if shape is None:
            shape = self._known[key] = Shape(*key)
        return shape


def levels_of(cluster: ClusterState, gang: Gang) -> tuple[str, ...]:
    """Return the labels of the domains in which the members of a gang should be, the smallest domains first.

    These are the levels of the topology. If the gang requires one, all members are within one domain of it, so larger
    levels do not matter. A label that is no level replaces them.
    """
    label, nearest_first = gang.within, cluster.topology[::-1]
    if not label or (label in nearest_first and not gang.strict):
        return nearest_first
    if label in nearest_first:
        return nearest_first[: nearest_first.index(label) + 1]
    return (label, *nearest_first) if label == NODE and not gang.strict else (label,)


def domains(cluster: ClusterState, label: str) -> Ints:
    """Return the domain number of each row: equal for nodes with the same value of ``label``, else ``ALONE``.

    If the label is a level of the topology, the values of the larger levels are equal as well. Without a label all
    nodes are one domain. Numbers follow the order of the values.
    """
    cached = _known.setdefault(cluster, {})
    if label not in cached or cached[label][0] != cluster.generation:
        if len(cached) >= 64:  # labels come from requests
            cached.clear()
        cached[label] = (cluster.generation, _number(cluster, label))
    return cached[label][1]


def _number(cluster: ClusterState, label: str) -> Ints:
    rows = len(cluster.present)
    if not label:
        return np.zeros(rows, np.int64)
    levels = cluster.topology
    path = levels[: levels.index(label) + 1] if label in levels else (label,)
    values = [_values(cluster, row, path) for row in range(rows)]
    order = {value: number for number, value in enumerate(sorted({v for v in values if v is not None}))}
    return np.array([ALONE if value is None else order[value] for value in values], np.int64)


def _values(cluster: ClusterState, row: int, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the values of some labels of a node, empty for those that it lacks; None if it lacks the last one."""
    node = cluster.nodes[row] if row < len(cluster.nodes) else None  # rows beyond are spare
    if node is None:
        return None
    labels = {NODE: node.name, **node.all_labels}
    return tuple(labels.get(label, "") for label in path) if path[-1] in labels else None


def marks_of(claim: Claim) -> Ints:
    """Return the amount that a claim adds to ``ClusterState.guests``."""
    return np.asarray((claim.gpu > 0) * mark_of(claim.mode, claim.user))
