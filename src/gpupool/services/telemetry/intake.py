"""What comes in: each look goes into the rings and into the tallies of its minute, unless it is in them already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import Epoch, WorkloadId, attempt_key, split_attempt_key
from gpupool.domain.telemetry import GpuSample, NodeSample, ReplicaSample, Step
from gpupool.domain.workload import Lease, WorkloadKind
from gpupool.services.mirror import Mirror
from gpupool.services.telemetry.rings import K, Rings, Times, Values
from gpupool.services.telemetry.series import GPU_COLUMNS, NODE_COLUMNS, REPLICA_COLUMNS
from gpupool.services.telemetry.tallies import Attempt, Minute, ReplicaLook, covered

MOST_GPUS = 20_000
MOST_REPLICAS = 10_000
MOST_NODES = 2_000
_UNKNOWN = float("nan")
_attempt = lru_cache(16_384)(split_attempt_key)  # the same ones every second


@dataclass(slots=True)
class _Node:
    """What is remembered of a node: its last look, when it came, and what its replicas had read and written then."""

    look: NodeSample | None = None
    came_at: float = 0.0
    written: int = 0  # the number of the last look that is in the store's rows
    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    gpus: dict[str, GpuSample] = field(default_factory=dict)
    replicas: dict[str, ReplicaSample] = field(default_factory=dict)


class Intake:
    """Holds what was measured lately. ``minutes`` are tallies by their beginning, ``failed`` could not be written."""

    def __init__(self, mirror: Mirror) -> None:
        self.minutes: dict[int, Minute] = {}
        self.failed: list[Minute] = []
        self._mirror = mirror
        self._nodes: dict[str, _Node] = {}
        self._gpus = Rings[str](len(GPU_COLUMNS), MOST_GPUS)
        self._replicas = Rings[Attempt](len(REPLICA_COLUMNS), MOST_REPLICAS)
        self._machines = Rings[str](len(NODE_COLUMNS), MOST_NODES)

    # -- taking in ---------------------------------------------------------------------------------------------------

    def written_before(self, numbers: Mapping[str, int]) -> None:
        """Looks up to these numbers are in the store's rows: an earlier control plane has seen them."""
        for name, number in numbers.items():
            self._node(name).written = number

    def after(self, name: str, kept: int) -> int:
        """The number of the last look of a node that is here; at first so many before those that are in the store."""
        node = self._node(name)
        return node.look.number if node.look is not None else max(0, node.written - kept)

    def take(self, name: str, looks: Sequence[NodeSample], asked_after: int, now: float) -> None:
        """Looks at a node, oldest first, as asked for; ``now`` is monotonic."""
        node = self._node(name)
        if looks and looks[0].number <= asked_after:  # the node's clock was set back: it counts anew
            node.look, node.written = None, 0
        held = self._held(name) if looks else []
        for look in looks:
            self._take_one(node, look, held)
            node.look, node.came_at = look, now

    def _take_one(self, node: _Node, look: NodeSample, held: Sequence[Lease]) -> None:
        before = node.look
        replicas = self._replica_looks(node, look, held)
        self._remember(node, look, replicas)
        if look.number <= node.written:
            return
        at = int(look.at) // Step.MINUTE * Step.MINUTE
        minute = self.minutes.get(at)
        if minute is None:
            minute = self.minutes[at] = Minute(at)
        minute.add(look, replicas, covered(look.number, None if before is None else before.number))

    def _remember(self, node: _Node, look: NodeSample, replicas: Mapping[Attempt, ReplicaLook]) -> None:
        self._machines.add(look.node, look.at, (look.cpu_percent, look.memory_used_mib))
        for gpu in look.gpus:
            self._gpus.add(gpu.gpu_uuid, look.at, _gpu_row(gpu))
        for attempt, seen in replicas.items():
            self._replicas.add(attempt, look.at, _replica_row(seen))
        node.gpus = {gpu.gpu_uuid: gpu for gpu in look.gpus}

    def _replica_looks(self, node: _Node, look: NodeSample, held: Sequence[Lease]) -> dict[Attempt, ReplicaLook]:
        """What the programs did, and what those did that hold GPUs for others to run programs on."""
        found: dict[Attempt, ReplicaLook] = {}
        on_lease: dict[int, list[ReplicaLook]] = defaultdict(list)
        for row in look.replicas:
            try:
                attempt = _attempt(row.key)
            except GpupoolError:
                continue
            found[attempt] = seen = _replica_look(node, row)
            on_lease[row.lease].append(seen)
        node.bytes = {row.key: (row.read_bytes, row.written_bytes) for row in look.replicas}
        node.replicas = {row.key: row for row in look.replicas}
        watched = {gpu.gpu_uuid for gpu in look.gpus if gpu.utilisation_percent is not None}
        for lease in held:
            if lease.granted_at <= look.at:
                gpus = sum(share.gpu_uuid in watched for share in lease.shares)
                seen = _together(on_lease.get(lease.epoch, ()), seen=gpus > 0)
                found[lease.workload, lease.index, lease.attempt] = seen
                sample = _sample(lease, seen, gpus)
                node.replicas[sample.key] = sample
        return found

    def _held(self, name: str) -> list[Lease]:
        """The leases on a node that have no program of their own."""
        mirror, found = self._mirror, []
        for workload, index in mirror.placed.get(name, ()):
            owner, replica = mirror.workloads.get(workload), mirror.replica(workload, index)
            if owner is not None and owner.kind is WorkloadKind.LEASE and replica is not None:
                found += [lease for lease in (mirror.leases.get(replica.lease or Epoch(0)),) if lease is not None]
        return found

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node()
        return node

    def due(self, keep: int | None) -> list[Minute]:
        """All minutes but one, taken out, with those that could not be written before."""
        over = [self.minutes.pop(at) for at in sorted(self.minutes) if at != keep]
        due, self.failed = [*self.failed, *over], []
        return due

    def put_back(self, minutes: Sequence[Minute], most: int) -> int:
        """Minutes that could not be written; how many of them are given up, the oldest, so that no more are kept."""
        self.failed = list(minutes[-most:])
        return len(minutes) - len(self.failed)

    def unwritten(self) -> list[Minute]:
        """All minutes that are not in the store."""
        return [*self.failed, *self.minutes.values()]

    def prune(self, now: float) -> None:
        """Let go of what was not looked at for ten minutes; ``now`` as in looks."""
        for rings in (self._gpus, self._replicas, self._machines):
            rings.prune(now)

    # -- answering ---------------------------------------------------------------------------------------------------

    def latest(self, since: float) -> dict[str, NodeSample]:
        """The last look at each node that has come since a monotonic time."""
        return {name: n.look for name, n in self._nodes.items() if n.look is not None and n.came_at >= since}

    def latest_gpu(self, uuid: str, since: float) -> GpuSample | None:
        """The last look at a GPU, if it has come since."""
        for node in self._nodes.values():
            if uuid in node.gpus and node.came_at >= since:
                return node.gpus[uuid]
        return None

    def latest_replica(self, key: str, since: float) -> ReplicaSample | None:
        """The last look at a program, or at all on a lease, if it has come since."""
        for node in self._nodes.values():
            if key in node.replicas and node.came_at >= since:
                return node.replicas[key]
        return None

    def gpu_looks(self, uuid: str, since: float, until: float) -> tuple[Times, Values]:
        """The looks at a GPU between two times."""
        return _between(self._gpus, [uuid], since, until)

    def replica_looks(self, workload: WorkloadId, index: int, since: float, until: float) -> tuple[Times, Values]:
        """The looks at all attempts of a replica between two times."""
        attempts = [attempt for attempt in self._replicas if attempt[:2] == (workload, index)]
        return _between(self._replicas, attempts, since, until)

    def node_looks(self, name: str, since: float, until: float) -> tuple[Times, Values]:
        """The looks at a machine between two times."""
        return _between(self._machines, [name], since, until)


def _between(rings: Rings[K], keys: Sequence[K], since: float, until: float) -> tuple[Times, Values]:
    parts = [ring.between(since, until) for key in keys if (ring := rings.get(key)) is not None]
    if not parts:
        return np.empty(0), np.empty((0, rings.width), np.float32)
    times, values = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    order = np.argsort(times, kind="stable")
    return times[order], values[order]


def _gpu_row(gpu: GpuSample) -> tuple[float, ...]:
    known = (gpu.utilisation_percent, gpu.memory_used_mib, gpu.power_w, gpu.temperature_c, gpu.sm_clock_mhz)
    return tuple(_UNKNOWN if value is None else value for value in known)


def _replica_row(seen: ReplicaLook) -> tuple[float, ...]:
    return (
        seen.gpu_percent if seen.seen else _UNKNOWN,
        seen.gpu_memory_mib,
        seen.cpu_percent,
        seen.memory_mib,
        seen.read_bytes,
        seen.written_bytes,
    )


def _replica_look(node: _Node, row: ReplicaSample) -> ReplicaLook:
    """Bytes of a program that was not there at the look before are all since then; before the first look, unknown."""
    known = node.bytes.get(row.key)
    if known is None:
        known = (row.read_bytes, row.written_bytes) if node.look is None else (0, 0)
    return ReplicaLook(
        row.gpu_percent,
        row.gpu_memory_mib,
        row.cpu_percent,
        row.memory_mib,
        max(0, row.read_bytes - known[0]),
        max(0, row.written_bytes - known[1]),
        holds_gpus=row.lease != 0,
        seen=row.gpus > 0 or row.lease == 0,
    )


def _together(looks: Sequence[ReplicaLook], *, seen: bool) -> ReplicaLook:
    return ReplicaLook(
        sum(look.gpu_percent for look in looks),
        sum(look.gpu_memory_mib for look in looks),
        sum(look.cpu_percent for look in looks),
        sum(look.memory_mib for look in looks),
        sum(look.read_bytes for look in looks),
        sum(look.written_bytes for look in looks),
        holds_gpus=True,
        seen=seen,
    )


def _sample(lease: Lease, seen: ReplicaLook, gpus: int) -> ReplicaSample:
    """Of a lease, as if it were a program: what was read and written is not told here."""
    key = attempt_key(lease.workload, lease.index, lease.attempt)
    return ReplicaSample(
        key,
        seen.gpu_percent,
        seen.gpu_memory_mib,
        seen.cpu_percent,
        seen.memory_mib,
        read_bytes=0,
        written_bytes=0,
        processes=0,
        gpus=gpus,
        lease=lease.epoch,
    )
