"""Comparison of the driver's memory counts with the ledgers of tenants, and detection of overuse. Pure.

The input is a sample of the driver, with the slots before and after it. It has two results. A **correction** is the
memory that the driver counts for a tenant's processes beyond their ledgers (contexts, modules, library memory). It
reduces what is left of the slice. **Offences** are use above the slice, a process that the share library does not know,
or a process on a GPU of someone else.

No program is ended for memory that the driver allocated by itself. The memory of an attached process is *explained* by
what it requested through the library, plus up to ``allowance_bytes`` for the driver: context, modules, local memory,
heaps. More than that was allocated without the library. Only a tenant that is above its slice and has such memory is
ended.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.node.sharing.slices.pages import LedgerSlot

TOLERANCE_PERMILLE = 20
TOLERANCE_BYTES = 64 << 20
WARN_AFTER_SAMPLES = 3  # samples in a row
STOP_AFTER_SAMPLES = 5
KILL_AFTER_SAMPLES = 5  # samples between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One tenant on one GPU: slots ``before`` and ``after`` the driver was queried, and the bytes of its processes.

    ``limit_bytes`` is None for a GPU that is not the tenant's. ``own_ns`` is the agent's pid namespace.
    ``allowance_bytes`` is how much the driver may allocate for each process by itself.
    """

    limit_bytes: int | None
    before: tuple[LedgerSlot, ...]
    after: tuple[LedgerSlot, ...]
    used: Mapping[int, int]
    own_ns: int
    allowance_bytes: int


def host_pid(slot: LedgerSlot, own_ns: int) -> int:
    """Return the pid of a slot's process in the agent's namespace; 0 if unknown."""
    return slot.host_pid or (slot.pid if slot.pid_ns == own_ns else 0)


def correction(look: MemorySample) -> int | None:
    """Return the bytes that the driver counts beyond the ledgers; None if the ledgers changed meanwhile.

    A negative correction is limited to the memory taken for contexts: managed memory that is currently not on the GPU,
    for example, stays charged.
    """
    if [(s.pid, s.start, s.state) for s in look.before] != [(s.pid, s.start, s.state) for s in look.after]:
        return None
    slots = {host_pid(slot, look.own_ns): slot for slot in look.after}
    return sum(_beyond(slots.get(pid), used) for pid, used in look.used.items())


def _beyond(slot: LedgerSlot | None, used: int) -> int:
    if slot is None:
        return used
    return max(used - slot.ledger_bytes, -min(slot.context_bytes, slot.ledger_bytes))


def context_sizes(look: MemorySample) -> list[int]:
    """Return the driver's memory for each attached process: as measured at its context, else all the rest."""
    slots = {host_pid(slot, look.own_ns): slot for slot in look.after}
    return [
        slot.context_bytes if slot.measured else used - slot.asked_bytes
        for pid, used in look.used.items()
        if (slot := slots.get(pid)) is not None and used >= slot.ledger_bytes
    ]


class Offence(StrEnum):
    """A violation by a tenant; or, for DRIVER, a fact for which nothing is ended."""

    DRIVER = "driver"  # use above the slice, but allocated by the driver itself
    TOO_MUCH = "too much"  # use above the slice, with allocations without the library
    UNKNOWN = "unknown process"  # a process uses the GPU without the share library
    NOT_ITS_GPU = "not its GPU"  # a process is on a GPU that was not allocated to it


@dataclass(frozen=True, slots=True)
class OffenceFinding:
    """One offence in one sample; ending ``pids`` would end it."""

    offence: Offence
    pids: frozenset[int]
    used_bytes: int
    limit_bytes: int


def judge(look: MemorySample) -> OffenceFinding | None:
    """Return the worst offence of a tenant on a GPU."""
    total = sum(look.used.values())
    everybody = frozenset(look.used)
    if look.limit_bytes is None:
        return OffenceFinding(Offence.NOT_ITS_GPU, everybody, total, 0) if total else None
    unknown = unknown_processes(look)
    limit = look.limit_bytes
    if total > limit + limit * TOLERANCE_PERMILLE // 1000 + TOLERANCE_BYTES:
        unexplained = _unexplained(look)
        if unexplained is None and not unknown:
            return OffenceFinding(Offence.DRIVER, everybody, total, limit)
        return OffenceFinding(Offence.TOO_MUCH, unknown or unexplained or everybody, total, limit)
    return OffenceFinding(Offence.UNKNOWN, unknown, sum(look.used[p] for p in unknown), limit) if unknown else None


def unknown_processes(look: MemorySample) -> frozenset[int]:
    """Return processes that use memory without a slot; empty while any slot's process is unknown."""
    slots = (*look.before, *look.after)
    known = {host_pid(slot, look.own_ns) for slot in slots}
    if 0 in known:
        return frozenset()
    return frozenset(pid for pid, used in look.used.items() if used and pid not in known)


def _unexplained(look: MemorySample) -> frozenset[int] | None:
    """Return the processes with unexplained memory, as far as they are known; None if all is explained.

    Slots whose process is not known yet explain the processes without a slot, all together. Slots contain what the
    tenant wrote, so at most the limit is believed.
    """
    slots: dict[int, dict[tuple[int, int], int]] = {}  # requested bytes by process and slot
    for slot in (*look.before, *look.after):
        asked = slots.setdefault(host_pid(slot, look.own_ns), {})
        asked[slot.pid, slot.pid_ns] = max(asked.get((slot.pid, slot.pid_ns), 0), slot.asked_bytes)
    used: dict[int, int] = {}
    for pid, size in look.used.items():
        used[pid if pid in slots else 0] = used.get(pid if pid in slots else 0, 0) + size
    asked_of = {pid: sum(asked.values()) for pid, asked in slots.items()}
    allowed = {pid: len(asked) * look.allowance_bytes for pid, asked in slots.items()}
    beyond = {pid for pid, size in used.items() if size > asked_of.get(pid, 0) + allowed.get(pid, 0)}
    believed = sum(min(size, asked_of.get(pid, 0)) for pid, size in used.items())
    if not beyond and believed <= (look.limit_bytes or 0):
        return None
    return frozenset(beyond - {0})


class OffenceAction(StrEnum):
    """The action to take for an offence."""

    WARN = "warn"
    TERM = "term"
    KILL = "kill"


SIGNALS = {OffenceAction.TERM: signal.SIGTERM, OffenceAction.KILL: signal.SIGKILL}


@dataclass(slots=True)
class OffenceCase:
    """The offences of one tenant on one GPU over several samples."""

    looks: int = 0
    looks_at_driver: int = 0
    warned: set[Offence] = field(default_factory=set)
    asked: dict[int, int] = field(default_factory=dict)  # samples since each process was asked to end

    def next(
        self, finding: OffenceFinding | None, newest_first: Sequence[int], *, only_warn: bool
    ) -> tuple[OffenceAction, int] | None:
        """Return the next step after one more sample, and its process (0: none in particular).

        ``newest_first`` are the finding's processes. One process is ended at a time; the next only if the offence
        continues.
        """
        serious = finding is not None and finding.offence is not Offence.DRIVER
        self.looks = self.looks + 1 if serious else 0
        self.looks_at_driver = 0 if finding is None or serious else self.looks_at_driver + 1
        living = frozenset() if finding is None else finding.pids
        self.asked = {pid: since + 1 for pid, since in self.asked.items() if pid in living}
        if finding is None or max(self.looks, self.looks_at_driver) < WARN_AFTER_SAMPLES:
            return None
        if finding.offence not in self.warned:
            self.warned.add(finding.offence)
            return OffenceAction.WARN, 0
        if only_warn or self.looks < STOP_AFTER_SAMPLES:
            return None
        return self._end_one(newest_first)

    def _end_one(self, newest_first: Iterable[int]) -> tuple[OffenceAction, int] | None:
        overdue = [pid for pid, since in self.asked.items() if since >= KILL_AFTER_SAMPLES]
        if overdue:
            return OffenceAction.KILL, overdue[0]
        if self.asked:
            return None
        target = next(iter(newest_first), None)
        if target is None:
            return None
        self.asked[target] = 0
        return OffenceAction.TERM, target
