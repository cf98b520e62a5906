"""GPU seconds since the pool began, by project and user: held exactly, from the leases, without asking the store again.

One query tells what was held until the control plane's start. What is held after that is known from the leases in
memory: those that are open, and those that were released since. What was computed in is measured, and read again now
and then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gpupool.domain.access import Actor, Role
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import By, UsageLine
from gpupool.domain.workload import Lease
from gpupool.services.accounting import AccountingService
from gpupool.services.engine import Engine
from gpupool.services.ports import ChangeSet

Holder = tuple[str, str]  # project, user
_READER = Actor("pool", Role.VIEWER, "pool")


@dataclass(slots=True)
class Measured:
    """GPU seconds that were computed in, and those held by replicas that computed on none of their GPUs."""

    used_s: float = 0.0
    idle_s: float = 0.0


class GpuSeconds:
    """Counts up from a moment at which no write was under way."""

    def __init__(self, engine: Engine, accounting: AccountingService) -> None:
        self._engine = engine
        self._accounting = accounting
        self._since: float | None = None
        self._over: dict[Holder, float] = defaultdict(float)
        self._measured_before: dict[str, Measured] = {}
        self.measured: dict[str, Measured] = {}  # by project
        self.loaded = False

    async def load(self) -> None:
        """Read what was before. Raises ``GpupoolError`` when the store cannot be read; it may be tried again."""
        if self._since is None:
            self._since = await self._engine.still(self._engine.ports.clock.now)
        lines = await self._accounting.usage(_READER, 0.0, self._since, By.MEMBER)
        for line in lines:
            self._over[line.project, line.user] += line.time.allocated_s
        self._measured_before = _measured(lines)
        self.measured = dict(self._measured_before)
        self.loaded = True

    async def measure(self) -> None:
        """Read what was measured since; no number becomes smaller."""
        assert self._since is not None  # noqa: S101 - it is loaded first
        until = max(self._since, self._engine.ports.clock.now())
        fresh = _measured(await self._accounting.usage(_READER, self._since, until, By.MEMBER))
        for project in {*fresh, *self._measured_before}:
            before, now = self._measured_before.get(project, Measured()), fresh.get(project, Measured())
            last = self.measured.get(project, Measured())
            used_s, idle_s = before.used_s + now.used_s, before.idle_s + now.idle_s
            self.measured[project] = Measured(max(last.used_s, used_s), max(last.idle_s, idle_s))

    def committed(self, changes: ChangeSet) -> None:
        """Keep what was held under leases that are over now."""
        if self._since is None:
            return
        for lease in changes.leases:
            if lease.released_at is not None:
                self._over[lease.project, lease.user] += _held_s(lease, self._since, lease.released_at)

    def at(self, now: float, leases: Iterable[Lease]) -> dict[Holder, float]:
        """What was held until ``now``, with the open ``leases`` of the same moment."""
        total = dict(self._over)
        for lease in leases:
            holder = (lease.project, lease.user)
            total[holder] = total.get(holder, 0.0) + _held_s(lease, self._since or 0.0, now)
        return total


def _measured(lines: Iterable[UsageLine]) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for line in lines:
        sums = found.setdefault(line.project, Measured())
        sums.used_s += line.time.used_s or 0.0
        sums.idle_s += line.time.idle_s or 0.0
    return found


def _held_s(lease: Lease, since: float, until: float) -> float:
    return max(0.0, until - max(lease.granted_at, since)) * lease.permille / WHOLE_GPU
