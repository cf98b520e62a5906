"""The nodes and their GPUs as a structure of arrays, with what every replica holds of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from zlib import crc32

import numpy as np

from gpupool.domain.gpu import Gpu, GpuHealth, GpuShare, Node, NodeState
from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.bookings import Bookings, Guest
from gpupool.scheduling.claims import Bools, Claim, Holding, Ints
from gpupool.scheduling.links import link_matrix
from gpupool.scheduling.modes import NO_MARK, common_modes, default_modes, mark_of, open_modes
from gpupool.scheduling.undo import UndoLog, grown
from gpupool.scheduling.values import ReplicaKey

MILLI = 1000  # thousandths of a CPU
RowState = tuple[int, int, bytes, bytes, bytes, bytes]
_NO_NODE = -1
_LATEST = 24  # rows: more are found faster by a look at all


class ClusterState:
    """All nodes in arrays: N rows (one per node, some spare) by G slots (the GPUs of a node in order of index).

    GPU quantities are thousandths and MiB, CPU is thousandths of a processor, memory MiB. ``model`` holds numbers of
    ``models``; 0 stands for no GPU. A row that is not ``present`` is spare. ``*_free`` may be negative: leases on
    GPUs that overlap, holds, or a machine that came back smaller; nothing fits there then, and nothing breaks.
    ``mode_default`` is the mode that a part of a GPU gets which insists on none, ``mode_open`` those it may insist on,
    ``mode_common`` the node's most frequent default, and ``guests`` tells whose parts are on a GPU in which mode:
    all as ``scheduling.modes`` codes them.
    ``booked`` marks the rows that ``bookings`` speak of. ``touched[row]`` grows whenever a row changes, so that caches
    know what to look at again (``touched_since``); ``generation`` grows whenever a node comes, goes or reports anew.
    ``make`` is the same number for nodes that are built and shared alike (see ``state_of``).
    """

    def __init__(self) -> None:
        self.log = UndoLog(self.touch)
        self.tick = self.generation = 0
        self._latest: deque[int] = deque(maxlen=_LATEST)  # rows that were touched
        self.rows: dict[str, int] = {}
        self.nodes: list[Node | None] = []
        self.gpus: list[tuple[Gpu, ...]] = []
        self.links: list[bytes] = []
        self._slots: list[dict[str, int]] = []  # per row, the slot of each GPU by its UUID
        self.models: list[str] = [""]
        self._makes: dict[object, int] = {}
        self.holdings: dict[ReplicaKey, Holding] = {}
        self.claims: dict[ReplicaKey, Claim] = {}
        self.claims_changed: set[ReplicaKey] = set()  # since ``Holders.catch_up``
        self._model_ids: dict[str, int] = {}
        self._on_node: dict[str, set[ReplicaKey]] = {}
        self.bookings = Bookings()
        self._allocate_arrays(0, 1)

    def _allocate_arrays(self, n: int, g: int) -> None:
        self.present, self.up = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.salt, self.touched, self.make = np.zeros(n, np.uint64), np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.cpu_total, self.cpu_free = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.mem_total, self.mem_free = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.gpu_free, self.gmem_free = np.zeros((n, g), np.int64), np.zeros((n, g), np.int64)
        self.gmem_total, self.model = np.zeros((n, g), np.int64), np.zeros((n, g), np.int64)
        self.healthy, self.foreign = np.zeros((n, g), np.bool_), np.zeros((n, g), np.bool_)
        self.available = np.zeros((n, g), np.bool_)
        self.mode_default, self.mode_open = np.zeros((n, g), np.int64), np.zeros((n, g), np.int64)
        self.booked = np.zeros(n, np.bool_)
        self.mode_common, self.guests = np.zeros(n, np.int64), np.zeros((n, g), np.int64)

    @property
    def slots(self) -> int:
        """G: GPU slots per row."""
        return int(self.gpu_free.shape[1])

    def touch(self, row: int) -> None:
        """Say that a row is not what it was."""
        self.tick += 1
        self.touched[row] = self.tick
        self._latest.append(row)

    def touched_since(self, tick: int) -> Ints:
        """The rows that are not what they were at a tick, in order."""
        steps = self.tick - tick
        if steps > len(self._latest):
            return np.asarray((self.touched > tick).nonzero()[0])
        return np.array(sorted({self._latest[-1 - at] for at in range(steps)}), np.int64)

    def state_of(self, row: int) -> RowState:
        """All of a row that decides how well work goes there: equal for nodes that are alike and equally full.

        Not in it: whether it takes work, its memory, labels and bookings.
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
        """GPU thousandths of all GPUs that work may be placed on."""
        return int(np.count_nonzero(self.available & self.up[:, None])) * WHOLE_GPU

    # --- nodes

    def set_node(self, node: Node) -> None:
        """Add a node, or take over its new report and state; what is held on it is counted again.

        Raises ``RuntimeError`` inside a trial (an undo log that is not empty).
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

    def set_gpus(self, name: str, gpus: Iterable[Gpu]) -> None:
        """Take over fresh health and foreign processes; GPUs may also come or go. Unknown nodes are ignored."""
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
        """Cordon, uncordon or lose a node. Unknown nodes are ignored."""
        row = self.rows.get(name)
        if row is not None:
            self.up[row] = state is NodeState.UP
            self.touch(row)

    def remove_node(self, name: str) -> None:
        """Forget a node; what is held on it is kept and counts again should it come back."""
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
        for mask in (self.available, self.healthy, self.foreign):
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
        self.booked[row] = name in self.bookings.by_node
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
        self.healthy[row] = self.foreign[row] = False
        self.healthy[row, : len(gpus)] = [gpu.health is not GpuHealth.FAILED for gpu in gpus]
        self.foreign[row, : len(gpus)] = [bool(gpu.foreign) for gpu in gpus]
        self.available[row] = self.healthy[row] & ~self.foreign[row]
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
            self.guests[row] += claim.marks()
            self.cpu_free[row] -= claim.cpu_milli
            self.mem_free[row] -= claim.mem_mib

    # --- what is booked

    def mark_booked(self) -> None:
        """``bookings`` has changed: see to it that its nodes are looked at again, and those that it had before."""
        for name, row in self.rows.items():
            booked = name in self.bookings.by_node
            if booked or self.booked[row]:
                self.booked[row] = booked
                self.touch(row)

    def pass_time(self, now: float) -> None:
        """It is ``now``: bookings begin and end."""
        for name in self.bookings.pass_time(now) if self.bookings.all else ():
            if name in self.rows:
                self.touch(self.rows[name])

    def open_to(self, guest: Guest, rows: Ints) -> Bools:
        """On which of ``rows`` bookings let somebody be placed now."""
        ok = np.ones(len(rows), np.bool_)
        for at in np.flatnonzero(self.booked[rows]).tolist():
            ok[at] = self.bookings.in_the_way(guest, self.name_of(int(rows[at]))) is None
        return ok

    def kept_for(self, guest: Guest, rows: Ints) -> Bools:
        """Which of ``rows`` are kept for somebody now."""
        kept = np.zeros(len(rows), np.bool_)
        for at in np.flatnonzero(self.booked[rows]).tolist() if guest.admitted else ():
            kept[at] = self.bookings.kept_for(guest, self.name_of(int(rows[at])))
        return kept

    # --- what is held

    def claim_of(self, held: Holding) -> Claim:
        """A holding in numbers; shares of GPUs that are not there (any more) weigh nothing."""
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
        """A claim as shares of named GPUs."""
        gpus = self.gpus[claim.row]
        slots = np.flatnonzero(claim.gpu).tolist()
        return tuple(GpuShare(gpus[s].uuid, gpus[s].index, int(claim.gpu[s]), int(claim.gmem[s])) for s in slots)

    def name_of(self, row: int) -> str:
        """The name of the node in a row."""
        node = self.nodes[row]
        return "" if node is None else node.name

    def take(self, key: ReplicaKey, held: Holding) -> None:
        """Count what a replica holds from now on; a second call for the same replica replaces the first."""
        self.free(key)
        claim = self.claim_of(held)
        self.holdings[key], self.claims[key] = held, claim
        self.claims_changed.add(key)
        self._on_node.setdefault(held.node, set()).add(key)
        self._count(claim, -1)

    def free(self, key: ReplicaKey) -> None:
        """Stop counting what a replica held; unknown ones are ignored."""
        held = self.holdings.pop(key, None)
        if held is None:
            return
        self._count(self.claims.pop(key), 1)
        self.claims_changed.discard(key)
        self._on_node[held.node].discard(key)
        if not self._on_node[held.node]:
            del self._on_node[held.node]

    def on_node(self, name: str) -> frozenset[ReplicaKey]:
        """Who holds something on a node."""
        return frozenset(self._on_node.get(name, ()))

    def _count(self, claim: Claim, sign: int) -> None:
        """As ``_move``, for good; nothing is being tried."""
        row = claim.row
        if row == _NO_NODE:
            return
        self.gpu_free[row] += claim.gpu * sign
        self.gmem_free[row] += claim.gmem * sign
        if mark_of(claim.mode, claim.user) != NO_MARK:
            self.guests[row] -= claim.marks() * sign
        self.cpu_free[row] += claim.cpu_milli * sign
        self.mem_free[row] += claim.mem_mib * sign
        self.touch(row)

    def charge(self, claim: Claim) -> None:
        """Take a claim off what is free, through the undo log."""
        self._move(claim, -1)

    def discharge(self, claim: Claim) -> None:
        """Give a claim back, through the undo log."""
        self._move(claim, 1)

    def _move(self, claim: Claim, sign: int) -> None:
        if claim.row == _NO_NODE:
            return
        log, row = self.log, claim.row
        log.add(self.gpu_free, row, sign * claim.gpu)
        log.add(self.gmem_free, row, sign * claim.gmem)
        if mark_of(claim.mode, claim.user) != NO_MARK:
            log.add(self.guests, row, -sign * claim.marks())
        if claim.cpu_milli:
            log.add(self.cpu_free, row, sign * claim.cpu_milli)
        if claim.mem_mib:
            log.add(self.mem_free, row, sign * claim.mem_mib)
        log.touch(row)
        self.touch(row)
