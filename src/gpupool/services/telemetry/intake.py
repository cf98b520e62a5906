"""Intake of samples: into the rings, and into the tallies of their minute unless the store has counted them already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId, attempt_key, split_attempt_key
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample, RollupStep
from gpupool.domain.work.workload import GpuLease, WorkloadKind
from gpupool.services.state.mirror import Mirror
from gpupool.services.telemetry.rings import K, Rings, Times, Values
from gpupool.services.telemetry.series import GPU_COLUMNS, NODE_COLUMNS, REPLICA_COLUMNS
from gpupool.services.telemetry.tallies import Attempt, AttemptSample, Minute, covered

MAX_GPUS = 20_000
MAX_REPLICAS = 10_000
MAX_NODES = 2_000
_UNKNOWN = float("nan")
_attempt = lru_cache(16_384)(split_attempt_key)  # the same keys come every second


@dataclass(slots=True)
class _Node:
    """State kept for a node: its last sample, when it arrived, and the byte counters of its replicas in that sample."""

    sample: NodeSample | None = None
    came_at: float = 0.0
    written: int = 0  # number of the last sample that the store's rows include
    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    gpus: dict[str, GpuSample] = field(default_factory=dict)
    replicas: dict[str, ReplicaSample] = field(default_factory=dict)


class Intake:
    """Recent samples and unwritten tallies.

    ``minutes`` maps the start of each minute to its tallies; ``failed`` holds minutes that could not be written.
    """

    def __init__(self, mirror: Mirror) -> None:
        self.minutes: dict[int, Minute] = {}
        self.failed: list[Minute] = []
        self._mirror = mirror
        self._nodes: dict[str, _Node] = {}
        self._gpus = Rings[str](len(GPU_COLUMNS), MAX_GPUS)
        self._replicas = Rings[Attempt](len(REPLICA_COLUMNS), MAX_REPLICAS)
        self._machines = Rings[str](len(NODE_COLUMNS), MAX_NODES)

    # -- taking in ---------------------------------------------------------------------------------------------------

    def written_before(self, numbers: Mapping[str, int]) -> None:
        """Note by node the last sample number in the store's rows, so that samples up to it are not counted again."""
        for name, number in numbers.items():
            self._node(name).written = number

    def after(self, name: str, kept: int) -> int:
        """Return the number of the node's last sample here.

        Without a sample yet, return the last number in the store minus ``kept``, so that the rings are filled again.
        """
        node = self._node(name)
        return node.sample.number if node.sample is not None else max(0, node.written - kept)

    def take(self, name: str, samples: Sequence[NodeSample], asked_after: int, now: float) -> None:
        """Take in samples of a node, oldest first, that were requested with ``asked_after``; ``now`` is monotonic."""
        node = self._node(name)
        if samples and samples[0].number <= asked_after:  # the node's clock was set back, so its numbers start again
            node.sample, node.written = None, 0
        held = self._held(name) if samples else []
        for sample in samples:
            self._take_one(node, sample, held)
            node.sample, node.came_at = sample, now

    def _take_one(self, node: _Node, sample: NodeSample, held: Sequence[GpuLease]) -> None:
        before = node.sample
        replicas = self._attempt_samples(node, sample, held)
        self._remember(node, sample, replicas)
        if sample.number <= node.written:
            return
        at = int(sample.at) // RollupStep.MINUTE * RollupStep.MINUTE
        minute = self.minutes.get(at)
        if minute is None:
            minute = self.minutes[at] = Minute(at)
        minute.add(sample, replicas, covered(sample.number, None if before is None else before.number))

    def _remember(self, node: _Node, sample: NodeSample, replicas: Mapping[Attempt, AttemptSample]) -> None:
        self._machines.add(sample.node, sample.at, (sample.cpu_percent, sample.memory_used_mib))
        for gpu in sample.gpus:
            self._gpus.add(gpu.gpu_uuid, sample.at, _gpu_row(gpu))
        for attempt, seen in replicas.items():
            self._replicas.add(attempt, sample.at, _replica_row(seen))
        node.gpus = {gpu.gpu_uuid: gpu for gpu in sample.gpus}

    def _attempt_samples(
        self, node: _Node, sample: NodeSample, held: Sequence[GpuLease]
    ) -> dict[Attempt, AttemptSample]:
        """Return the sample of each attempt, and keep it in ``node``.

        For a lease in ``held`` the sample is the sum over the programs that run on it.
        """
        found: dict[Attempt, AttemptSample] = {}
        on_lease: dict[int, list[AttemptSample]] = defaultdict(list)
        for row in sample.replicas:
            try:
                attempt = _attempt(row.key)
            except GpupoolError:
                continue
            found[attempt] = seen = _attempt_sample(node, row)
            on_lease[row.lease].append(seen)
        node.bytes = {row.key: (row.read_bytes, row.written_bytes) for row in sample.replicas}
        node.replicas = {row.key: row for row in sample.replicas}
        watched = {gpu.gpu_uuid for gpu in sample.gpus if gpu.utilisation_percent is not None}
        for lease in held:
            if lease.granted_at <= sample.at:
                gpus = sum(share.gpu_uuid in watched for share in lease.shares)
                seen = _together(on_lease.get(lease.epoch, ()), seen=gpus > 0)
                found[lease.workload, lease.index, lease.attempt] = seen
                own = _lease_sample(lease, seen, gpus)
                node.replicas[own.key] = own
        return found

    def _held(self, name: str) -> list[GpuLease]:
        """Return the open leases on a node that have no program of their own: those of workloads of kind lease."""
        mirror, found = self._mirror, []
        for workload, index in mirror.placed.get(name, ()):
            owner, replica = mirror.workloads.get(workload), mirror.replica(workload, index)
            lease = mirror.lease_of(replica)
            if owner is not None and owner.kind is WorkloadKind.LEASE and lease is not None:
                found.append(lease)
        return found

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node()
        return node

    def due(self, keep: int | None) -> list[Minute]:
        """Remove and return all minutes except ``keep``, together with those that could not be written before."""
        over = [self.minutes.pop(at) for at in sorted(self.minutes) if at != keep]
        due, self.failed = [*self.failed, *over], []
        return due

    def put_back(self, minutes: Sequence[Minute], most: int) -> int:
        """Keep the newest ``most`` minutes that could not be written; return how many older ones are dropped."""
        self.failed = list(minutes[-most:])
        return len(minutes) - len(self.failed)

    def unwritten(self) -> list[Minute]:
        """Return all minutes that are not in the store."""
        return [*self.failed, *self.minutes.values()]

    def prune(self, now: float) -> None:
        """Drop rings without a sample in the last ten minutes; ``now`` is in the time of the samples."""
        for rings in (self._gpus, self._replicas, self._machines):
            rings.prune(now)

    # -- answering ---------------------------------------------------------------------------------------------------

    def latest(self, since: float) -> dict[str, NodeSample]:
        """Return the last sample of each node that has sent one since a monotonic time."""
        return {name: n.sample for name, n in self._nodes.items() if n.sample is not None and n.came_at >= since}

    def latest_gpu(self, uuid: str, since: float) -> GpuSample | None:
        """Return the last sample of a GPU; None if its node has sent none since a monotonic time."""
        for node in self._nodes.values():
            if uuid in node.gpus and node.came_at >= since:
                return node.gpus[uuid]
        return None

    def latest_replica(self, key: str, since: float) -> ReplicaSample | None:
        """Return the last sample of a program or lease; None if its node has sent none since a monotonic time."""
        for node in self._nodes.values():
            if key in node.replicas and node.came_at >= since:
                return node.replicas[key]
        return None

    def gpu_samples(self, uuid: str, since: float, until: float) -> tuple[Times, Values]:
        """Return the samples of a GPU between two times."""
        return _between(self._gpus, [uuid], since, until)

    def replica_samples(self, workload: WorkloadId, index: int, since: float, until: float) -> tuple[Times, Values]:
        """Return the samples of all attempts of a replica between two times."""
        attempts = [attempt for attempt in self._replicas if attempt[:2] == (workload, index)]
        return _between(self._replicas, attempts, since, until)

    def node_samples(self, name: str, since: float, until: float) -> tuple[Times, Values]:
        """Return the samples of a node between two times."""
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


def _replica_row(seen: AttemptSample) -> tuple[float, ...]:
    return (
        seen.gpu_percent if seen.seen else _UNKNOWN,
        seen.gpu_memory_mib,
        seen.cpu_percent,
        seen.memory_mib,
        seen.read_bytes,
        seen.written_bytes,
    )


def _attempt_sample(node: _Node, row: ReplicaSample) -> AttemptSample:
    """Convert a sample's byte counters into bytes since the previous sample of the node.

    A program that was not in the previous sample counts with all its bytes. In the node's first sample the bytes are 0,
    because nothing is known of the time before.
    """
    known = node.bytes.get(row.key)
    if known is None:
        known = (row.read_bytes, row.written_bytes) if node.sample is None else (0, 0)
    return AttemptSample(
        row.gpu_percent,
        row.gpu_memory_mib,
        row.cpu_percent,
        row.memory_mib,
        max(0, row.read_bytes - known[0]),
        max(0, row.written_bytes - known[1]),
        holds_gpus=row.lease != 0,
        seen=row.gpus > 0 or row.lease == 0,
    )


def _together(samples: Sequence[AttemptSample], *, seen: bool) -> AttemptSample:
    return AttemptSample(
        sum(sample.gpu_percent for sample in samples),
        sum(sample.gpu_memory_mib for sample in samples),
        sum(sample.cpu_percent for sample in samples),
        sum(sample.memory_mib for sample in samples),
        sum(sample.read_bytes for sample in samples),
        sum(sample.written_bytes for sample in samples),
        holds_gpus=True,
        seen=seen,
    )


def _lease_sample(lease: GpuLease, seen: AttemptSample, gpus: int) -> ReplicaSample:
    """Return the sample of a lease in the form of a program's; byte counters and processes are 0."""
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
