"""Whose use of a GPU it is: from what drivers and the arbiter of slices tell to what a program used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpupool.domain.gpu import GpuShare
from gpupool.node.ports import GpuLook, SliceCount

_MIB = 1024 * 1024
STALE_S = 2.5  # the arbiter reports once a second on leases that have processes, and else only what changed


@dataclass(frozen=True, slots=True)
class SliceUse:
    """What the arbiter measured of a lease on one GPU; ``sole``: one program is on the lease."""

    percent: float
    memory_mib: int
    sole: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """A program and its part of GPUs; ``sole``: no other program is on the same lease."""

    shares: tuple[GpuShare, ...]
    pids: frozenset[int]
    sole: bool


@dataclass(frozen=True, slots=True)
class Sights:
    """Looks at GPUs by UUID, and those GPUs on which somebody computes who is in no program's tree.

    That may be a helper who computes for a program (the server of MPS), or the program itself under the number that it
    has outside this container: of a program that seems to do nothing it is then not known whether it does.
    """

    looks: Mapping[str, GpuLook]
    strangers: frozenset[str] = frozenset()


def sights(looks: Iterable[GpuLook], pids: frozenset[int]) -> Sights:
    """Of these looks; ``pids`` are those of all programs."""
    by_uuid = {look.sample.gpu_uuid: look for look in looks}
    busy = {uuid: {pid for pid, part in (look.percent or {}).items() if part} for uuid, look in by_uuid.items()}
    return Sights(by_uuid, frozenset(uuid for uuid, found in busy.items() if found - pids))


@dataclass(frozen=True, slots=True)
class GpuUseOfProgram:
    """Summed over its GPUs; ``gpus`` is on how many it can be seen whether it computes."""

    percent: float = 0.0
    memory_mib: int = 0
    gpus: int = 0
    shared_percent: float | None = None


class SliceMeter:
    """From counts that only grow to what they grew by from second to second."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[SliceCount, SliceUse]] = {}

    def look(self, counts: Mapping[str, Mapping[str, SliceCount]], now: float) -> dict[str, dict[str, SliceUse]]:
        """By the keys of programs, then by GPUs; ``now`` as ``SliceCount.at``."""
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
        if before is None or known is None or count.held_s < before.held_s:  # the arbiter began anew
            return None
        if now - count.at > STALE_S:
            return SliceUse(0.0, memory, count.sole)
        if count.at <= before.at:  # no news since
            return SliceUse(known.percent, memory, count.sole)
        percent = 100 * (count.held_s - before.held_s) / (count.at - before.at)
        return SliceUse(min(100.0, percent), memory, count.sole)


def use_of(holder: Holder, seen: Sights, slices: Mapping[str, SliceUse]) -> GpuUseOfProgram:
    """What one program uses of its GPUs."""
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


def _percent(holder: Holder, share: GpuShare, seen: Sights, part: SliceUse | None) -> float | None:
    """A whole GPU's time is its holder's; of a part what the driver says of processes, else what the arbiter says."""
    look = seen.looks.get(share.gpu_uuid)
    if share.whole and holder.sole and look is not None:
        return look.sample.utilisation_percent
    if look is not None and look.percent is not None:
        mine = sum(look.percent.get(pid, 0.0) for pid in holder.pids)
        if mine or share.gpu_uuid not in seen.strangers:
            return mine
    return part.percent if part is not None and part.sole else None


def _memory_mib(holder: Holder, share: GpuShare, look: GpuLook | None, part: SliceUse | None) -> int:
    if look is not None and (mine := [look.memory[pid] for pid in holder.pids if pid in look.memory]):
        return sum(mine) // _MIB
    if part is not None and part.sole:
        return part.memory_mib
    return look.sample.memory_used_mib if look is not None and share.whole and holder.sole and look.memory else 0
