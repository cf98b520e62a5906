"""Compares what the driver says of tenants with what their ledgers say, and judges who takes more than is theirs. Pure.

Two things follow from a look at the driver and at the slots before and after it. A **correction**: what the driver
counts for a tenant's processes beyond their ledgers (contexts, modules, what libraries take for themselves). And
**offences**: more than the slice, a process that the share library does not know of, or one on another's GPU.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.node.sharing.pages import Slot

TOLERANCE_PERMILLE = 20
TOLERANCE_BYTES = 64 << 20
WARN_AFTER = 3  # looks in a row
STOP_AFTER = 5
GRACE = 5  # looks between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One tenant on one GPU: slots ``before`` and ``after`` the driver was asked, and the bytes of its own processes.

    ``limit_bytes`` is None for a GPU that is not the tenant's. ``own_ns`` is the agent's pid namespace.
    """

    limit_bytes: int | None
    before: tuple[Slot, ...]
    after: tuple[Slot, ...]
    used: Mapping[int, int]
    own_ns: int


def host_pid(slot: Slot, own_ns: int) -> int:
    """The pid of a slot's process as the agent sees it; 0 while nobody knows."""
    return slot.host_pid or (slot.pid if slot.pid_ns == own_ns else 0)


def correction(look: GpuLook) -> int | None:
    """Bytes that the driver counts beyond the ledgers; None when the ledgers moved meanwhile.

    A process may be corrected downwards by what was taken for its contexts and no further: managed memory that is not
    on the GPU just now, for one, stays charged.
    """
    if [(s.pid, s.start, s.state) for s in look.before] != [(s.pid, s.start, s.state) for s in look.after]:
        return None
    slots = {host_pid(slot, look.own_ns): slot for slot in look.after}
    return sum(_beyond(slots.get(pid), used) for pid, used in look.used.items())


def _beyond(slot: Slot | None, used: int) -> int:
    if slot is None:
        return used
    return max(used - slot.ledger_bytes, -min(slot.context_bytes, slot.ledger_bytes))


class Offence(StrEnum):
    """What a tenant does that it should not."""

    TOO_MUCH = "too much"  # all its processes together use more than the slice
    UNKNOWN = "unknown process"  # one uses the GPU without the share library
    NOT_ITS_GPU = "not its GPU"  # one is on a GPU that was not given to it


@dataclass(frozen=True, slots=True)
class Finding:
    """One offence at one look; ``pids`` are the processes it can be ended by ending."""

    offence: Offence
    pids: frozenset[int]
    used_bytes: int
    limit_bytes: int


def judge(look: GpuLook) -> Finding | None:
    """The worst that is to be said of a tenant on a GPU."""
    total = sum(look.used.values())
    everybody = frozenset(look.used)
    if look.limit_bytes is None:
        return Finding(Offence.NOT_ITS_GPU, everybody, total, 0) if total else None
    unknown = _unknown(look)
    limit = look.limit_bytes
    if total > limit + limit * TOLERANCE_PERMILLE // 1000 + TOLERANCE_BYTES:
        return Finding(Offence.TOO_MUCH, unknown or everybody, total, limit)
    return Finding(Offence.UNKNOWN, unknown, sum(look.used[p] for p in unknown), limit) if unknown else None


def _unknown(look: GpuLook) -> frozenset[int]:
    """Processes that use memory and have no slot; nobody while it is not known whose the slots are."""
    slots = (*look.before, *look.after)
    known = {host_pid(slot, look.own_ns) for slot in slots}
    if 0 in known:
        return frozenset()
    return frozenset(pid for pid, used in look.used.items() if used and pid not in known)


class Step(StrEnum):
    """What is to be done about an offence now."""

    WARN = "warn"
    TERM = "term"
    KILL = "kill"


SIGNALS = {Step.TERM: signal.SIGTERM, Step.KILL: signal.SIGKILL}


@dataclass(slots=True)
class Case:
    """The offences of one tenant on one GPU, look after look."""

    looks: int = 0
    warned: set[Offence] = field(default_factory=set)
    asked: dict[int, int] = field(default_factory=dict)  # looks since each process was asked to end

    def next(self, finding: Finding | None, newest_first: Sequence[int], *, only_warn: bool) -> tuple[Step, int] | None:
        """The step to take after one more look, and the process it is about (0: none in particular).

        ``newest_first`` are the finding's processes. One at a time is ended; the next only when the offence goes on.
        """
        self.looks = 0 if finding is None else self.looks + 1
        living = frozenset() if finding is None else finding.pids
        self.asked = {pid: since + 1 for pid, since in self.asked.items() if pid in living}
        if finding is None or self.looks < WARN_AFTER:
            return None
        if finding.offence not in self.warned:
            self.warned.add(finding.offence)
            return Step.WARN, 0
        if only_warn or self.looks < STOP_AFTER:
            return None
        return self._end_one(newest_first)

    def _end_one(self, newest_first: Iterable[int]) -> tuple[Step, int] | None:
        overdue = [pid for pid, since in self.asked.items() if since >= GRACE]
        if overdue:
            return Step.KILL, overdue[0]
        if self.asked:
            return None
        target = next(iter(newest_first), None)
        if target is None:
            return None
        self.asked[target] = 0
        return Step.TERM, target
