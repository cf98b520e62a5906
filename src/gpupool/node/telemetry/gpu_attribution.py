"""GPU use by program, computed from the reports of drivers and of the arbiter. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpupool.domain.nodes.gpu import GpuShare
from gpupool.node.ports import GpuUsageSample, SliceCount

_MIB = 1024 * 1024
STALE_S = 2.5  # the arbiter reports once a second on leases that have processes, and else only what changed


@dataclass(frozen=True, slots=True)
class SliceUse:
    """The use that the arbiter measured for a lease on one GPU; ``sole``: the lease has one program."""

    percent: float
    memory_mib: int
    sole: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """A program and its GPU shares; ``sole``: no other program is on the same lease."""

    shares: tuple[GpuShare, ...]
    pids: frozenset[int]
    sole: bool


@dataclass(frozen=True, slots=True)
class GpuObservations:
    """Samples of GPUs by UUID, and the GPUs on which an unknown process computes.

    An unknown process is in no program's tree. It may be a helper (the MPS server), or the program itself with a pid
    from outside this container. If a program seems idle on such a GPU, its use is unknown.
    """

    looks: Mapping[str, GpuUsageSample]
    strangers: frozenset[str] = frozenset()


def observe(looks: Iterable[GpuUsageSample], pids: frozenset[int]) -> GpuObservations:
    """Collect these samples; ``pids`` are the processes of all programs."""
    by_uuid = {look.sample.gpu_uuid: look for look in looks}
    busy = {uuid: {pid for pid, part in (look.percent or {}).items() if part} for uuid, look in by_uuid.items()}
    return GpuObservations(by_uuid, frozenset(uuid for uuid, found in busy.items() if found - pids))


@dataclass(frozen=True, slots=True)
class GpuUseOfProgram:
    """The use summed over a program's GPUs; ``gpus`` is the number of GPUs whose use is known."""

    percent: float = 0.0
    memory_mib: int = 0
    gpus: int = 0
    shared_percent: float | None = None


class SliceMeter:
    """Converts growing counters into use per second."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[SliceCount, SliceUse]] = {}

    def look(self, counts: Mapping[str, Mapping[str, SliceCount]], now: float) -> dict[str, dict[str, SliceUse]]:
        """Return the use by program key and GPU; ``now`` is on the same clock as ``SliceCount.at``."""
        found: dict[str, dict[str, SliceUse]] = {}
        last = {}
        for key, by_gpu in counts.items():
            for uuid, count in by_gpu.items():
                use = self._use((key, uuid), count, now)
                if use is not None:
                    found.setdefault(key, {})[uuid] = use
                last[key, uuid] = (count, use or SliceUse(0.0, 0, count.sole))
        self._last = last
        return found

    def _use(self, place: tuple[str, str], count: SliceCount, now: float) -> SliceUse | None:
        memory = count.used_bytes // _MIB
        before, known = self._last.get(place, (None, None))
        if before is None or known is None or count.held_s < before.held_s:  # the arbiter was restarted
            return None
        if now - count.at > STALE_S:
            return SliceUse(0.0, memory, count.sole)
        if count.at <= before.at:  # no new report
            return SliceUse(known.percent, memory, count.sole)
        percent = 100 * (count.held_s - before.held_s) / (count.at - before.at)
        return SliceUse(min(100.0, percent), memory, count.sole)


def attribute_use(holder: Holder, seen: GpuObservations, slices: Mapping[str, SliceUse]) -> GpuUseOfProgram:
    """Return the use of its GPUs by one program."""
    percent = shared = 0.0
    gpus = memory = 0
    for share in holder.shares:
        look, part = seen.looks.get(share.gpu_uuid), slices.get(share.gpu_uuid)
        known = _percent(holder, share, seen, part)
        if known is not None:
            percent += known
            gpus += 1
        memory += _memory_mib(holder, share, look, part)
        shared += 0.0 if part is None else part.percent
    measured = bool(slices) and all(part.sole for part in slices.values())
    return GpuUseOfProgram(percent, memory, gpus, shared if measured else None)


def _percent(holder: Holder, share: GpuShare, seen: GpuObservations, part: SliceUse | None) -> float | None:
    """Return the use of one GPU in percent: of the whole GPU, else from the driver, else from the arbiter."""
    look = seen.looks.get(share.gpu_uuid)
    if share.whole and holder.sole and look is not None:
        return look.sample.utilisation_percent
    if look is not None and look.percent is not None:
        mine = sum(look.percent.get(pid, 0.0) for pid in holder.pids)
        if mine or share.gpu_uuid not in seen.strangers:
            return mine
    return part.percent if part is not None and part.sole else None


def _memory_mib(holder: Holder, share: GpuShare, look: GpuUsageSample | None, part: SliceUse | None) -> int:
    if look is not None and (mine := [look.memory[pid] for pid in holder.pids if pid in look.memory]):
        return sum(mine) // _MIB
    if part is not None and part.sole:
        return part.memory_mib
    return look.sample.memory_used_mib if look is not None and share.whole and holder.sole and look.memory else 0
